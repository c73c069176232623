"""The solver: from λ_collapse down to the wanted λ, warm, deterministic, with evidence at the end.

Random starts lock into stationary points of the wrong sign. So the path starts where the answer is known (zero, at
λ_collapse) and lowers λ by factors of 3, by alternating solves; the last step is walked to its end by Newton's method.
Before each step, directions that carry nothing are reopened along the leading singular vectors of the residual: exactly
those in which the objective can still fall when ‖R‖₂ > λ. At first these are those of the zero-filled matrix.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedworth.completion.als import Status, Sweeps, column_step, sweep
from fedworth.completion.certificate import Certificate, certify, spectral_norm, top_singular
from fedworth.completion.kernels.layout import Factors
from fedworth.completion.kernels.points import residuals
from fedworth.completion.newton import SMALL_ENOUGH, descend
from fedworth.completion.problem import Collapsed, Problem, collapse, problem_of
from fedworth.errors import CompletionError
from fedworth.games.matrix import UtilityMatrix
from fedworth.names import PenaltyKind

LEAST = 1e-18  # of λ_collapse: a penalty far below rounding
PATH_FACTOR = 3.0
PATH_TOLERANCE, TOLERANCE = 1e-4, 1e-10
PATH_SWEEPS, MAX_SWEEPS = 200, 10_000
DEAD = 1e-6
ROUNDING = 8 * np.finfo(np.float64).eps


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


def solve(
    whole: Problem, rank: int, penalty: float, *, max_sweeps: int = MAX_SWEEPS, start: Factors | None = None
) -> Solution:
    """The factors of this rank that minimise the problem at this penalty (absolute). From `start`, row factors near
    the answer, the path is left out; unless what is reached so is certified, it is walked after all."""
    small = collapse(whole)
    problem, limit = small.problem, collapse_penalty(small.problem)
    _refuse_unusable(rank, penalty, limit)
    if start is not None:
        W = np.array(start, dtype=np.float64, order="C")
        final = _descended(problem, *_balanced(problem, W, column_step(problem, W, penalty)), penalty, max_sweeps)
        solution = _finish(whole, small, final, penalty, final.n_sweeps, max_sweeps)
        if solution.status is Status.CERTIFIED:
            return solution
    n_sweeps, (W, H) = 0, _nothing(problem, rank)
    for step in _path(limit, penalty):
        opened = _reopened(problem, W, H, step)
        walked = sweep(problem, opened, step, max_sweeps=PATH_SWEEPS, tolerance=PATH_TOLERANCE)
        n_sweeps += walked.n_sweeps
        W, H = _balanced(problem, walked.W, walked.H)
    final = _descended(problem, W, H, penalty, max_sweeps)
    return _finish(whole, small, final, penalty, n_sweeps + final.n_sweeps, max_sweeps)


def collapse_penalty(problem: Problem) -> float:
    """λ_collapse: the smallest penalty at which the best factors are zero."""
    return spectral_norm(problem, problem.transposed.values)


def collapse_penalty_of(matrix: UtilityMatrix, penalty_kind: PenaltyKind) -> float:
    """λ_collapse of a utility matrix."""
    return collapse_penalty(collapse(problem_of(matrix, penalty_kind)).problem)


def _descended(problem: Problem, W: Factors, H: Factors, penalty: float, max_sweeps: int) -> Sweeps:
    """Down to a stationary point; and on, while the residual shows a way down that a dead direction could take."""
    n_sweeps, is_stationary, tolerance = 0, False, _tolerance(problem, penalty)
    for _ in range(W.shape[1] + 1):  # each time the residual's leading direction comes alive
        start = _reopened(problem, W, H, penalty)
        walked = descend(problem, start, penalty, max_sweeps=max_sweeps - n_sweeps, tolerance=tolerance)
        n_sweeps, is_stationary = n_sweeps + walked.n_sweeps, walked.is_stationary
        W, H = _balanced(problem, walked.W, walked.H)
        is_over = n_sweeps >= max_sweeps or len(_dead(problem, W)) == 0
        if is_over or certify(problem, W, H, penalty).is_global:
            break
    return Sweeps(W, H, n_sweeps, is_stationary)


def _tolerance(problem: Problem, penalty: float) -> float:
    """Where the gradient counts as zero: TOLERANCE, or what float64 can tell when the penalty is tiny. The residual
    is known to about ε‖U‖, and the penalty's part of the gradient is λ."""
    squares = problem.values**2 / (problem.row_weights[problem.rows] * problem.column_weights[problem.columns])
    floor = ROUNDING * float(np.sqrt(squares.sum())) / penalty
    return min(max(TOLERANCE, floor), SMALL_ENOUGH)


def _path(limit: float, penalty: float) -> list[float]:
    """Penalties from just under the limit to just above the wanted one, falling by factors of at most 3."""
    n_steps = int(np.ceil((np.log(limit) - np.log(penalty)) / np.log(PATH_FACTOR)))  # limit / penalty may overflow
    return [float(limit * (penalty / limit) ** (k / n_steps)) for k in range(1, n_steps)] if n_steps > 1 else []


def _nothing(problem: Problem, rank: int) -> tuple[Factors, Factors]:
    """Zero factors: the answer at λ_collapse."""
    return np.zeros((problem.shape[0], rank)), np.zeros((problem.shape[1], rank))


def _balanced(problem: Problem, W: Factors, H: Factors) -> tuple[Factors, Factors]:
    """The same product with W̃ = U√Σ and H̃ = V√Σ: cheapest under the penalty, directions in order of weight."""
    Q_W, R_W = np.linalg.qr(W * _roots(problem.row_weights))
    Q_H, R_H = np.linalg.qr(H * _roots(problem.column_weights))
    U, sigma, V_T = np.linalg.svd(R_W @ R_H.T, full_matrices=False)
    left, right = Q_W @ U, Q_H @ V_T.T  # (n_rows, rank), (n_columns, rank)
    signs = np.sign(left[np.abs(left).argmax(axis=0), np.arange(left.shape[1])])
    root = np.sqrt(sigma) * signs
    return _padded(left * root / _roots(problem.row_weights), W), _padded(
        right * root / _roots(problem.column_weights), H
    )


def _reopened(problem: Problem, W: Factors, H: Factors, penalty: float) -> Factors:
    """Row factors with dead directions given to the residual's singular vectors with σ > λ: at a stationary point,
    adding Σ (σ − λ) u vᵀ lowers the convex objective by Σ (σ − λ)² or more."""
    dead = _dead(problem, W)
    if len(dead) == 0:
        return W
    U, sigma = top_singular(problem, residuals(problem.transposed, H, W), len(dead))
    reopened = W.copy()
    fresh = U * np.sqrt(np.maximum(sigma - penalty, 0)) / _roots(problem.row_weights)  # (n_rows, at most n_dead)
    reopened[:, dead[: fresh.shape[1]]] = fresh
    return reopened


def _dead(problem: Problem, W: Factors) -> NDArray[np.int64]:
    """Which directions of balanced factors carry nothing."""
    energy = (W**2 * problem.row_weights[:, None]).sum(axis=0)  # (rank,)
    return np.flatnonzero(energy <= DEAD * energy.max())


def _finish(
    whole: Problem, small: Collapsed, final: Sweeps, penalty: float, n_sweeps: int, max_sweeps: int
) -> Solution:
    W, H = final.W, final.H
    H_full = small.expand(whole, W, H, penalty)
    certificate = certify(small.problem, W, H, penalty)
    if final.is_stationary:
        status = Status.CERTIFIED if certificate.is_global else Status.CONVERGED
    else:
        status = Status.MAX_SWEEPS if final.n_sweeps >= max_sweeps else Status.ROUNDING
    return Solution(W, H_full, penalty, whole.objective(W, H_full, penalty), certificate, status, n_sweeps)


def _refuse_unusable(rank: int, penalty: float, limit: float) -> None:
    if rank < 1:
        raise CompletionError(f"rank {rank}: expected 1 or more")
    if not penalty > 0:
        raise CompletionError(f"penalty λ = {penalty}: expected a positive number")
    if penalty < LEAST * limit:
        raise CompletionError(
            f"penalty λ = {penalty:.6g}: expected at least {LEAST * limit:.6g}, {LEAST} of λ_collapse; float64 cannot "
            "tell a smaller one from none"
        )
    if penalty >= limit:
        raise CompletionError(
            f"penalty λ = {penalty:.6g} is not below λ_collapse = {limit:.6g}: every completed utility, and "
            "so every value, would be 0; lower it, or give it as a fraction with --relative-penalty"
        )


def _roots(weights: NDArray[np.float64]) -> NDArray[np.float64]:
    """√ of the penalty weights as a column; rows and columns with no seen cell have zero factors at any scale."""
    return np.asarray(np.sqrt(np.where(weights > 0, weights, 1))[:, None])


def _padded(factors: Factors, like: Factors) -> Factors:
    """Zero directions added where a short side has fewer than the rank."""
    if factors.shape == like.shape:
        return factors
    return np.pad(factors, ((0, 0), (0, like.shape[1] - factors.shape[1])))
