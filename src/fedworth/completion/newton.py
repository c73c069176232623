"""Newton's method on the row factors: the end of the solver's way, where alternating solves become slow.

With the best column factors H(W) put in, the objective is a function of W alone. Half its gradient is

    λ a_t w_t − Σ_S R_{t,S} h_S,        R the seen residual,

and its derivative along D needs only one ridge solve a column, dh_S = G_S⁻¹ Σ_t (R_{t,S} d_t − (d_t·h_S) w_t). So each
Newton step is found by conjugate gradients, preconditioned by the rows' own ridge problems. Turning W and H together
changes nothing, so the Hessian is singular; damping keeps rounding from growing along those turns. The more it is
damped, the nearer the step is to the alternating solve's, which is what remains if nothing better is found.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from fedworth.completion.als import Kernel, Sweeps, column_step, grams, row_step
from fedworth.completion.problem import Factors

MOST_INNER = 200
EXACTNESS = (1e-12, 1e-2)  # of a step, squared: at the end, and far from it
FIRST_DAMPING, LEAST_DAMPING, MOST_DAMPING = 1e-4, 1e-10, 1.0
EASED, STIFFENED = 4.0, 10.0  # how damping falls after a good step, and rises after a bad one
NOISE = 1e-13  # objectives that differ by less, relatively, are equal up to rounding
CLEARLY = 0.9
SMALL_ENOUGH = 1e-8  # a gradient that counts as zero where rounding hides any further fall


@dataclass(frozen=True)
class Point:
    """Row factors, their best column factors, and the slope there."""

    W: Factors
    H: Factors
    residual: sparse.csr_array  # (n_rows, n_columns)
    slope: Factors  # (n_rows, rank), half the gradient
    objective: float


def descend(kernel: Kernel, W: Factors, penalty: float, *, max_sweeps: int, tolerance: float) -> Sweeps:
    """Newton steps from these row factors until the gradient vanishes (relative to the penalty's part of it), or
    until float64 shows no step that gets lower; a gradient below SMALL_ENOUGH then counts as zero."""
    point, damping, slope = _point(kernel, W, penalty), FIRST_DAMPING, np.inf
    for n_sweeps in range(max_sweeps + 1):
        slope = _relative_slope(kernel, point, penalty)
        if slope <= tolerance or n_sweeps == max_sweeps:
            break
        reached, damping = _next(kernel, point, penalty, damping)
        if reached is None:
            tolerance = max(tolerance, SMALL_ENOUGH)
            break
        point = reached
    return Sweeps(point.W, point.H, n_sweeps, slope <= tolerance)


def _point(kernel: Kernel, W: Factors, penalty: float) -> Point:
    problem, H = kernel.problem, column_step(kernel, W, penalty)
    residual = problem.by_row(problem.residuals(W, H))
    slope = penalty * problem.row_weights[:, None] * W - residual @ H
    return Point(W, H, residual, slope, problem.objective(W, H, penalty))


def _relative_slope(kernel: Kernel, point: Point, penalty: float) -> float:
    """How far the gradient is from zero, as in `certificate.stationarity`; the columns' part of it is zero."""
    charge_W = penalty * kernel.problem.row_weights[:, None] * point.W
    charge_H = penalty * kernel.problem.column_weights[:, None] * point.H
    scale = np.sqrt((charge_W**2).sum() + (charge_H**2).sum())
    return float(np.linalg.norm(point.slope) / scale) if scale > 0 else 0.0


def _next(kernel: Kernel, point: Point, penalty: float, damping: float) -> tuple[Point | None, float]:
    """The Newton step, damped until it gets lower; else the alternating solve's; None where rounding hides any fall."""
    while damping <= MOST_DAMPING:
        reached = _point(kernel, point.W + _newton_step(kernel, point, penalty, damping), penalty)
        if _is_progress(point, reached):
            return reached, max(damping / EASED, LEAST_DAMPING)
        damping *= STIFFENED
    reached = _point(kernel, row_step(kernel, point.H, penalty), penalty)
    return (reached if _is_progress(point, reached) else None), MOST_DAMPING


def _is_progress(point: Point, reached: Point) -> bool:
    """A lower objective; or, where rounding hides whether it is lower, a clearly smaller slope."""
    if reached.objective < point.objective * (1 - NOISE):
        return True
    is_level = reached.objective <= point.objective * (1 + NOISE)
    return is_level and bool(np.linalg.norm(reached.slope) < CLEARLY * np.linalg.norm(point.slope))


def _newton_step(kernel: Kernel, point: Point, penalty: float, damping: float) -> Factors:
    """−(Hessian + damping · row Grams)⁻¹ slope by conjugate gradients, as far as the curvature is positive."""
    row_grams = grams(kernel.pattern, point.H, penalty * kernel.problem.row_weights)  # (n_rows, rank, rank)
    column_grams = grams(kernel.pattern_T, point.W, penalty * kernel.problem.column_weights)
    ease, best_columns = _inverse(row_grams), _inverse(column_grams)
    left, step = -point.slope, np.zeros_like(point.W)  # left: what the step does not yet cancel
    direction = _apply(ease, left)
    size = first = float((left * direction).sum())
    enough = first * float(np.clip(_relative_slope(kernel, point, penalty), *EXACTNESS))
    for n_inner in range(MOST_INNER):
        curved = _curvature(kernel, point, best_columns, direction, penalty) + damping * _apply(row_grams, direction)
        curvature = float((direction * curved).sum())
        if not curvature > 0:
            return direction if n_inner == 0 else step
        step, left = step + size / curvature * direction, left - size / curvature * curved
        eased = _apply(ease, left)
        size, before = float((left * eased).sum()), size
        if size <= enough:
            break
        direction = eased + size / before * direction
    return step


def _curvature(kernel: Kernel, point: Point, best_columns: NDArray[np.float64], D: Factors, penalty: float) -> Factors:
    """The derivative of the slope along D."""
    problem, rows, columns = kernel.problem, kernel.problem.rows, kernel.problem.columns
    moved = np.einsum("ij,ij->i", D[rows], point.H[columns])  # (n_seen,): d_t·h_S
    d_H = _apply(best_columns, point.residual.T @ D - problem.by_row(moved).T @ point.W)  # (n_columns, rank)
    d_residual = -moved - np.einsum("ij,ij->i", point.W[rows], d_H[columns])  # (n_seen,)
    pulled = problem.by_row(d_residual) @ point.H + point.residual @ d_H  # (n_rows, rank)
    return np.asarray(penalty * problem.row_weights[:, None] * D - pulled)


def _inverse(matrices: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray(np.linalg.inv(matrices), dtype=np.float64)


def _apply(matrices: NDArray[np.float64], vectors: Factors) -> Factors:
    """One small matrix times one vector, for each."""
    return np.asarray(np.matmul(matrices, vectors[:, :, None])[:, :, 0])
