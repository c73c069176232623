"""When is a stationary point the global optimum? The certificate, in the scaled variables of `problem`.

With R the seen residual (scaled), W̃ and H̃ are stationary iff R H̃ = λ W̃ and Rᵀ W̃ = λ H̃; and a stationary point is
globally optimal, for this and every larger rank, iff ‖R‖₂ ≤ λ: the problem is then the convex one,
min ‖R‖² + 2λ ‖X̃‖_*. λ_collapse = ‖zero-filled seen matrix (scaled)‖₂ is the smallest λ whose optimum is zero.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import eigh

from fedworth.completion.kernels.layout import Factors
from fedworth.completion.kernels.points import pulls, residuals, scaled_gram
from fedworth.completion.problem import Problem

SPECTRAL_TOLERANCE = 1e-6


@dataclass(frozen=True, slots=True)
class Certificate:
    """How near factors are to the global optimum: 0 and at most 1 is there."""

    stationarity: float
    spectral_ratio: float

    @property
    def is_global(self) -> bool:
        """Whether no factors of any rank do better, up to rounding."""
        return self.stationarity <= SPECTRAL_TOLERANCE and self.spectral_ratio <= 1 + SPECTRAL_TOLERANCE


def certify(problem: Problem, W: Factors, H: Factors, penalty: float) -> Certificate:
    """Stationarity (relative) and spectral ratio ‖R‖₂/λ of these factors."""
    left = residuals(problem.transposed, H, W)
    return Certificate(stationarity(problem, W, H, penalty), spectral_norm(problem, left) / penalty)


def stationarity(problem: Problem, W: Factors, H: Factors, penalty: float) -> float:
    """How far the gradient is from zero, relative to the penalty's part of it (0 for zero factors)."""
    pulled_W = pulls(problem.transposed, residuals(problem.transposed, H, W), H, problem.shape[0])
    pulled_H = pulls(problem.cells, residuals(problem.cells, W, H), W, problem.shape[1])
    charge_W, charge_H = penalty * problem.row_weights[:, None] * W, penalty * problem.column_weights[:, None] * H
    scale = np.sqrt((charge_W**2).sum() + (charge_H**2).sum())
    if scale == 0:
        return 0.0
    return float(np.sqrt(((pulled_W - charge_W) ** 2).sum() + ((pulled_H - charge_H) ** 2).sum()) / scale)


def spectral_norm(problem: Problem, values: NDArray[np.float64]) -> float:
    """The largest singular value of the scaled matrix with these values, column by column, in the seen cells."""
    gram = scaled_gram(problem.transposed, values, problem.row_weights)  # (n_rows, n_rows)
    return float(np.sqrt(max(eigh(gram, eigvals_only=True, subset_by_index=(len(gram) - 1, len(gram) - 1))[0], 0)))


def top_singular(
    problem: Problem, values: NDArray[np.float64], n: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Its `n` leading left singular vectors and singular values, from the small Gram matrix M Mᵀ of its rows.
    Signs are settled: the largest entry of each vector is positive."""
    gram, n = scaled_gram(problem.transposed, values, problem.row_weights), min(n, problem.shape[0])
    eigenvalues, vectors = eigh(gram, subset_by_index=(len(gram) - n, len(gram) - 1))
    U = vectors[:, ::-1]  # (n_rows, n)
    U = U * np.sign(U[np.abs(U).argmax(axis=0), np.arange(n)])
    return U, np.sqrt(np.maximum(eigenvalues[::-1], 0))
