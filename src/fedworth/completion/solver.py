"""The solver: from λ_collapse down to the wanted λ, warm, deterministic, with evidence at the end.

Random starts lock into stationary points of the wrong sign. So the path starts where the answer is known (zero, at
λ_collapse), at the leading singular vectors of the zero-filled matrix, and lowers λ by factors of 3. After each step
the factors are balanced; directions that have died are reopened along the leading singular vectors of the residual:
exactly those in which the objective can still fall when ‖R‖₂ > λ.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedworth.completion.als import Status, kernel_of, sweep
from fedworth.completion.certificate import Certificate, certify, spectral_norm, top_singular
from fedworth.completion.problem import Collapsed, Factors, Problem, collapse, problem_of
from fedworth.errors import CompletionError
from fedworth.utility.matrix import UtilityMatrix

PATH_FACTOR = 3.0
PATH_TOLERANCE, TOLERANCE = 1e-4, 1e-10
PATH_SWEEPS, MAX_SWEEPS = 200, 10_000
DEAD, REOPENED = 1e-6, 1e-3


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


def solve(whole: Problem, rank: int, penalty: float, *, max_sweeps: int = MAX_SWEEPS) -> Solution:
    """The factors of this rank that minimise the problem at this penalty (absolute)."""
    small = collapse(whole)
    limit = collapse_penalty(small.problem)
    _refuse_unusable(rank, penalty, limit)
    kernel = kernel_of(small.problem)
    W, n_sweeps = _start(small.problem, rank), 0
    for step in _path(limit, penalty):
        walked = sweep(kernel, W, step, max_sweeps=PATH_SWEEPS, tolerance=PATH_TOLERANCE)
        n_sweeps += walked.n_sweeps
        W = _reopened(small.problem, *_balanced(small.problem, walked.W, walked.H))
    final = sweep(kernel, W, penalty, max_sweeps=max_sweeps, tolerance=TOLERANCE)
    return _finish(
        whole,
        small,
        *_balanced(small.problem, final.W, final.H),
        penalty,
        final.is_stationary,
        n_sweeps + final.n_sweeps,
    )


def collapse_penalty(problem: Problem) -> float:
    """λ_collapse: the smallest penalty at which the best factors are zero."""
    return spectral_norm(problem.scaled(problem.values))


def collapse_penalty_of(matrix: UtilityMatrix, penalty_kind: str) -> float:
    """λ_collapse of a utility matrix."""
    return collapse_penalty(collapse(problem_of(matrix, penalty_kind)).problem)


def _path(limit: float, penalty: float) -> list[float]:
    """Penalties from just under the limit to just above the wanted one, falling by factors of at most 3."""
    n_steps = int(np.ceil(np.log(limit / penalty) / np.log(PATH_FACTOR)))
    return [float(limit * (penalty / limit) ** (k / n_steps)) for k in range(1, n_steps)] if n_steps > 1 else []


def _start(problem: Problem, rank: int) -> Factors:
    """Row factors U√Σ of the zero-filled matrix, brought back from the scaled variables."""
    U, sigma, _ = top_singular(problem.scaled(problem.values), rank)
    W = np.zeros((problem.shape[0], rank))
    W[:, : len(sigma)] = U * np.sqrt(sigma)
    return np.asarray(W / _roots(problem.row_weights))


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


def _reopened(problem: Problem, W: Factors, H: Factors) -> Factors:
    """Row factors with dead directions replaced by the residual's leading ones, small."""
    energy = (W**2 * problem.row_weights[:, None]).sum(axis=0)  # (rank,)
    dead = np.flatnonzero(energy <= DEAD * energy.max()) if energy.max() > 0 else np.arange(len(energy))
    if len(dead) == 0:
        return W
    U, sigma, _ = top_singular(problem.scaled(problem.residuals(W, H)), len(dead))
    fresh = REOPENED * U * np.sqrt(sigma) / _roots(problem.row_weights)
    reopened = W.copy()
    reopened[:, dead[: fresh.shape[1]]] = fresh
    return reopened


def _finish(
    whole: Problem, small: Collapsed, W: Factors, H: Factors, penalty: float, is_stationary: bool, n_sweeps: int
) -> Solution:
    H_full = small.expand(whole, W, H, penalty)
    certificate = certify(small.problem, W, H, penalty)
    status = Status.MAX_SWEEPS
    if is_stationary:
        status = Status.CERTIFIED if certificate.is_global else Status.CONVERGED
    return Solution(W, H_full, penalty, whole.objective(W, H_full, penalty), certificate, status, n_sweeps)


def _refuse_unusable(rank: int, penalty: float, limit: float) -> None:
    if rank < 1:
        raise CompletionError(f"rank {rank}: expected 1 or more")
    if not penalty > 0:
        raise CompletionError(f"penalty λ = {penalty}: expected a positive number")
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
    return np.pad(factors, ((0, 0), (0, like.shape[1] - factors.shape[1])))
