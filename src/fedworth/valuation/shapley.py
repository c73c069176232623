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
    """(n,): the exact values of a game given by its 2^n utilities."""
    n = n_members(utilities)
    return semivalues(utilities, np.array([1 / (n * math.comb(n - 1, size)) for size in range(n)]))


def semivalues(utilities: Utilities, weights: NDArray[np.float64]) -> NDArray[np.float64]:
    """(n,): Σ_{S∌i} p(|S|) [U(S∪i) − U(S)], with p(s) = weights[s]."""
    n = n_members(utilities)
    sizes = np.bitwise_count(np.arange(2 ** max(n - 1, 0), dtype=np.uint32))  # |S| of every S without the client
    values = np.empty(n)
    for client in range(n):
        halves = utilities.reshape(-1, 2, 2**client)  # (higher bits, this client's bit, lower bits)
        values[client] = weights[sizes] @ (halves[:, 1] - halves[:, 0]).reshape(-1)
    return values


def n_members(utilities: Utilities) -> int:
    """How many clients play; a game that is not whole is refused."""
    n = len(utilities).bit_length() - 1
    if utilities.ndim != 1 or len(utilities) != 2**n or n < 1:
        raise ValuationError(f"a game of shape {utilities.shape}: expected 2^n utilities for n ≥ 1 clients")
    if not np.isfinite(utilities).all():
        raise ValuationError(f"{int((~np.isfinite(utilities)).sum()):,} utilities are not finite, expected all known")
    return n
