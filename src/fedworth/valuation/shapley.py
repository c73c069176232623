"""The Shapley value of a game, exactly from the utilities of all its coalitions.

    v_i = (1/n) Σ_{S∌i} [U(S∪i) − U(S)] / C(n−1, |S|)

A semivalue has another weight p(|S|) in place of 1/(n C(n−1, |S|)).

Utilities come in the order of the coalitions' integers: bit i stands for client i.
"""

import math

import numpy as np
from numpy.typing import NDArray

from fedworth.arrays import Utilities
from fedworth.errors import ValuationError


def shapley_values(utilities: Utilities) -> NDArray[np.float64]:
    """(…, n): the exact values of a game given by its 2^n utilities, or of each of several games."""
    n = _n_in_each(utilities)
    return semivalues(utilities, np.array([1 / (n * math.comb(n - 1, size)) for size in range(n)]))


def semivalues(utilities: Utilities, weights: NDArray[np.float64]) -> NDArray[np.float64]:
    """(…, n): Σ_{S∌i} p(|S|) [U(S∪i) − U(S)], with p(s) = weights[s]."""
    n = _n_in_each(utilities)
    sizes = np.bitwise_count(np.arange(2 ** max(n - 1, 0), dtype=np.uint32))  # |S| of every S without the client
    values, games = np.empty((*utilities.shape[:-1], n)), utilities.shape[:-1]
    for client in range(n):
        halves = utilities.reshape(*games, 2 ** (n - 1 - client), 2, 2**client)  # (…, higher bits, own bit, lower bits)
        added = (halves[..., 1, :] - halves[..., 0, :]).reshape(*games, len(sizes))
        values[..., client] = added @ weights[sizes]
    return values


def n_members(utilities: Utilities) -> int:
    """How many clients play a game; one that is not whole is refused."""
    if utilities.ndim != 1:
        raise ValuationError(f"a game of shape {utilities.shape}: expected 2^n utilities for n ≥ 1 clients")
    return _n_in_each(utilities)


def _n_in_each(games: Utilities) -> int:
    """How many clients play, in one game or in each of several."""
    n = games.shape[-1].bit_length() - 1 if games.ndim else 0
    if games.ndim not in (1, 2) or games.shape[-1] != 2**n or n < 1:
        raise ValuationError(f"a game of shape {games.shape}: expected 2^n utilities for n ≥ 1 clients")
    if not np.isfinite(games).all():
        raise ValuationError(f"{int((~np.isfinite(games)).sum()):,} utilities are not finite, expected all known")
    return n
