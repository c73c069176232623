"""The Shapley value of a game, exactly from all coalitions or estimated from permutations.

    v_i = (1/n) Σ_{S∌i} [U(S∪i) − U(S)] / C(n−1, |S|)              exact, from 2^n utilities
    v_i = E_π [U(π(i)∪i) − U(π(i))],  π(i) the clients before i     Monte Carlo, from all prefixes

Utilities come in the order of the coalitions' integers: bit i stands for client i.
"""

import math

import numpy as np
from numpy.typing import NDArray

from fedworth.arrays import Permutations, Utilities
from fedworth.errors import ValuationError


def shapley_values(utilities: Utilities) -> NDArray[np.float64]:
    """(n,): the exact values of a game given by its 2^n utilities."""
    n = _n_clients(utilities)
    sizes = np.bitwise_count(np.arange(2 ** max(n - 1, 0), dtype=np.uint32))  # |S| of every S without the client
    weights = np.array([1 / (n * math.comb(n - 1, size)) for size in range(n)])[sizes]  # (2^(n−1),)
    values = np.empty(n)
    for client in range(n):
        halves = utilities.reshape(-1, 2, 2**client)  # (higher bits, this client's bit, lower bits)
        values[client] = weights @ (halves[:, 1] - halves[:, 0]).reshape(-1)
    return values


def permutation_values(
    prefix_utilities: Utilities, permutations: Permutations, n_clients: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Values and standard errors (n_clients,) from the utilities of all prefixes, (n_permutations, n + 1).

    NaN for clients that are in no permutation; the standard error of a single permutation is NaN too. Antithetic pairs
    are found as such, and count as one draw each.
    """
    values, deviations = _deviations(prefix_utilities, permutations, n_clients)
    return values, np.sqrt((deviations**2).sum(axis=0))


def permutation_covariance(
    prefix_utilities: Utilities, permutations: Permutations, n_clients: int
) -> NDArray[np.float64]:
    """(n_clients, n_clients): how the values of `permutation_values` vary together; variances on the diagonal."""
    deviations = _deviations(prefix_utilities, permutations, n_clients)[1]
    return np.asarray(deviations.T @ deviations)


def _deviations(
    prefix_utilities: Utilities, permutations: Permutations, n_clients: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The values, and how far each draw is from them, (n_draws, n_clients), scaled so that the sum of their squares is
    the variance of the mean."""
    marginals = np.full((len(permutations), n_clients), np.nan)
    np.put_along_axis(marginals, permutations, np.diff(prefix_utilities, axis=1), axis=1)
    values = marginals.mean(axis=0)
    draws = marginals - values
    if _are_pairs(permutations):
        draws = np.add.reduceat(draws, np.arange(0, len(permutations), 2), axis=0)  # the last may be alone
    n_free = len(draws) - 1
    scale = math.sqrt(len(draws) / n_free) / len(permutations) if n_free else math.nan
    return values, draws * scale


def _are_pairs(permutations: Permutations) -> bool:
    """Whether every other permutation is the one before it backwards, two such pairs at least."""
    n_paired = len(permutations) // 2 * 2
    return n_paired >= 4 and np.array_equal(permutations[1:n_paired:2], permutations[0:n_paired:2, ::-1])


def _n_clients(utilities: Utilities) -> int:
    n = len(utilities).bit_length() - 1
    if utilities.ndim != 1 or len(utilities) != 2**n or n < 1:
        raise ValuationError(f"a game of shape {utilities.shape}: expected 2^n utilities for n ≥ 1 clients")
    if not np.isfinite(utilities).all():
        raise ValuationError(f"{int((~np.isfinite(utilities)).sum()):,} utilities are not finite, expected all known")
    return n
