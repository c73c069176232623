"""The lone process: the utility of an absent client alone, from the lone utilities that were heard.

Alone, a client's model lies far from all others; its predicted model is then a poor guide (loss is convex along the
way, so the prediction looks too good). The heard lone utilities, divided by the scale g_t of their round, are
taken as a Gaussian process of their own:

    k((i,t),(j,s)) = Σ_{p=0..3} C_ij^p (A_p + B_p exp(−(t−s)²/200) + R_p 1(t=s)) + ν 1(same)

All numbers are fixed but the noise ν, the one of a few that predicts the heard ones best, each from all the others.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_factor, cho_solve

from fedworth.arrays import Floats, Indices, Utilities
from fedworth.completion.models.update_process import Likeness

ALWAYS = (0.5, 0.1, 0.1, 0.03)  # A
NEARBY = (0.1, 0.5, 0.3, 0.1)  # B
OF_ROUND = (0.1, 0.1, 0.03, 0.01)  # R
REACH = 200.0
NOISES = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0)
BANDWIDTH = 3.0
LEAST_SCALE = 1e-4
MOST_POINTS = 5000
"""Beyond so many heard utilities a prediction rests on those of the nearest rounds."""

MOST_NEAR = 2000


@dataclass(frozen=True)
class LoneProcess:
    """The process, conditioned on some heard lone utilities, no two of one kind in one round; of more than
    `MOST_POINTS` on some of them, evenly taken."""

    likeness: Likeness
    rounds: Indices  # (n_points,)
    clients: Indices  # (n_points,)
    noise: float  # ν

    @cached_property
    def _terms(self) -> list[tuple[Floats, Floats]]:
        """Of clients and of rounds, (n_clients, n_clients) and (n_rounds, n_rounds); the products add up to k."""
        n_rounds = len(self.likeness.of_rounds)
        powers = [self.likeness.of_clients**p for p in range(len(ALWAYS))]
        own = (self.noise * self.likeness.same_kind.astype(np.float64), np.eye(n_rounds))
        return [*zip(powers, over_time(n_rounds), strict=True), own]

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
    scale = scales(heard)
    process = _Process([likeness.of_clients**p for p in range(len(ALWAYS))], over_time(len(heard)), rounds, clients)
    known = heard[rounds, clients] / scale[rounds]
    every = np.arange(len(known))
    if len(known) <= MOST_POINTS:
        noise, weights, residuals = _least_left_out(process.covariance(every), known, _later(heard)[rounds])
        mean = process.mean(np.arange(len(heard)), every, weights)
    else:
        some = np.unique(np.linspace(0, len(known) - 1, MOST_NEAR).astype(np.int64))
        noise = _least_left_out(process.covariance(some), known[some], _later(heard)[rounds[some]])[0]
        mean, residuals = _by_nearest(process, known, noise, heard.shape)
    mean = mean * scale[:, None]
    for client, kind in enumerate(likeness.kinds.tolist()):  # who answered as another did is worth as much alone
        alike = np.flatnonzero(likeness.kinds == kind)
        mean[:, client] = np.where(np.isnan(heard[:, alike]).all(axis=1), mean[:, client], _first(heard[:, alike]))
    conditioned = LoneProcess(likeness, rounds, clients, noise)
    return Lone(np.where(np.isnan(heard), mean, heard), (known - residuals) * scale[rounds], scale, conditioned)


@dataclass(frozen=True)
class _Process:
    """The covariances of lone utilities, and what they predict."""

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


def over_time(n_rounds: int) -> list[Floats]:
    """A_p + B_p exp(−(t−s)²/200) + R_p 1(t=s) for each power p, (n_rounds, n_rounds)."""
    t = np.arange(n_rounds, dtype=np.float64)
    near, same = np.exp(-((t[:, None] - t) ** 2) / REACH), np.eye(n_rounds)
    return [a + b * near + r * same for a, b, r in zip(ALWAYS, NEARBY, OF_ROUND, strict=True)]


def scales(heard: Utilities) -> Floats:
    """g, (n_rounds,): the root mean square of each round's heard lone utilities, smoothed over the rounds."""
    shown = np.flatnonzero(~np.isnan(heard).all(axis=1))
    sizes = np.sqrt(np.nanmean(heard[shown] ** 2, axis=1))
    logs = np.log(np.maximum(sizes, LEAST_SCALE * sizes.max(initial=0) or 1.0))
    near = np.exp(-0.5 * ((np.arange(len(heard))[:, None] - shown) / BANDWIDTH) ** 2)  # (n_rounds, n_shown)
    return np.asarray(np.exp(near @ logs / near.sum(axis=1)))


def _least_left_out(covariance: Floats, known: Floats, counted: NDArray[np.bool_]) -> tuple[float, Floats, Floats]:
    """ν, (K + νI)⁻¹u, and how far each u is from its prediction without itself; by one eigendecomposition."""
    variances, axes = np.linalg.eigh(covariance)
    turned, best = axes.T @ known, (np.inf, 0.0, known, known)
    for noise in NOISES:
        inverse = 1 / (np.maximum(variances, 0) + noise)
        weights = axes @ (inverse * turned)
        residuals = weights / ((axes**2) @ inverse)
        error = float((residuals[counted] ** 2).mean())
        if error < best[0]:
            best = (error, noise, weights, residuals)
    return best[1:]


def _later(heard: Utilities) -> NDArray[np.bool_]:
    """(n_rounds,): rounds with someone absent, which are like the ones to be predicted; all if there is none."""
    absent = np.isnan(heard[:, ~np.isnan(heard).all(axis=0)]).any(axis=1)
    return np.asarray(absent if absent.any() else np.ones(len(heard), dtype=bool))


def _first(columns: Utilities) -> Utilities:
    """The first number of each row that is one; NaN where there is none."""
    place = np.argmax(~np.isnan(columns), axis=1)
    return np.asarray(columns[np.arange(len(columns)), place])
