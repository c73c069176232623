"""Mixtures of models, client after client: w_S = w + Σ_k c_{S,k} (w_k − w).

A product of matrices would be as fast, but a BLAS rounds differently for other numbers of clients and coalitions. Here
every number is one sum in the order of the clients, whatever else is mixed with it.
"""

from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from fedworth.compile import compiled, compiled_within

PIECE = 1024
"""Numbers that are mixed for all coalitions before the next: what they take stays in the cache."""

Number = TypeVar("Number", np.float32, np.float64)


@compiled
def add_differences(
    coefficients: NDArray[Number], start: NDArray[Number], differences: NDArray[Number], totals: NDArray[Number]
) -> None:
    """totals[s] = start + Σ_k coefficients[s, k] · differences[k]; clients with coefficient 0 are left out.

    Totals may have more columns than there are numbers.
    """
    n_numbers = len(start)
    for first in range(0, n_numbers, PIECE):
        last = first + PIECE if first + PIECE < n_numbers else n_numbers
        for s in range(len(coefficients)):
            total = totals[s, first:last]
            _copy(start[first:last], total)
            for k in range(coefficients.shape[1]):
                if coefficients[s, k] != 0:
                    _add(coefficients[s, k], differences[k, first:last], total)


@compiled_within
def _copy(numbers: NDArray[Number], total: NDArray[Number]) -> None:
    for i in range(len(total)):
        total[i] = numbers[i]


@compiled_within
def _add(coefficient: Number, numbers: NDArray[Number], total: NDArray[Number]) -> None:
    """total += coefficient · numbers, whose places count from 0, so that several are added at once."""
    for i in range(len(total)):
        total[i] += coefficient * numbers[i]
