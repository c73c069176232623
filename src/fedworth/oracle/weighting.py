"""The weights of members' models in a coalition's model: w_S = g_S w^t + Σ_{k∈S} c_{S,k} w_k.

    uniform   c = 1/|S|, g = 0                 the paper
    samples   c = n_k / Σ_{j∈S} n_j, g = 0     most servers
    fixed     c = a_k, g = 1 − Σ_{k∈S} a_k     an absent member counts as an update of zero

With `fixed`, a_k is the client's weight among all clients of the federation. A coalition then has the same weights in
every round, and a client that sends back w^t has a value of exactly zero.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from fedworth.arrays import Indices, Memberships
from fedworth.errors import UtilityError
from fedworth.ledger.ledger import Ledger
from fedworth.names import Aggregation, Weighting, checked_name


@dataclass(frozen=True)
class Mixtures:
    """The models of some coalitions, given by their members and the clients' weights.

    The coefficients c and g are derived from these. Weights are always summed from the first client to the last, so a
    coalition's coefficients do not depend on which other clients and coalitions are listed.
    """

    memberships: Memberships  # (n_coalitions, n_clients) whose models are averaged
    weights: NDArray[np.float64]  # (n_clients,) a_k; positive for every member
    from_global: bool  # True: c = a_k, and the global model has the rest; False: c = a_k / Σ a_j

    def __len__(self) -> int:
        return len(self.memberships)

    @cached_property
    def of_clients(self) -> NDArray[np.float64]:
        """(n_coalitions, n_clients): the coefficient of each client's model."""
        parts = self.memberships * self.weights
        return parts if self.from_global else parts / np.where(self.is_empty, 1, self.totals)[:, None]

    @cached_property
    def of_global(self) -> NDArray[np.float64]:
        """(n_coalitions,): the coefficient of the global model."""
        return 1 - self.totals if self.from_global else self.is_empty.astype(np.float64)

    @property
    def is_empty(self) -> NDArray[np.bool_]:
        """(n_coalitions,): whether a coalition's model is the global model itself."""
        return ~np.asarray(self.memberships.any(axis=1))

    @cached_property
    def totals(self) -> NDArray[np.float64]:
        """(n_coalitions,): Σ_{k∈S} a_k, one client after the other."""
        totals = np.zeros(len(self))
        for members, weight in zip(self.memberships.T, self.weights.tolist(), strict=True):
            totals[members] += weight
        return totals

    def rows(self, rows: NDArray[np.bool_] | Indices) -> "Mixtures":
        """Some of the coalitions."""
        return Mixtures(self.memberships[rows], self.weights, self.from_global)

    def among(self, clients: Sequence[int] | Indices) -> "Mixtures":
        """The same coalitions of some of the clients, in this order; nobody else may be a member."""
        return Mixtures(self.memberships[:, clients], self.weights[clients], self.from_global)


def mixtures(coalitions: Memberships, weights: NDArray[np.float64], weighting: Weighting) -> Mixtures:
    """The mixture of each coalition, with weights from `client_weights`; the model of the empty coalition is w^t.

    A client with a weight of 0 is no member of any mixture.
    """
    found = Mixtures(coalitions & (weights > 0), weights, weighting == "fixed")
    if weighting != "fixed" and (found.is_empty & coalitions.any(axis=1)).any():
        raise UtilityError(
            "a coalition's members report 0 samples in all, so they cannot be averaged by sample count; "
            "choose another weighting, such as uniform"
        )
    return found


def client_weights(
    sample_counts: Mapping[int, float], n_clients: int, *, weighting: Weighting, aggregation: Aggregation
) -> NDArray[np.float64]:
    """(n_clients,): 1, the number of samples, or (fixed) the part of the whole; 0 for a client without a model."""
    checked_name("weighting", Weighting, weighting)
    heard = np.isin(np.arange(n_clients), list(sample_counts))
    counts = np.array([sample_counts.get(k, 0) for k in range(n_clients)], dtype=np.float64)
    by_samples = weighting == "samples" or (weighting == "fixed" and aggregation == "samples")
    weights = counts if by_samples else heard.astype(np.float64)
    if weighting != "fixed":
        return weights
    if weights.sum() == 0:
        raise UtilityError("the federation reports no samples at all, so no client has a fixed weight; choose uniform")
    return np.asarray(weights / weights.sum())


def participation(ledger: Ledger) -> NDArray[np.bool_]:
    """(n_rounds, n_clients): whose model was aggregated in which round; always False for clients left out."""
    rows = np.zeros((ledger.n_rounds, len(ledger.clients)), dtype=bool)
    for round_index in range(ledger.n_rounds):
        rows[round_index, list(ledger.participants(round_index))] = True
    return rows


def round_weights(ledger: Ledger, round_index: int, weighting: Weighting) -> NDArray[np.float64]:
    """(n_clients,): the weight of each client in a round, or (fixed) in the whole federation.

    Only clients that took part in some round have a weight; models that were kept apart for the truth give none.
    """
    reported = ledger.sample_counts(None if weighting == "fixed" else round_index)
    counts = {client: n for client, n in reported.items() if client in ledger.heard}
    return client_weights(counts, len(ledger.clients), weighting=weighting, aggregation=ledger.aggregation)
