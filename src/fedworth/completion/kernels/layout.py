"""What the kernels of the factor completion read and hand on: the seen cells, and factors with what they achieve.

A layout holds the cells row by row. The transpose's holds them column by column, and what is said of rows is true there
of columns.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedworth.arrays import Indices

LANES = 16
"""Rows whose systems are solved side by side."""

Floats = NDArray[np.float64]

Factors = NDArray[np.float64]
"""(n_rows or n_columns, rank)"""

WIDTH = 8
"""Numbers that a processor adds at once, at most: Gram matrices take a multiple of it."""

Grams = NDArray[np.float64]
"""(n_rows or n_columns, rank (rank + 1) / 2 and zeros up to WIDTH): the lower triangle, row by row"""

Systems = NDArray[np.float64]
"""(n_blocks, what a Gram takes + 1, LANES): Grams or their factors, row r in lane r % LANES of its block; then their
charges."""


class Cells(NamedTuple):
    """Seen cells row by row, and how each row's factors are charged."""

    starts: Indices  # (n_rows + 1,): where each row's cells begin, and the last ones end
    columns: Indices  # (n_seen,)
    values: Floats  # (n_seen,)
    weights: Floats  # (n_rows,), 0 for a row with no seen cell


class Point(NamedTuple):
    """Row factors, their best column factors, and how good they are."""

    W: Factors
    H: Factors
    left: Floats  # (n_seen,): the residual, column by column
    objective: float
    slope: Factors  # (n_rows, rank): half the gradient; that of the columns is zero
    steepness: float  # its norm relative to that of the penalty's part, as in `certificate.stationarity`
