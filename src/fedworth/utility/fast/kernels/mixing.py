"""Mixtures of models, client after client: w_S = w + Σ_k c_{S,k} (w_k − w).

A product of matrices would be as fast, but a BLAS rounds differently for other numbers of clients and coalitions. Here
every number is one sum in the order of the clients, whatever else is mixed with it.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedworth.compile import compiled

PIECE = 1024
"""Numbers that are mixed for all coalitions before the next: what they take stays in the cache."""


@compiled
def add_differences(
    coefficients: NDArray[np.floating[Any]],
    start: NDArray[np.floating[Any]],
    differences: NDArray[np.floating[Any]],
    totals: NDArray[np.floating[Any]],
) -> None:
    """totals[s] = start + Σ_k coefficients[s, k] · differences[k]; clients with coefficient 0 are left out."""
    for first in range(0, len(start), PIECE):
        last = min(first + PIECE, len(start))
        for s in range(len(coefficients)):
            total = totals[s, first:last]
            total[:] = start[first:last]
            for k in range(coefficients.shape[1]):
                coefficient = coefficients[s, k]
                if coefficient != 0:
                    difference = differences[k, first:last]
                    for i in range(last - first):
                        total[i] += coefficient * difference[i]
