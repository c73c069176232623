"""Mixtures of models, client after client: w_S = w + Σ_k c_{S,k} (w_k − w).

A product of matrices would be as fast, but a BLAS rounds differently for other numbers of clients and coalitions. Here
every number is one sum in the order of the clients, whatever else is mixed with it.
"""

from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from fedworth.compile import compiled

Number = TypeVar("Number", np.float32, np.float64)

PIECE = 1024
"""Numbers that are mixed for all coalitions before the next: what they take stays in the cache."""


@compiled
def add_differences(
    coefficients: NDArray[Number],
    start: NDArray[Number],
    differences: NDArray[Number],
    totals: NDArray[Number],
) -> None:
    """totals[s] = start + Σ_k coefficients[s, k] · differences[k]; clients with coefficient 0 are left out.

    Totals may have more columns than there are numbers.
    """
    n_numbers = len(start)
    for first in range(0, n_numbers, PIECE):
        last = first + PIECE if first + PIECE < n_numbers else n_numbers
        for s in range(len(coefficients)):
            for i in range(first, last):
                totals[s, i] = start[i]
            for k in range(coefficients.shape[1]):
                coefficient = coefficients[s, k]
                if coefficient != 0:
                    for i in range(first, last):
                        totals[s, i] += coefficient * differences[k, i]
