"""The completion problem in numbers: seen cells, and what each factor is charged.

    minimise  Σ_seen (U_{t,S} − w_t·h_S)² + λ (Σ_t a_t ‖w_t‖² + Σ_S b_S ‖h_S‖²)        (prob:matrix_completion)

Penalty kind `uniform`: a = b = 1, as printed. `counts`: a_t, b_S = number of seen cells in that row or column, which is
what LIBMF, the paper's solver, does. In W̃ = √a W, H̃ = √b H the second is the first with each cell's residual divided by
√(a_t b_S), so everything about optimality is said once, in the scaled variables.

Column collapse (exact). Columns seen in round t only, values u_1…u_m, b = 1: for fixed w_t the best h_j is
w_t u_j/(‖w_t‖² + λ), at a cost of λ u_j²/(‖w_t‖² + λ). The sum over j is the cost of one column of value √Σu_j². So one
column a round stands for all of them, and their factors are recovered afterwards. Columns that are 0 wherever they were
seen, as is the empty coalition's, have best factors 0 and cost nothing, so they are left out.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from fedworth.arrays import Indices
from fedworth.completion.kernels.layout import Cells, Factors
from fedworth.completion.kernels.points import residuals as cell_residuals
from fedworth.errors import CompletionError
from fedworth.games.matrix import UtilityMatrix
from fedworth.names import PenaltyKind, checked_name


@dataclass(frozen=True)
class Problem:
    """Seen cells of a matrix, sorted by row and column, and the penalty weights of rows and columns."""

    shape: tuple[int, int]
    rows: Indices  # (n_seen,)
    columns: Indices  # (n_seen,)
    values: NDArray[np.float64]  # (n_seen,)
    row_weights: NDArray[np.float64]  # (n_rows,), 0 for a row with no seen cell
    column_weights: NDArray[np.float64]  # (n_columns,), 0 for a column with no seen cell

    @cached_property
    def cells(self) -> Cells:
        """The seen cells row by row, as the kernels want them."""
        return Cells(_starts(self.rows, self.shape[0]), self.columns, self.values, self.row_weights)

    @cached_property
    def transposed(self) -> Cells:
        """The seen cells column by column, and by row within a column."""
        order = np.argsort(self.columns, kind="stable")
        starts = _starts(self.columns[order], self.shape[1])
        return Cells(starts, self.rows[order], self.values[order], self.column_weights)

    def residuals(self, W: Factors, H: Factors) -> NDArray[np.float64]:
        """(n_seen,): what the factors leave unexplained of each seen cell."""
        return cell_residuals(self.cells, W, H)

    def objective(self, W: Factors, H: Factors, penalty: float) -> float:
        """The value of the problem at these factors."""
        charge = self.row_weights @ (W**2).sum(axis=1) + self.column_weights @ (H**2).sum(axis=1)
        return float((self.residuals(W, H) ** 2).sum() + penalty * charge)


@dataclass(frozen=True)
class Collapsed:
    """A smaller problem with the same best row factors, and how to come back from it."""

    problem: Problem
    kept: Indices  # columns of the whole problem that are columns of the small one
    is_single: NDArray[np.bool_]  # (n_seen,): cells of the whole problem that are alone in their column

    def expand(self, whole: Problem, W: Factors, H: Factors, penalty: float) -> Factors:
        """All column factors, given the row factors and those of the small problem."""
        full = np.zeros((whole.shape[1], W.shape[1]))  # (n_columns, rank)
        full[self.kept] = H[: len(self.kept)]
        t, columns, u = whole.rows[self.is_single], whole.columns[self.is_single], whole.values[self.is_single]
        full[columns] = W[t] * (u / ((W[t] ** 2).sum(axis=1) + penalty))[:, None]
        return full


def problem_of(matrix: UtilityMatrix, penalty_kind: PenaltyKind) -> Problem:
    """The completion problem of a utility matrix."""
    shape = (matrix.n_rounds, len(matrix.coalitions))
    return problem_of_cells(shape, matrix.round_indices, matrix.coalition_indices, matrix.utilities, penalty_kind)


def problem_of_cells(
    shape: tuple[int, int], rows: Indices, columns: Indices, values: NDArray[np.float64], penalty_kind: PenaltyKind
) -> Problem:
    """The completion problem of these cells, in whatever order they come."""
    checked_name("penalty kind", penalty_kind)
    if len(values) == 0 or not values.any():
        raise CompletionError("no cell with a utility other than 0 was seen, so there is nothing to complete from")
    n_in_row, n_in_column = np.bincount(rows, minlength=shape[0]), np.bincount(columns, minlength=shape[1])
    cap = 1 if penalty_kind == "uniform" else np.iinfo(np.int64).max
    row_weights, column_weights = np.minimum(n_in_row, cap), np.minimum(n_in_column, cap)
    order = np.lexsort((columns, rows))
    cells = rows[order], columns[order], values[order]
    return Problem(shape, *cells, row_weights.astype(float), column_weights.astype(float))


def collapse(whole: Problem) -> Collapsed:
    """One column a round for all columns that only this round has seen, and none for those that are 0 wherever seen:
    their best factors are 0."""
    n_in_column = np.bincount(whole.columns, minlength=whole.shape[1])
    is_single = n_in_column[whole.columns] == 1  # (n_seen,)
    has_energy = np.bincount(whole.columns, weights=np.abs(whole.values), minlength=whole.shape[1]) > 0
    kept = np.flatnonzero(has_energy & (n_in_column > 1))
    is_kept = has_energy[whole.columns] & ~is_single  # (n_seen,)
    energy = np.bincount(whole.rows[is_single], weights=whole.values[is_single] ** 2, minlength=whole.shape[0])
    alone = np.flatnonzero(energy > 0)  # rounds with a collapsed column
    position = np.full(whole.shape[1], -1)
    position[kept] = np.arange(len(kept))
    rows = np.concatenate([whole.rows[is_kept], alone])
    columns = np.concatenate([position[whole.columns[is_kept]], len(kept) + np.arange(len(alone))])
    values = np.concatenate([whole.values[is_kept], np.sqrt(energy[alone])])
    column_weights = np.concatenate([whole.column_weights[kept], np.ones(len(alone))])
    shape, order = (whole.shape[0], len(column_weights)), np.lexsort((columns, rows))
    cells = rows[order], columns[order], values[order]
    return Collapsed(Problem(shape, *cells, whole.row_weights, column_weights), kept, is_single)


def _starts(sorted_indices: Indices, n: int) -> Indices:
    """(n + 1,): where each index begins, and the last one ends."""
    return np.searchsorted(sorted_indices, np.arange(n + 1))
