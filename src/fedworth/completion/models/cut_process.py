"""The update process, cut: what is predicted where there are more answers than one inverse can hold.

Client i in round t is predicted from some points only, and so is an answer that is left out:

    shared    round t, the round that heard most clients, and the rounds most like t, `MOST_SHARED` points in all
    own       all answers of the client's kind

The shared points' factor serves all clients of a round; a client's own points join by the Schur complement. With S the
shared ones, O the own ones, A = K_SS⁻¹ K_SO:

    w_O = (K_OO − K_OS A)⁻¹ (k_O − k_S A),      w_S = K_SS⁻¹ k_S − A w_O

The covariance of sums over rounds has each client's own variance from its own and thinned other points, and the
correlations of the thinned points alone.
"""

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from scipy.linalg import cho_factor, cho_solve

from fedworth.arrays import Floats, Indices
from fedworth.completion.models.update_process import Numbers, UpdateProcess

MOST_SHARED = 1500
MOST_THINNED = 1500

AT_ONCE = 64
"""Clients whose own points join in one solve."""


@dataclass(frozen=True)
class CutProcess:
    """The process of many points, each prediction from some of them."""

    whole: UpdateProcess  # whose inverse is never made
    _left_out: dict[int, tuple[Floats, float]] = field(default_factory=dict, compare=False)

    @property
    def numbers(self) -> Numbers:
        """What the process takes as given."""
        return self.whole.numbers

    @property
    def rounds(self) -> Indices:
        """(n_points,): each point's round."""
        return self.whole.rounds

    @property
    def clients(self) -> Indices:
        """(n_points,): each point's client."""
        return self.whole.clients

    def coefficients(self, clients: Indices, round_index: int) -> tuple[Floats, Floats]:
        """(n, n_points), (n,): what each point counts in these clients' predictions, and the predictions' variances."""
        shared = self._shared(round_index)
        factor = cho_factor(self.whole.between(shared, shared))
        weights, variances = np.zeros((len(clients), len(self.rounds))), np.empty(len(clients))
        for start in range(0, len(clients), AT_ONCE):
            some = clients[start : start + AT_ONCE]
            owns = [np.setdiff1d(self._own(client), shared, assume_unique=True) for client in some.tolist()]
            near = [
                self.whole.covariance_at(np.array([client]), np.array([round_index]), np.concatenate([shared, own]))[0]
                for client, own in zip(some.tolist(), owns, strict=True)
            ]
            for place, found in enumerate(self._solved(factor, shared, owns, near)):
                weights[start + place, np.concatenate([shared, owns[place]])] = found
                prior = self.whole.prior(int(some[place]), round_index)
                variances[start + place] = prior - found @ near[place]
        return weights, np.maximum(variances, 0)

    def left_out(self, point: int) -> Floats:
        """(n_points,): what each other point counts in the prediction of this one, itself 0."""
        return self._without(point)[0]

    def left_out_variances(self, points: Indices) -> Floats:
        """(n,): the variance of each point's prediction from the others."""
        return np.array([self._without(point)[1] for point in points.tolist()])

    def summed_covariance(self, weights: Floats) -> Floats:
        """(n_clients, n_clients): the covariance of the clients' sums Σ_t g_ti Δ_i^t, about."""
        thinned = self._thinned.summed_covariance(weights)
        spread = np.sqrt(np.maximum(np.diag(thinned), 0))
        prior, cross = self.whole.summed(weights)
        some = self._thinned_points
        factor = cho_factor(self.whole.between(some, some))
        variances = np.zeros(len(prior))
        clients = np.unique(self.clients)
        for start in range(0, len(clients), AT_ONCE):
            part = clients[start : start + AT_ONCE].tolist()
            owns = [np.setdiff1d(self._own(client), some, assume_unique=True) for client in part]
            near = [cross[client, np.concatenate([some, own])] for client, own in zip(part, owns, strict=True)]
            for client, row, found in zip(part, near, self._solved(factor, some, owns, near), strict=True):
                variances[client] = max(prior[client, client] - found @ row, 0.0)
        scale = np.sqrt(variances) / np.where(spread > 0, spread, 1.0)
        return np.asarray(scale[:, None] * thinned * scale)

    def _solved(
        self, factor: tuple[Floats, bool], shared: Indices, owns: list[Indices], near: list[Floats]
    ) -> list[Floats]:
        """K⁻¹ k of some clients, each over the shared points and then its own ones; all in one solve, A and K_SS⁻¹ k_S
        of every client."""
        n, ends = len(shared), np.cumsum([len(own) for own in owns])
        across = self.whole.between(shared, np.concatenate(owns))  # K_SO, (n_shared, n_owns)
        of_shared = np.stack([row[:n] for row in near], axis=1)
        solved = cho_solve(factor, np.concatenate([of_shared, across], axis=1))
        found = []
        for place, (own, row) in enumerate(zip(owns, near, strict=True)):
            mine = slice(int(ends[place]) - len(own), int(ends[place]))
            alone, joined = solved[:, place], solved[:, len(owns) :][:, mine]  # K_SS⁻¹ k_S and A
            rest = self.whole.between(own, own) - across[:, mine].T @ joined
            of_own = np.linalg.solve(rest, row[n:] - row[:n] @ joined)
            found.append(np.concatenate([alone - joined @ of_own, of_own]))
        return found

    def _without(self, point: int) -> tuple[Floats, float]:
        if point not in self._left_out:
            near = np.union1d(self._shared(int(self.rounds[point])), self._own(int(self.clients[point])))
            place = int(np.searchsorted(near, point))
            column = cho_solve(cho_factor(self.whole.between(near, near)), np.eye(len(near))[place])
            weights = np.zeros(len(self.rounds))
            weights[near] = -column / column[place]
            weights[point] = 0.0
            self._left_out[point] = weights, float(1 / column[place])
        return self._left_out[point]

    def _shared(self, round_index: int) -> Indices:
        """This round's points, those of the round that heard most, and of the rounds most like this one."""
        counts = np.bincount(self.rounds, minlength=len(self.whole.likeness.of_rounds))
        likeness = self.whole.likeness.of_rounds[round_index].copy()
        likeness[[round_index, int(np.argmax(counts))]] = np.inf
        order = np.argsort(-likeness, kind="stable")
        taken = order[: max(2, int((np.cumsum(counts[order]) <= MOST_SHARED).sum()))]
        return np.flatnonzero(np.isin(self.rounds, taken))

    def _own(self, client: int) -> Indices:
        kinds = self.whole.likeness.kinds
        return np.flatnonzero(kinds[self.clients] == kinds[client])

    @cached_property
    def _thinned_points(self) -> Indices:
        return np.unique(np.linspace(0, len(self.rounds) - 1, MOST_THINNED).astype(np.int64))

    @cached_property
    def _thinned(self) -> UpdateProcess:
        some = self._thinned_points
        return UpdateProcess(self.whole.likeness, self.rounds[some], self.clients[some], self.whole.numbers)
