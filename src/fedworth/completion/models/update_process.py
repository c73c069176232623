"""The update process: what an absent client would have answered, as a Gaussian process over clients and rounds.

    k((i,t),(j,s)) = (.2 + .8 C_ij)(.75 + .25 E_ts) + (.025 + .04 C_ij) 1(t=s) + .05 1(t=s, i and j of one kind)

C says how alike two clients are, E how alike two global models (`likeness`). Clients of one kind gave the same first
answer; they count as one. The numbers are those of clients that draw batches. Clients that take all of their samples
answer alike wherever global models are alike; where there are answers enough to tell (`predicted`), other numbers may
stand in place of these. Beyond that nothing is fitted, and predictions are linear combinations of the heard updates:

    Δ̂ = k K⁻¹ Δ,       v = k(x,x) − k K⁻¹ kᵀ,       Δ_a left out: Σ_{b≠a} −[K⁻¹]_ab/[K⁻¹]_aa Δ_b,  v = 1/[K⁻¹]_aa
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_factor, cho_solve

from fedworth.arrays import Floats, Indices


@dataclass(frozen=True)
class Numbers:
    """What the process takes as given."""

    all_clients: float = 0.2
    all_rounds: float = 0.75
    of_round: float = 0.025
    of_round_like: float = 0.04
    noise: float = 0.05
    lasting: float = 1.0  # by how much errors summed over rounds are larger than the process says


DRAWING = Numbers()
"""For clients that draw batches: what one answer has of its own is not seen again."""

STEADY = Numbers(0.4, 0.5, of_round=0.0025, of_round_like=0.004, noise=0.0015, lasting=1.35)
"""For clients that answer alike wherever global models are alike. What is wrong of them in one round is wrong in the
next, too: without `lasting`, 77 % of the true values lay in 90 % intervals of a federation of 100 rounds."""

SAME = 1 - 1e-9
"""Clients at least so much alike are of one kind: they gave the same answer."""


@dataclass(frozen=True)
class Likeness:
    """How alike clients and rounds are, from 0 to 1."""

    of_clients: Floats  # C, (n_clients, n_clients)
    of_rounds: Floats  # E, (n_rounds, n_rounds)
    compared_by: str = "test logits"  # what it was told by

    @cached_property
    def same_kind(self) -> NDArray[np.bool_]:
        """(n_clients, n_clients): whether two clients gave the same answer."""
        return np.asarray(self.of_clients >= SAME)

    @cached_property
    def kinds(self) -> Indices:
        """(n_clients,): the first client of each client's kind."""
        return np.asarray(np.argmax(self.same_kind, axis=1))


@dataclass(frozen=True)
class UpdateProcess:
    """The process, conditioned on some heard answers, no two of one kind in one round."""

    likeness: Likeness
    rounds: Indices  # (n_points,)
    clients: Indices  # (n_points,)
    numbers: Numbers = DRAWING

    @cached_property
    def _between_clients(self) -> Floats:
        return self.numbers.all_clients + (1 - self.numbers.all_clients) * self.likeness.of_clients

    @cached_property
    def _between_rounds(self) -> Floats:
        return self.numbers.all_rounds + (1 - self.numbers.all_rounds) * self.likeness.of_rounds

    @cached_property
    def _within_round(self) -> Floats:
        alike, own = self.numbers.of_round_like * self.likeness.of_clients, self.numbers.noise * self.likeness.same_kind
        return np.asarray(self.numbers.of_round + alike + own)

    @cached_property
    def inverse(self) -> Floats:
        """K⁻¹, (n_points, n_points)."""
        covariance = self.covariance(self.clients, self.rounds)
        return np.asarray(cho_solve(cho_factor(covariance), np.eye(len(covariance))))

    def left_out_error(self, products: Floats) -> float:
        """How much of the points' updates is missed, each predicted from the others; `products` are those of all pairs
        of updates, G, (n_points, n_points): the mean of [K⁻¹ G K⁻¹]_aa/[K⁻¹]_aa² over that of G_aa."""
        missed = np.einsum("ab,ab->a", self.inverse @ products, self.inverse) / np.diag(self.inverse) ** 2
        return float(missed.sum() / (np.trace(products) or 1.0))

    def agreement(self, points: Indices, products: Floats) -> float:
        """How much more the errors of one client agree, left out in two rounds, than the process expects: the mean
        correlation found less the expected one, or 0; `products` as in `left_out_error`."""
        kept = self.inverse[points] / np.diag(self.inverse)[points, None]  # (n, n_points): errors are kept @ updates
        found, expected = kept @ products @ kept.T, kept[:, points] / np.diag(self.inverse)[points]
        members = self.clients[points]
        alike = self.likeness.same_kind[np.ix_(members, members)] & ~np.eye(len(points), dtype=bool)
        if not alike.any() or np.trace(found) <= 0:
            return 0.0
        shown, awaited = (float(c[alike].mean() / np.diag(c).mean()) for c in (found, expected))
        return max(shown - awaited, 0.0)

    def left_out_variances(self, points: Indices) -> Floats:
        """(n,): the variance of each point's prediction from all the others."""
        return np.asarray(1 / np.diag(self.inverse)[points])

    def covariance(self, clients: Indices, rounds: Indices) -> Floats:
        """k of these answers with the points, (n_answers, n_points)."""
        return self.covariance_at(clients, rounds, np.arange(len(self.rounds)))

    def covariance_at(self, clients: Indices, rounds: Indices, points: Indices) -> Floats:
        """k of these answers with some points, (n_answers, n_some)."""
        others, times = self.clients[points], self.rounds[points]
        of_round = self._within_round[np.ix_(clients, others)] * (rounds[:, None] == times)
        between = self._between_clients[np.ix_(clients, others)]
        return np.asarray(between * self._between_rounds[np.ix_(rounds, times)] + of_round)

    def between(self, some: Indices, others: Indices) -> Floats:
        """K of some points with others."""
        return self.covariance_at(self.clients[some], self.rounds[some], others)

    def prior(self, client: int, round_index: int) -> float:
        """k of an answer with itself."""
        own = self._between_clients[client, client] * self._between_rounds[round_index, round_index]
        return float(own + self._within_round[client, client])

    def coefficients(self, clients: Indices, round_index: int) -> tuple[Floats, Floats]:
        """(n, n_points), (n,): what each point counts in these clients' predictions, and the predictions' variances."""
        near = self.covariance(clients, np.full(len(clients), round_index))
        weights = near @ self.inverse
        own = np.diag(self._between_clients) * self._between_rounds[round_index, round_index]
        prior = (own + np.diag(self._within_round))[clients]
        return np.asarray(weights), np.maximum(prior - (weights * near).sum(axis=1), 0)

    def left_out(self, point: int) -> Floats:
        """(n_points,): what each other point counts in the prediction of this one, itself 0."""
        weights = -self.inverse[point] / self.inverse[point, point]
        weights[point] = 0
        return np.asarray(weights)

    def summed_covariance(self, weights: Floats) -> Floats:
        """(n_clients, n_clients): the covariance of the clients' sums Σ_t g_ti Δ_i^t, given the points.

        Σ_ts g_ti g_sj k((i,t),(j,s)) − B K⁻¹ Bᵀ with B_ia = Σ_t g_ti k((i,t), a), so that no matrix of all cells is
        made; `weights` are g, (n_rounds, n_clients).
        """
        prior, cross = self.summed(weights)
        return np.asarray(prior - cross @ self.inverse @ cross.T)

    def summed(self, weights: Floats) -> tuple[Floats, Floats]:
        """(n_clients, n_clients), (n_clients, n_points): the sums' prior covariance, and that with the points."""
        over_rounds = self._between_rounds @ weights  # (n_rounds, n_clients)
        prior = self._between_clients * (weights.T @ over_rounds) + self._within_round * (weights.T @ weights)
        cross = self._between_clients[:, self.clients] * over_rounds[self.rounds].T
        cross += self._within_round[:, self.clients] * weights[self.rounds].T  # B, (n_clients, n_points)
        return prior, cross


def update_process(likeness: Likeness, rounds: Indices, clients: Indices) -> tuple[UpdateProcess, Indices]:
    """The process of these heard answers, and which of them are its points: one of each kind a round."""
    keys = rounds * len(likeness.kinds) + likeness.kinds[clients]
    points = np.unique(keys, return_index=True)[1]
    return UpdateProcess(likeness, rounds[points], clients[points]), points
