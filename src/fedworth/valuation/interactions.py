"""Interactions of pairs: who is redundant with whom, and who complements whom.

    I_ij = Σ_{S ⊆ all∖{i,j}} |S|! (n − |S| − 2)! / (n − 1)!  [U(S∪ij) − U(S∪i) − U(S∪j) + U(S)]

the Shapley interaction index (Grabisch and Roubens, 1999). Negative: together the two add less than apart, as copies
do. Positive: each is worth more with the other there. From the utilities of all 2^n coalitions, without new ones.
"""

import math

import numpy as np
from numpy.typing import NDArray

from fedworth.arrays import Utilities
from fedworth.errors import ValuationError
from fedworth.valuation.shapley import n_members


def shapley_interactions(utilities: Utilities) -> NDArray[np.float64]:
    """(n, n): the index of every pair, symmetric, 0 on the diagonal."""
    n = n_members(utilities)
    if n < 2:
        raise ValuationError("interactions of pairs: one client alone has none; expected n ≥ 2 clients")
    weights = np.array([math.factorial(s) * math.factorial(n - s - 2) / math.factorial(n - 1) for s in range(n - 1)])
    sizes = np.bitwise_count(np.arange(2 ** (n - 2), dtype=np.uint32))
    found = np.zeros((n, n))
    for j in range(1, n):
        for i in range(j):
            corners = utilities.reshape(-1, 2, 2 ** (j - i - 1), 2, 2**i)  # (…, bit j, …, bit i, …)
            both = corners[:, 1, :, 1] - corners[:, 1, :, 0] - corners[:, 0, :, 1] + corners[:, 0, :, 0]
            found[i, j] = found[j, i] = weights[sizes] @ both.reshape(-1)
    return found
