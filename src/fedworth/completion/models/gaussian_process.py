"""A Gaussian process over clients and rounds, which predicts what absent clients would have answered.

Its covariance is a sum of products of a matrix of clients and a matrix of rounds:

    k((i,t),(j,s)) = Σ_p A_p[i,j] B_p[t,s]

Two processes are made of it: one of the clients' updates (`update_process`), one of the utilities of single clients
(`prediction`). Given the points that were heard, everything is linear in them and known in closed form:

    prediction at x       k_x K⁻¹ y,                              variance  k(x,x) − k_x K⁻¹ k_xᵀ
    point a, left out     Σ_{b≠a} −[K⁻¹]_ab/[K⁻¹]_aa y_b,         variance  1/[K⁻¹]_aa

Duplicates are clients with the same updates: they count as one, and a client whose duplicate was heard in a round is
predicted to answer exactly as the duplicate did.

With more than `MOST_POINTS` points the inverse is too large. `LocalGaussianProcess` then conditions each prediction on
some of the points.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_factor, cho_solve

from fedworth.arrays import Floats, Indices

MOST_POINTS = 5000

MOST_SHARED = 1500
"""Points of the nearest rounds that a local prediction is conditioned on, beside the client's own."""

AT_ONCE = 64
"""Clients whose own points enter one solve."""

SAME = 1 - 1e-9
"""Clients with at least this similarity are duplicates."""

Terms = tuple[tuple[Floats, Floats], ...]
"""Pairs A, (n_clients, n_clients), and B, (n_rounds, n_rounds)."""


@dataclass(frozen=True)
class Similarity:
    """How similar clients and rounds are, from 0 to 1."""

    of_clients: Floats  # C, (n_clients, n_clients)
    of_rounds: Floats  # E, (n_rounds, n_rounds)
    compared_by: str = "test logits"  # what was compared

    @cached_property
    def duplicates(self) -> NDArray[np.bool_]:
        """(n_clients, n_clients): whether two clients sent the same updates."""
        return np.asarray(self.of_clients >= SAME)

    @cached_property
    def first_duplicates(self) -> Indices:
        """(n_clients,): the first duplicate of each client, or the client itself."""
        return np.asarray(np.argmax(self.duplicates, axis=1))

    def merge_duplicates(self, rounds: Indices, clients: Indices) -> Indices:
        """Which of these answers remain if duplicates that answered in the same round count once."""
        keys = rounds * len(self.of_clients) + self.first_duplicates[clients]
        return np.asarray(np.unique(keys, return_index=True)[1])


@dataclass(frozen=True)
class GaussianProcess:
    """A process given some points, no two of which are duplicates in one round."""

    terms: Terms
    duplicates: NDArray[np.bool_]  # (n_clients, n_clients)
    rounds: Indices  # (n_points,)
    clients: Indices  # (n_points,)

    def covariance(self, clients: Indices, rounds: Indices, points: Indices | None = None) -> Floats:
        """(n, n_points): the covariance of answers with all points, or with some."""
        others = (self.clients, self.rounds) if points is None else (self.clients[points], self.rounds[points])
        return np.asarray(sum(a[np.ix_(clients, others[0])] * b[np.ix_(rounds, others[1])] for a, b in self.terms))

    def between(self, some: Indices, others: Indices) -> Floats:
        """(n_some, n_others): the covariance of some points with others."""
        return self.covariance(self.clients[some], self.rounds[some], others)

    @cached_property
    def inverse(self) -> Floats:
        """K⁻¹, (n_points, n_points)."""
        covariance = self.covariance(self.clients, self.rounds)
        return np.asarray(cho_solve(cho_factor(covariance), np.eye(len(covariance))))

    def predict(self, clients: Indices, round_index: int) -> tuple[Floats, Floats]:
        """(n, n_points), (n,): the coefficients of the points in these clients' predictions, and their variances."""
        weights, variances = self._posterior(clients, round_index)
        here = self.rounds == round_index
        known = self.duplicates[np.ix_(clients, self.clients)] & here  # (n, n_points), at most one in each row
        is_known = known.any(axis=1)
        return np.where(is_known[:, None], known.astype(np.float64), weights), np.where(is_known, 0.0, variances)

    def _posterior(self, clients: Indices, round_index: int) -> tuple[Floats, Floats]:
        near = self.covariance(clients, np.full(len(clients), round_index))
        weights = near @ self.inverse
        return weights, np.maximum(self._prior(clients, round_index) - (weights * near).sum(axis=1), 0)

    def _prior(self, clients: Indices, round_index: int) -> Floats:
        """(n,): the variances of answers if nothing was heard."""
        return np.asarray(sum(a[clients, clients] * b[round_index, round_index] for a, b in self.terms))

    def leave_out(self, points: Indices) -> tuple[Floats, Floats]:
        """(n, n_points), (n,): the coefficients of the other points in each point's prediction, and its variance."""
        own = np.diag(self.inverse)[points]
        weights = -self.inverse[points] / own[:, None]
        weights[np.arange(len(points)), points] = 0.0
        return weights, 1 / own

    def summed_covariance(self, weights: Floats) -> Floats:
        """(n_clients, n_clients): the posterior covariance of the clients' weighted sums over rounds, Σ_t g_ti y_ti.

        It is Σ_ts g_ti g_sj k((i,t),(j,s)) − B K⁻¹ Bᵀ with B_ia = Σ_t g_ti k((i,t), a), so that no matrix of all
        clients and rounds is made; `weights` are g, (n_rounds, n_clients).
        """
        prior, cross = self._summed(weights)
        return np.asarray(prior - cross @ self.inverse @ cross.T)

    def _summed(self, weights: Floats) -> tuple[Floats, Floats]:
        """(n_clients, n_clients), (n_clients, n_points): the sums' prior covariance, and B."""
        prior = np.asarray(sum(a * (weights.T @ b @ weights) for a, b in self.terms))
        cross = np.asarray(sum(a[:, self.clients] * (b @ weights)[self.rounds].T for a, b in self.terms))
        return prior, cross


class LocalGaussianProcess(GaussianProcess):
    """A process of many points, in which each prediction is conditioned on some of them.

    A client in round t is predicted from the shared points S (those of round t, of the round with most participants
    and of the nearest rounds) and the client's own points O. The factor of K_SS serves all clients of a round, and the
    own points are added by the Schur complement; with A = K_SS⁻¹ K_SO:

        w_O = (K_OO − K_OS A)⁻¹ (k_O − k_S A),      w_S = K_SS⁻¹ k_S − A w_O

    Sums over rounds are conditioned on evenly thinned points and the client's own; the correlations of two clients'
    sums are those given the thinned points.
    """

    def _posterior(self, clients: Indices, round_index: int) -> tuple[Floats, Floats]:
        shared = self._shared(round_index)
        owns = [self._own(client) for client in clients.tolist()]
        every = self.covariance(clients, np.full(len(clients), round_index))
        weights = self._solve(shared, owns, every)
        return weights, np.maximum(self._prior(clients, round_index) - (weights * every).sum(axis=1), 0)

    def leave_out(self, points: Indices) -> tuple[Floats, Floats]:
        columns = np.zeros((len(points), len(self.rounds)))  # of K⁻¹, given the points that each prediction rests on
        for t in np.unique(self.rounds[points]).tolist():
            here = np.flatnonzero(self.rounds[points] == t)
            unit = np.zeros((len(here), len(self.rounds)))
            unit[np.arange(len(here)), points[here]] = 1.0
            owns = [self._own(client) for client in self.clients[points[here]].tolist()]
            columns[here] = self._solve(self._shared(t), owns, unit)
        order = np.arange(len(points))
        own = columns[order, points]
        weights = -columns / own[:, None]
        weights[order, points] = 0.0
        return weights, 1 / own

    def summed_covariance(self, weights: Floats) -> Floats:
        some = thinned(len(self.rounds), MOST_SHARED)
        coarse = GaussianProcess(self.terms, self.duplicates, self.rounds[some], self.clients[some])
        correlated = coarse.summed_covariance(weights)
        prior, cross = self._summed(weights)
        owns = [self._own(client) for client in range(len(prior))]
        variances = np.maximum(np.diag(prior) - (self._solve(some, owns, cross) * cross).sum(axis=1), 0)
        spread = np.sqrt(np.maximum(np.diag(correlated), 0))
        scale = np.sqrt(variances) / np.where(spread > 0, spread, 1.0)
        return np.asarray(scale[:, None] * correlated * scale)

    def _solve(self, shared: Indices, owns: list[Indices], near: Floats) -> Floats:
        """(n, n_points): K⁻¹k of clients given the shared points and their own; `near` is k, (n, n_points)."""
        factor = cho_factor(self.between(shared, shared))
        weights = np.zeros(near.shape)
        for start in range(0, len(owns), AT_ONCE):
            some = [np.setdiff1d(own, shared, assume_unique=True) for own in owns[start : start + AT_ONCE]]
            across = self.between(shared, np.concatenate(some))  # K_SO of all clients, (n_shared, n_owns)
            of_shared = near[start : start + len(some), shared].T  # k_S, (n_shared, n)
            solved = cho_solve(factor, np.concatenate([of_shared, across], axis=1))
            ends = np.cumsum([len(own) for own in some])
            for place, own in enumerate(some):
                row, mine = start + place, slice(int(ends[place]) - len(own), int(ends[place]))
                joined = solved[:, len(some) :][:, mine]  # A
                rest = self.between(own, own) - across[:, mine].T @ joined
                of_own = np.linalg.solve(rest, near[row, own] - near[row, shared] @ joined)
                weights[row, own] = of_own
                weights[row, shared] = solved[:, place] - joined @ of_own
        return weights

    def _shared(self, round_index: int) -> Indices:
        """Points of this round, of the round with most participants, and of the rounds nearest to this one."""
        nearness = self.terms[0][1][round_index].copy()
        counts = np.bincount(self.rounds, minlength=len(nearness))
        nearness[[round_index, int(np.argmax(counts))]] = np.inf
        order = np.argsort(-nearness, kind="stable")
        taken = order[: max(2, int((np.cumsum(counts[order]) <= MOST_SHARED).sum()))]
        return np.flatnonzero(np.isin(self.rounds, taken))

    def _own(self, client: int) -> Indices:
        return np.flatnonzero(self.duplicates[client][self.clients])


def gaussian_process(terms: Terms, similarity: Similarity, rounds: Indices, clients: Indices) -> GaussianProcess:
    """The process given these points: exact up to MOST_POINTS, local beyond."""
    kind = GaussianProcess if len(rounds) <= MOST_POINTS else LocalGaussianProcess
    return kind(terms, similarity.duplicates, rounds, clients)


@dataclass(frozen=True)
class Hyperparameters:
    """The constants of the process of updates.

    k((i,t),(j,s)) = (a + (1 − a) C_ij)(b + (1 − b) E_ts) + (c + d C_ij) 1(t=s) + ν 1(t=s, i and j duplicates)
    """

    all_clients: float = 0.2  # a
    all_rounds: float = 0.75  # b
    of_round: float = 0.025  # c
    of_round_similar: float = 0.04  # d
    noise: float = 0.05  # ν
    error_factor: float = 1.0  # by how much errors summed over rounds exceed the posterior's


MINI_BATCH = Hyperparameters()
"""For clients that train on random batches: part of every update does not recur."""

FULL_BATCH = Hyperparameters(0.4, 0.5, of_round=0.0025, of_round_similar=0.004, noise=0.0015, error_factor=1.35)
"""For clients that train on all of their samples, and so send similar updates wherever global models are similar. Their
errors persist from round to round, which the factor is for."""


def update_process(
    similarity: Similarity, rounds: Indices, clients: Indices, constants: Hyperparameters = MINI_BATCH
) -> GaussianProcess:
    """The process of the clients' updates, given these points."""
    of_clients, of_rounds = similarity.of_clients, similarity.of_rounds
    noise = constants.noise * similarity.duplicates.astype(np.float64)
    terms = (
        (
            constants.all_clients + (1 - constants.all_clients) * of_clients,
            constants.all_rounds + (1 - constants.all_rounds) * of_rounds,
        ),
        (constants.of_round + constants.of_round_similar * of_clients + noise, np.eye(len(of_rounds))),
    )
    return gaussian_process(terms, similarity, rounds, clients)


def left_out_error(process: GaussianProcess, products: Floats) -> float:
    """The share of the points' updates that is missed if each is predicted from the others.

    `products`, G, (n_points, n_points), are the inner products of the updates: the result is the sum of
    [K⁻¹ G K⁻¹]_aa/[K⁻¹]_aa² over that of G_aa.
    """
    missed = np.einsum("ab,ab->a", process.inverse @ products, process.inverse) / np.diag(process.inverse) ** 2
    return float(missed.sum() / (np.trace(products) or 1.0))


def excess_correlation(process: GaussianProcess, points: Indices, products: Floats) -> float:
    """By how much the left-out errors of one client in two rounds correlate more than the process expects, or 0.

    `products` as in `left_out_error`.
    """
    errors, variances = process.leave_out(points)
    errors[np.arange(len(points)), points] = -1.0  # (n, n_points): rows times updates are minus the left-out errors
    expected = -errors[:, points] * variances  # their covariance, [K⁻¹]_ab / ([K⁻¹]_aa [K⁻¹]_bb)
    members = process.clients[points]
    pairs = process.duplicates[np.ix_(members, members)] & ~np.eye(len(points), dtype=bool)
    found = errors @ products @ errors.T
    if not pairs.any() or np.trace(found) <= 0:
        return 0.0
    of_found, of_expected = (float(c[pairs].mean() / np.diag(c).mean()) for c in (found, expected))
    return max(of_found - of_expected, 0.0)


def thinned(n: int, most: int) -> Indices:
    """At most `most` of n places, evenly spaced."""
    return np.unique(np.linspace(0, n - 1, min(n, most)).astype(np.int64))
