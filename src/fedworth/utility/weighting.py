"""How much each member's model counts in a coalition's model: w_S = g_S w^t + Σ_{k∈S} c_{S,k} w_k.

    uniform   c = 1/|S|, g = 0                 the paper
    samples   c = n_k / Σ_{j∈S} n_j, g = 0     what most servers do
    fixed     c = a_k, g = 1 − Σ_{k∈S} a_k     absent members count as no update

In `fixed`, a_k is the client's weight in the whole federation (all its clients, as the server averages them),
so that a column means the same in every round, and a client who sends back w^t is an exact null player.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedworth.arrays import Memberships
from fedworth.errors import UtilityError, unknown_name

WEIGHTINGS = ("uniform", "samples", "fixed")


@dataclass(frozen=True)
class Mixtures:
    """Coalitions' models as mixtures of the clients' models and the global model."""

    of_clients: NDArray[np.float64]  # (n_coalitions, n_clients)
    of_global: NDArray[np.float64]  # (n_coalitions,)
    weights: NDArray[np.float64] | None = None  # (n_clients,) a_k, where all coefficients come from one a client
    from_global: bool = False  # whether coefficients are the weights themselves, or their shares in the members' sum


def mixtures(coalitions: Memberships, weights: NDArray[np.float64], weighting: str) -> Mixtures:
    """The mixture of each coalition; `weights` are from `client_weights`. The empty coalition is w^t itself."""
    parts = coalitions * weights  # (n_coalitions, n_clients)
    totals = parts.sum(axis=1)  # (n_coalitions,)
    if weighting == "fixed":
        return Mixtures(parts, np.asarray(1 - totals), weights, from_global=True)
    is_empty = np.asarray(~coalitions.any(axis=1))
    if (totals[~is_empty] == 0).any():
        raise UtilityError("a coalition's members report 0 samples in all, so they cannot be averaged by sample count")
    return Mixtures(parts / np.where(is_empty, 1, totals)[:, None], is_empty.astype(np.float64), weights)


def client_weights(
    sample_counts: Mapping[int, float], n_clients: int, *, weighting: str, aggregation: str
) -> NDArray[np.float64]:
    """What each client counts: 1, its samples, or (fixed) its share of the whole; 0 if it was never heard."""
    if weighting not in WEIGHTINGS:
        raise unknown_name("weighting", weighting, WEIGHTINGS)
    heard = np.isin(np.arange(n_clients), list(sample_counts))
    counts = np.array([sample_counts.get(k, 0) for k in range(n_clients)], dtype=np.float64)
    by_samples = weighting == "samples" or (weighting == "fixed" and aggregation == "samples")
    weights = counts if by_samples else heard.astype(np.float64)
    if weighting != "fixed":
        return weights
    if weights.sum() == 0:
        raise UtilityError("the federation reports no samples at all, so no client has a fixed weight in it")
    return np.asarray(weights / weights.sum())
