"""The lone process: the utility of an absent client alone, from the lone utilities that were heard.

Alone, a client's model lies far from all others; its predicted model is then a poor guide (loss is convex along the
way, so the prediction looks too good). The heard lone utilities, divided by the scale g_t of their round, are
taken as a Gaussian process of their own:

    k((i,t),(j,s)) = Σ_{p=0..3} C_ij^p m_p(t,s) + ν 1(same),       m_p as in `over_time`

All numbers are fixed but the noise ν and b in m: of a few the ones that predict the heard ones best, each from all the
others.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_factor, cho_solve

from fedworth.arrays import Floats, Indices, Utilities
from fedworth.completion.models.update_process import Likeness
from fedworth.completion.over_time import ALWAYS, over_time, smoothed

WANDERINGS = (1.0, 0.03)
"""How much of what varies over the rounds does so slowly (b). On two-class MNIST a lone client's utility hardly does:
the error of the values fell from .216 to .21 (T = 50, 13 seeds from 1000 on); on digits it does (.149, and .155 with
.03)."""

NOISES = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0)
MOST_POINTS = 5000
"""Beyond so many heard utilities a prediction rests on those of the nearest rounds."""

MOST_NEAR = 2000

MOST_CHOSEN = 600
"""So many points choose b."""


@dataclass(frozen=True)
class LoneProcess:
    """The process, conditioned on some heard lone utilities, no two of one kind in one round; of more than
    `MOST_POINTS` on some of them, evenly taken."""

    likeness: Likeness
    rounds: Indices  # (n_points,)
    clients: Indices  # (n_points,)
    noise: float  # ν
    wandering: float = 1.0  # b

    @cached_property
    def _terms(self) -> list[tuple[Floats, Floats]]:
        """Of clients and of rounds, (n_clients, n_clients) and (n_rounds, n_rounds); the products add up to k."""
        n_rounds = len(self.likeness.of_rounds)
        powers = [self.likeness.of_clients**p for p in range(len(ALWAYS))]
        own = (self.noise * self.likeness.same_kind.astype(np.float64), np.eye(n_rounds))
        return [*zip(powers, over_time(n_rounds, wandering=self.wandering), strict=True), own]

    @cached_property
    def _some(self) -> Indices:
        n = len(self.rounds)
        return np.unique(np.linspace(0, n - 1, n if n <= MOST_POINTS else MOST_NEAR).astype(np.int64))

    @cached_property
    def inverse(self) -> Floats:
        """K⁻¹ of the points that it rests on."""
        return self._inverse(self._some)

    def _inverse(self, points: Indices) -> Floats:
        clients, rounds = (np.ix_(x[points], x[points]) for x in (self.clients, self.rounds))
        covariance = np.asarray(sum(c[clients] * r[rounds] for c, r in self._terms))
        return np.asarray(cho_solve(cho_factor(covariance), np.eye(len(covariance))))

    def left_out_variances(self, points: Indices) -> Floats:
        """(n,): the variance of each point's prediction from the others."""
        both = np.union1d(self._some, points)
        inverse = self.inverse if len(both) == len(self._some) else self._inverse(both)
        return np.asarray(1 / np.diag(inverse)[np.searchsorted(both, points)])

    def summed_covariance(self, weights: Floats) -> Floats:
        """(n_clients, n_clients): the covariance of the clients' sums Σ_t g_ti u_i^t, given the points; as that of the
        update process, with `weights` g, (n_rounds, n_clients)."""
        clients, rounds = self.clients[self._some], self.rounds[self._some]
        prior = sum(c * (weights.T @ r @ weights) for c, r in self._terms)
        cross = np.asarray(sum(c[:, clients] * (r @ weights)[rounds].T for c, r in self._terms))
        return np.asarray(prior - cross @ self.inverse @ cross.T)


@dataclass(frozen=True)
class Lone:
    """Everyone's lone utility in every round, and what the heard ones look like when they are left out."""

    utilities: Utilities  # (n_rounds, n_clients), as heard or predicted
    left_out: Utilities  # (n_points,): what the others say of each heard one
    scale: Floats  # g, (n_rounds,)
    process: LoneProcess


def lone_utilities(heard: Utilities, likeness: Likeness, rounds: Indices, clients: Indices) -> Lone:
    """Complete the lone utilities; `heard` (n_rounds, n_clients) has NaN where a client was absent, and the points
    are heard ones, no two of one kind in one round."""
    scale, counted = scales(heard), _later(heard)[rounds]
    known = heard[rounds, clients] / scale[rounds]
    some = _thinned(len(known), MOST_CHOSEN)
    processes = [_process(likeness, len(heard), rounds, clients, b) for b in WANDERINGS]
    found = [_least_left_out(one.covariance(some), known[some], counted[some])[0] for one in processes]
    process = processes[int(np.argmin(found))]
    if len(known) <= MOST_POINTS:
        every = np.arange(len(known))
        _, noise, weights, residuals = _least_left_out(process.covariance(every), known, counted)
        mean = process.mean(np.arange(len(heard)), every, weights)
    else:
        some = _thinned(len(known), MOST_NEAR)
        noise = _least_left_out(process.covariance(some), known[some], counted[some])[1]
        mean, residuals = _by_nearest(process, known, noise, heard.shape)
    mean = mean * scale[:, None]
    for client, kind in enumerate(likeness.kinds.tolist()):  # who answered as another did is worth as much alone
        alike = np.flatnonzero(likeness.kinds == kind)
        mean[:, client] = np.where(np.isnan(heard[:, alike]).all(axis=1), mean[:, client], _first(heard[:, alike]))
    conditioned = LoneProcess(likeness, rounds, clients, noise, process.wandering)
    return Lone(np.where(np.isnan(heard), mean, heard), (known - residuals) * scale[rounds], scale, conditioned)


@dataclass(frozen=True)
class _Process:
    """The covariances of lone utilities, and what they predict."""

    wandering: float  # b
    powers: list[Floats]  # C^p, (n_clients, n_clients)
    times: list[Floats]  # (n_rounds, n_rounds)
    rounds: Indices  # (n_points,)
    clients: Indices  # (n_points,)

    def covariance(self, points: Indices) -> Floats:
        """Of these points among themselves, without noise."""
        clients, rounds = self.clients[points], self.rounds[points]
        pairs = zip(self.powers, self.times, strict=True)
        return np.asarray(sum(q[np.ix_(clients, clients)] * m[np.ix_(rounds, rounds)] for q, m in pairs))

    def mean(self, rounds: Indices, points: Indices, weights: Floats) -> Floats:
        """(n_rounds, n_clients): everyone's prediction in these rounds from these points."""
        made = np.zeros((len(rounds), len(self.powers[0])))
        for power, time in zip(self.powers, self.times, strict=True):
            near = time[np.ix_(rounds, self.rounds[points])]
            made += np.einsum("ta,a,ia->ti", near, weights, power[:, self.clients[points]], optimize=True)
        return made


def _process(likeness: Likeness, n_rounds: int, rounds: Indices, clients: Indices, wandering: float) -> _Process:
    powers = [likeness.of_clients**p for p in range(len(ALWAYS))]
    return _Process(wandering, powers, over_time(n_rounds, wandering=wandering), rounds, clients)


def _thinned(n: int, most: int) -> Indices:
    """So many of n places, evenly taken."""
    return np.unique(np.linspace(0, n - 1, min(n, most)).astype(np.int64))


def _by_nearest(process: _Process, known: Floats, noise: float, shape: tuple[int, ...]) -> tuple[Floats, Floats]:
    """Everyone's prediction in every round, each from the points of the nearest rounds and of the one that heard most;
    and how far each point is from its prediction without itself."""
    mean, residuals = np.empty(shape), np.empty(len(known))
    counts = np.bincount(process.rounds, minlength=shape[0])
    for round_index in range(shape[0]):
        apart = np.abs(np.arange(shape[0]) - round_index)
        apart[int(np.argmax(counts))] = 0
        order = np.argsort(apart, kind="stable")
        taken = order[: max(2, int((np.cumsum(counts[order]) <= MOST_NEAR).sum()))]
        points = np.flatnonzero(np.isin(process.rounds, taken))
        inverse = np.linalg.inv(process.covariance(points) + noise * np.eye(len(points)))
        weights = inverse @ known[points]
        mean[round_index] = process.mean(np.array([round_index]), points, weights)[0]
        here = process.rounds[points] == round_index
        residuals[points[here]] = (weights / np.diag(inverse))[here]
    return mean, residuals


def scales(heard: Utilities) -> Floats:
    """g, (n_rounds,): the root mean square of each round's heard lone utilities, smoothed over the rounds; 0 of a round
    that nobody answered, which adds nothing."""
    shown = np.asarray(~np.isnan(heard).all(axis=1))
    sizes = np.full(len(heard), np.nan)
    sizes[shown] = np.sqrt(np.nanmean(heard[shown] ** 2, axis=1))
    return np.where(shown, smoothed(sizes), 0.0)


def _least_left_out(
    covariance: Floats, known: Floats, counted: NDArray[np.bool_]
) -> tuple[float, float, Floats, Floats]:
    """The mean squared left-out error of those that count, ν, (K + νI)⁻¹u, and how far each u is from its prediction
    without itself; by one eigendecomposition."""
    variances, axes = np.linalg.eigh(covariance)
    turned, best = axes.T @ known, (np.inf, 0.0, known, known)
    for noise in NOISES:
        inverse = 1 / (np.maximum(variances, 0) + noise)
        weights = axes @ (inverse * turned)
        residuals = weights / ((axes**2) @ inverse)
        error = float((residuals[counted] ** 2).mean())
        if error < best[0]:
            best = (error, noise, weights, residuals)
    return best


def _later(heard: Utilities) -> NDArray[np.bool_]:
    """(n_rounds,): rounds with someone absent, which are like the ones to be predicted; all if there is none. Of a
    round that nobody answered nothing is predicted."""
    missing = np.isnan(heard[:, ~np.isnan(heard).all(axis=0)])
    absent = missing.any(axis=1) & ~missing.all(axis=1)
    return np.asarray(absent if absent.any() else np.ones(len(heard), dtype=bool))


def _first(columns: Utilities) -> Utilities:
    """The first number of each row that is one; NaN where there is none."""
    place = np.argmax(~np.isnan(columns), axis=1)
    return np.asarray(columns[np.arange(len(columns)), place])
