"""The solver of the completion by factors: plain numpy and scipy, deterministic, with a certificate at the end.

    minimise  Σ_seen (U_{t,S} − w_t·h_S)² + λ (Σ_t a_t ‖w_t‖² + Σ_S b_S ‖h_S‖²)        (prob:matrix_completion)

Penalty kind `uniform`: a = b = 1, as the paper prints it. `counts`: a_t, b_S = number of seen cells in the row or
column, as in LIBMF, the paper's solver. In the scaled variables W̃ = √a W, H̃ = √b H the second problem is the first one
with the residual of each cell divided by √(a_t b_S), so the certificate is the same for both.

**Column collapse** (exact). For a column that was seen in round t only, with value u and b = 1, the best factor is
h = w_t u / (‖w_t‖² + λ), at cost λ u² / (‖w_t‖² + λ). So all such columns of a round cost as much as one column of
value √Σu², and their factors follow afterwards. Columns of zeros, such as the empty coalition's, have zero factors.

**Newton's method.** For given row factors W the best column factors solve a ridge problem each,

    (Σ_{t sees S} w_t w_tᵀ + λ b_S I) h_S = Σ_{t sees S} U_{t,S} w_t,

so the objective is a function of W alone. Half its gradient is λ a_t w_t − Σ_S R_{t,S} h_S, with R the seen residual,
and half its Hessian is D − Bᵀ C⁻¹ B: D and C have the ridge matrices of rows and columns on their diagonals, and
B_{S,t} = R_{t,S} I − w_t h_Sᵀ. A step is found by conjugate gradients, preconditioned by D; with D alone in place of
the Hessian the step would be that of alternating ridge solves. Rotating W and H together changes nothing, so the
Hessian is singular; damping keeps the steps finite.

**λ-path.** Random starts end at stationary points with wrong signs. At λ_collapse, the smallest penalty with a zero
optimum, the answer is known. From there λ falls by factors of at most 3, each problem starting at the last answer.
Unused directions are opened along the leading singular vectors of the residual, where the objective can still fall.

**Certificate.** With R̃ the scaled residual, W̃ and H̃ are stationary iff R̃ H̃ = λ W̃ and R̃ᵀ W̃ = λ H̃. A stationary point
is the global optimum, for this and every larger rank, iff ‖R̃‖₂ ≤ λ: it then solves the convex problem
min ‖R̃‖² + 2λ ‖X̃‖_*, which fixes the seen cells, but not always the unseen ones.
"""

from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import eigh
from scipy.sparse import bsr_array, csr_array

from fedworth.arrays import Floats, Indices
from fedworth.errors import CompletionError
from fedworth.games.matrix import UtilityMatrix
from fedworth.names import PenaltyKind, checked_name

Factors = NDArray[np.float64]
"""(n_rows or n_columns, rank)"""

LEAST = 1e-14  # of λ_collapse: a smaller penalty is lost in rounding
PATH_FACTOR = 3.0
PATH_TOLERANCE, TOLERANCE = 1e-4, 1e-10
SMALL_ENOUGH = 1e-8  # a gradient that counts as zero where rounding hides any further progress
PATH_STEPS, MAX_STEPS = 100, 10_000
UNUSED = 1e-6  # a direction with a smaller share of the largest one's energy carries nothing
SPECTRAL_TOLERANCE = 1e-6

MOST_INNER = 200
EXACTNESS = (1e-12, 1e-2)  # of a Newton step, squared: at the end, and far from it
FIRST_DAMPING, LEAST_DAMPING, MOST_DAMPING = 1e-3, 1e-10, 1.0
NOISE = 1e-13  # objectives that differ by less, relatively, are equal up to rounding


class Status(StrEnum):
    """Why the solver stopped."""

    CERTIFIED = "converged; no other factors fit the seen cells better"
    CONVERGED = "converged to a stationary point; a larger rank may do better"
    MAX_SWEEPS = "stopped at max_sweeps before the gradient vanished; raise it, or raise the penalty"
    ROUNDING = "stopped where rounding hides any further progress, before the gradient vanished; raise the penalty"


@dataclass(frozen=True)
class Problem:
    """Seen cells of a matrix, sorted by column and row, and the penalty weights of rows and columns."""

    shape: tuple[int, int]
    rows: Indices  # (n_seen,)
    columns: Indices  # (n_seen,)
    values: Floats  # (n_seen,)
    row_weights: Floats  # (n_rows,), 0 for a row with no seen cell
    column_weights: Floats  # (n_columns,), 0 for a column with no seen cell

    @cached_property
    def _starts(self) -> NDArray[np.int32]:
        """(n_columns + 1,): where the cells of each column begin."""
        return np.searchsorted(self.columns, np.arange(self.shape[1] + 1)).astype(np.int32)

    @cached_property
    def _sparse_rows(self) -> NDArray[np.int32]:
        return self.rows.astype(np.int32)

    def transposed(self, cells: Floats) -> csr_array:
        """(n_columns, n_rows), sparse, with one number per seen cell."""
        return csr_array((cells, self._sparse_rows, self._starts), shape=self.shape[::-1])

    @cached_property
    def seen_by_column(self) -> csr_array:
        """(n_columns, n_rows): 1 where seen."""
        return self.transposed(np.ones(len(self.values)))

    @cached_property
    def seen_by_row(self) -> csr_array:
        """(n_rows, n_columns): 1 where seen."""
        return self.seen_by_column.T.tocsr()

    @cached_property
    def values_by_column(self) -> csr_array:
        """(n_columns, n_rows): the seen values."""
        return self.transposed(self.values)

    def blocks(self, cells: Floats) -> bsr_array:
        """(n_columns · rank, n_rows · rank), sparse, with one block (rank, rank) per seen cell."""
        rank = cells.shape[1]
        shape = (self.shape[1] * rank, self.shape[0] * rank)
        return bsr_array((cells, self._sparse_rows, self._starts), shape=shape)

    def residuals(self, W: Factors, H: Factors) -> Floats:
        """(n_seen,): what the factors leave unexplained of each seen cell."""
        return np.asarray(self.values - np.einsum("ck,ck->c", W[self.rows], H[self.columns]))

    def objective(self, W: Factors, H: Factors, penalty: float) -> float:
        """The value of the problem at these factors."""
        charge = self.row_weights @ (W**2).sum(axis=1) + self.column_weights @ (H**2).sum(axis=1)
        return float((self.residuals(W, H) ** 2).sum() + penalty * charge)


def problem_of(matrix: UtilityMatrix, penalty_kind: PenaltyKind) -> Problem:
    """The completion problem of a utility matrix (of its utilities' sums over blocks)."""
    shape = (matrix.n_rounds, len(matrix.coalitions))
    return problem_of_cells(shape, matrix.round_indices, matrix.coalition_indices, matrix.totals, penalty_kind)


def problem_of_cells(
    shape: tuple[int, int], rows: Indices, columns: Indices, values: Floats, penalty_kind: PenaltyKind
) -> Problem:
    """The completion problem of these cells, which may come in any order."""
    checked_name("penalty kind", PenaltyKind, penalty_kind)
    if len(values) == 0 or not values.any():
        raise CompletionError("no cell with a utility other than 0 was seen, so there is nothing to complete from")
    weights = [np.bincount(rows, minlength=shape[0]), np.bincount(columns, minlength=shape[1])]
    if penalty_kind == "uniform":
        weights = [np.minimum(weight, 1) for weight in weights]
    return _sorted(shape, rows, columns, values, weights[0].astype(float), weights[1].astype(float))


def _sorted(
    shape: tuple[int, int], rows: Indices, columns: Indices, values: Floats, row_weights: Floats, column_weights: Floats
) -> Problem:
    order = np.lexsort((rows, columns))
    return Problem(shape, rows[order], columns[order], values[order], row_weights, column_weights)


@dataclass(frozen=True)
class Collapsed:
    """A smaller problem with the same best row factors, and the way back to the whole one."""

    problem: Problem
    kept: Indices  # columns of the whole problem that are columns of the small one
    is_single: NDArray[np.bool_]  # (n_seen,): cells of the whole problem that are alone in their column

    def expand(self, whole: Problem, W: Factors, H: Factors, penalty: float) -> Factors:
        """All column factors, given the row factors and the column factors of the small problem."""
        full = np.zeros((whole.shape[1], W.shape[1]))  # (n_columns, rank)
        full[self.kept] = H[: len(self.kept)]
        t, columns, u = whole.rows[self.is_single], whole.columns[self.is_single], whole.values[self.is_single]
        full[columns] = W[t] * (u / ((W[t] ** 2).sum(axis=1) + penalty))[:, None]
        return full


def collapse(whole: Problem) -> Collapsed:
    """The problem with one column per round for all columns seen in this round only, and without columns of zeros."""
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
    shape = (whole.shape[0], len(column_weights))
    return Collapsed(_sorted(shape, rows, columns, values, whole.row_weights, column_weights), kept, is_single)


# Certificate


@dataclass(frozen=True, slots=True)
class Certificate:
    """How near factors are to the global optimum, which has stationarity 0 and a spectral ratio of at most 1."""

    stationarity: float
    spectral_ratio: float

    @property
    def is_global(self) -> bool:
        """Whether no factors of any rank do better, up to rounding."""
        return self.stationarity <= SPECTRAL_TOLERANCE and self.spectral_ratio <= 1 + SPECTRAL_TOLERANCE


def certify(problem: Problem, W: Factors, H: Factors, penalty: float) -> Certificate:
    """Stationarity (relative to the penalty's part of the gradient; 0 for zero factors) and ‖R̃‖₂/λ."""
    left = problem.residuals(W, H)
    R = problem.transposed(left)  # (n_columns, n_rows)
    charge_W, charge_H = penalty * problem.row_weights[:, None] * W, penalty * problem.column_weights[:, None] * H
    scale = np.hypot(np.linalg.norm(charge_W), np.linalg.norm(charge_H))
    slope = np.hypot(np.linalg.norm(R.T @ H - charge_W), np.linalg.norm(R @ W - charge_H))
    ratio = float(top_singular(problem, left, 1)[1][0]) / penalty
    return Certificate(float(slope / scale) if scale > 0 else 0.0, ratio)


def top_singular(problem: Problem, cells: Floats, n: int) -> tuple[Floats, Floats]:
    """The leading left singular vectors, (n_rows, n), and singular values of the scaled matrix with these cells.

    They come from the Gram matrix of the rows. The largest entry of each vector is positive.
    """
    n = min(n, problem.shape[0])
    roots = np.sqrt(problem.row_weights[problem.rows] * problem.column_weights[problem.columns])  # (n_seen,)
    scaled = problem.transposed(cells / roots)
    gram = (scaled.T @ scaled).toarray()  # (n_rows, n_rows)
    eigenvalues, vectors = eigh(gram, subset_by_index=(len(gram) - n, len(gram) - 1))
    U = vectors[:, ::-1]
    U = U * np.sign(U[np.abs(U).argmax(axis=0), np.arange(n)])
    return U, np.sqrt(np.maximum(eigenvalues[::-1], 0))


def collapse_penalty(problem: Problem) -> float:
    """λ_collapse: the smallest penalty at which the best factors are zero."""
    small = collapse(problem).problem
    return float(top_singular(small, small.values, 1)[1][0])


# Newton's method


class Point(NamedTuple):
    """Row factors with the best column factors for them."""

    W: Factors
    H: Factors
    column_grams: Floats  # (n_columns, rank, rank): ridge matrices of the columns
    left: Floats  # (n_seen,): the residual
    objective: float
    slope: Factors  # (n_rows, rank): half the gradient; that of the columns is zero
    steepness: float  # its norm relative to that of the penalty's part


class Descent(NamedTuple):
    """Where Newton's method ended."""

    W: Factors
    H: Factors
    n_steps: int
    is_stationary: bool


def best_columns(problem: Problem, W: Factors, penalty: float) -> tuple[Factors, Floats]:
    """The best column factors for these row factors, and the columns' ridge matrices."""
    grams = _ridge_matrices(problem.seen_by_column, W, penalty * problem.column_weights)
    return np.linalg.solve(grams, (problem.values_by_column @ W)[:, :, None])[:, :, 0], grams


def _ridge_matrices(seen: Any, factors: Factors, charges: Floats) -> Floats:
    """(n, rank, rank): the sum of f fᵀ over the seen factors, plus the charge on the diagonal (1 where it is 0)."""
    rank = factors.shape[1]
    squares = (factors[:, :, None] * factors[:, None, :]).reshape(len(factors), rank * rank)
    grams: Floats = (seen @ squares).reshape(-1, rank, rank)
    grams[:, np.arange(rank), np.arange(rank)] += np.where(charges > 0, charges, 1.0)[:, None]
    return grams


def point(problem: Problem, W: Factors, penalty: float) -> Point:
    """These row factors with the best column factors for them."""
    H, grams = best_columns(problem, W, penalty)
    left = problem.residuals(W, H)
    charge_W, charge_H = penalty * problem.row_weights[:, None] * W, penalty * problem.column_weights[:, None] * H
    slope = charge_W - problem.transposed(left).T @ H
    scale = np.hypot(np.linalg.norm(charge_W), np.linalg.norm(charge_H))
    objective = float((left**2).sum() + (charge_W * W).sum() + (charge_H * H).sum())
    return Point(W, H, grams, left, objective, slope, float(np.linalg.norm(slope) / scale) if scale > 0 else 0.0)


class Hessian:
    """Half the Hessian at a point, D − Bᵀ C⁻¹ B, as sparse matrices over the entries of W, row by row."""

    def __init__(self, problem: Problem, at: Point, penalty: float) -> None:
        rank = at.W.shape[1]
        row_grams = _ridge_matrices(problem.seen_by_row, at.H, penalty * problem.row_weights)
        cells = -at.W[problem.rows][:, :, None] * at.H[problem.columns][:, None, :]  # (n_seen, rank, rank)
        cells[:, np.arange(rank), np.arange(rank)] += at.left[:, None]
        self._B = problem.blocks(cells)
        self._B_T = self._B.T
        self._D_inverse = _block_diagonal(np.asarray(np.linalg.inv(row_grams)))
        self._C_inverse = _block_diagonal(np.asarray(np.linalg.inv(at.column_grams)))

    def alternating_step(self, slope: Floats) -> Floats:
        """−D⁻¹ slope: the row step of alternating ridge solves; slopes and steps are flat arrays."""
        return np.asarray(-(self._D_inverse @ slope))

    def newton_step(self, slope: Floats, damping: float, exactness: float) -> Floats:
        """−(Hessian + damping · D)⁻¹ slope by conjugate gradients.

        They stop when the share `exactness` of the slope is left (squared, in the norm of D⁻¹), or where the curvature
        is not positive.
        """
        step, missing = np.zeros(len(slope)), -slope
        direction, scaled, before, enough = missing, missing, 1.0, 0.0  # scaled = D · direction
        for n_inner in range(MOST_INNER):
            eased: Floats = np.asarray(self._D_inverse @ missing)
            size = float(missing @ eased)
            if n_inner == 0:
                direction, enough = eased, size * exactness
            elif size <= enough:
                break
            else:
                direction, scaled = eased + size / before * direction, missing + size / before * scaled
            before = size
            curved = (1 + damping) * scaled - self._B_T @ (self._C_inverse @ (self._B @ direction))
            curvature = float(direction @ curved)
            if not curvature > 0:
                return direction if n_inner == 0 else step
            step = step + size / curvature * direction
            missing = missing - size / curvature * curved
        return step


def _block_diagonal(blocks: Floats) -> bsr_array:
    n, rank = blocks.shape[:2]
    places = np.arange(n + 1, dtype=np.int32)
    return bsr_array((blocks, places[:-1], places), shape=(n * rank, n * rank))


def descend(problem: Problem, W: Factors, penalty: float, *, max_steps: int, tolerance: float) -> Descent:
    """Newton steps from these row factors until the gradient vanishes, relative to the penalty's part of it.

    If float64 shows no step that gets lower before that, a gradient below SMALL_ENOUGH counts as zero.
    """
    at, damping = point(problem, W, penalty), FIRST_DAMPING
    for n_steps in range(max_steps + 1):
        if at.steepness <= tolerance or n_steps == max_steps:
            break
        reached, damping = _next(problem, at, penalty, damping)
        if reached is None:
            tolerance = max(tolerance, SMALL_ENOUGH)
            break
        at = reached
    return Descent(at.W, at.H, n_steps, at.steepness <= tolerance)


def _next(problem: Problem, at: Point, penalty: float, damping: float) -> tuple[Point | None, float]:
    """The Newton step, damped until it gets lower; else the alternating one; None where neither makes progress."""
    hessian, slope = Hessian(problem, at, penalty), at.slope.ravel()
    exactness = min(max(at.steepness, EXACTNESS[0]), EXACTNESS[1])
    while damping <= MOST_DAMPING:
        step = hessian.newton_step(slope, damping, exactness).reshape(at.W.shape)
        reached = point(problem, at.W + step, penalty)
        if _is_progress(at, reached):
            return reached, max(damping / 4, LEAST_DAMPING)
        damping *= 10
    reached = point(problem, at.W + hessian.alternating_step(slope).reshape(at.W.shape), penalty)
    return (reached if _is_progress(at, reached) else None), MOST_DAMPING


def _is_progress(at: Point, reached: Point) -> bool:
    """Whether the objective is lower or, where rounding hides that, the slope clearly smaller."""
    if reached.objective < at.objective * (1 - NOISE):
        return True
    is_level = reached.objective <= at.objective * (1 + NOISE)
    return is_level and bool(np.linalg.norm(reached.slope) < 0.9 * np.linalg.norm(at.slope))


# The λ-path


@dataclass(frozen=True)
class Solution:
    """Factors of the whole problem, and how good they are known to be."""

    W: Factors  # (n_rows, rank)
    H: Factors  # (n_columns, rank)
    penalty: float
    objective: float
    certificate: Certificate
    status: Status
    n_sweeps: int


def solve(whole: Problem, rank: int, penalty: float, *, max_sweeps: int = MAX_STEPS) -> Solution:
    """The factors of this rank that minimise the problem at this penalty (absolute)."""
    small = collapse(whole)
    problem, limit = small.problem, collapse_penalty(small.problem)
    if rank < 1:
        raise CompletionError(f"rank {rank}: expected 1 or more")
    if not penalty > 0:
        raise CompletionError(f"penalty λ = {penalty}: expected a positive number")
    if penalty < LEAST * limit:
        raise CompletionError(
            f"penalty λ = {penalty:.6g}: expected at least {LEAST * limit:.6g}, {LEAST} of λ_collapse; a smaller one "
            "is lost in the rounding of float64"
        )
    if penalty >= limit:
        raise CompletionError(
            f"penalty λ = {penalty:.6g} is not below λ_collapse = {limit:.6g}: every completed utility, and "
            "so every value, would be 0; lower it, or give it as a fraction with --relative-penalty"
        )
    n_steps, W, H = 0, np.zeros((problem.shape[0], rank)), np.zeros((problem.shape[1], rank))
    for penalty_here in _path(limit, penalty):
        opened = _opened(problem, W, H, penalty_here)
        walked = descend(problem, opened, penalty_here, max_steps=PATH_STEPS, tolerance=PATH_TOLERANCE)
        n_steps += walked.n_steps
        W, H = _balanced(problem, walked.W, walked.H)
    final = _finish(problem, W, H, penalty, max_sweeps)
    H = small.expand(whole, final.W, final.H, penalty)
    certificate = certify(problem, final.W, final.H, penalty)
    if final.is_stationary:
        status = Status.CERTIFIED if certificate.is_global else Status.CONVERGED
    else:
        status = Status.MAX_SWEEPS if final.n_steps >= max_sweeps else Status.ROUNDING
    objective, n_steps = whole.objective(final.W, H, penalty), n_steps + final.n_steps
    return Solution(final.W, H, penalty, objective, certificate, status, n_steps)


def _path(limit: float, penalty: float) -> list[float]:
    """Penalties from just under the limit to just above the wanted one, falling by factors of at most 3."""
    n_steps = int(np.ceil((np.log(limit) - np.log(penalty)) / np.log(PATH_FACTOR)))  # limit / penalty may overflow
    return [float(limit * (penalty / limit) ** (k / n_steps)) for k in range(1, n_steps)]


def _finish(problem: Problem, W: Factors, H: Factors, penalty: float, max_steps: int) -> Descent:
    """Down to a stationary point, and on while an unused direction could lower the objective."""
    # With a tiny penalty float64 cannot resolve TOLERANCE: R is known to about ε‖U‖, the penalty's part is λ.
    weights = problem.row_weights[problem.rows] * problem.column_weights[problem.columns]
    floor = 8 * np.finfo(np.float64).eps * float(np.sqrt((problem.values**2 / weights).sum())) / penalty
    n_steps, is_stationary, tolerance = 0, False, min(max(TOLERANCE, floor), SMALL_ENOUGH)
    for _ in range(W.shape[1] + 1):  # each time one more direction is used
        opened = _opened(problem, W, H, penalty)
        walked = descend(problem, opened, penalty, max_steps=max_steps - n_steps, tolerance=tolerance)
        n_steps, is_stationary = n_steps + walked.n_steps, walked.is_stationary
        W, H = _balanced(problem, walked.W, walked.H)
        is_over = n_steps >= max_steps or len(_unused(problem, W)) == 0
        if is_over or certify(problem, W, H, penalty).is_global:
            break
    return Descent(W, H, n_steps, is_stationary)


def _balanced(problem: Problem, W: Factors, H: Factors) -> tuple[Factors, Factors]:
    """The same product as W̃ = U√Σ and H̃ = V√Σ, which is cheapest under the penalty; largest directions first."""
    a, b = _roots(problem.row_weights), _roots(problem.column_weights)
    Q_W, R_W = np.linalg.qr(W * a)
    Q_H, R_H = np.linalg.qr(H * b)
    U, sigma, V_T = np.linalg.svd(R_W @ R_H.T, full_matrices=False)
    left, right = Q_W @ U, Q_H @ V_T.T  # (n_rows, n), (n_columns, n), n at most the rank
    root = np.sqrt(sigma) * np.sign(left[np.abs(left).argmax(axis=0), np.arange(left.shape[1])])
    missing = ((0, 0), (0, W.shape[1] - left.shape[1]))  # a short side has fewer directions than the rank
    return np.pad(left * root / a, missing), np.pad(right * root / b, missing)


def _opened(problem: Problem, W: Factors, H: Factors, penalty: float) -> Factors:
    """Row factors with unused directions along the residual's singular vectors with σ > λ.

    At a stationary point adding Σ (σ − λ) u vᵀ lowers the convex objective by Σ (σ − λ)² or more.
    """
    unused = _unused(problem, W)
    if len(unused) == 0:
        return W
    U, sigma = top_singular(problem, problem.residuals(W, H), len(unused))
    opened = W.copy()
    fresh = U * np.sqrt(np.maximum(sigma - penalty, 0)) / _roots(problem.row_weights)
    opened[:, unused[: fresh.shape[1]]] = fresh
    return opened


def _unused(problem: Problem, W: Factors) -> Indices:
    """Which directions of balanced factors carry nothing."""
    energy = (W**2 * problem.row_weights[:, None]).sum(axis=0)  # (rank,)
    return np.flatnonzero(energy <= UNUSED * energy.max())


def _roots(weights: Floats) -> Floats:
    """√ of the penalty weights as a column; 1 for a row or column with no seen cell, whose factors are zero."""
    return np.asarray(np.sqrt(np.where(weights > 0, weights, 1))[:, None])
