"""When is a stationary point the global optimum? The certificate, in the scaled variables of `problem`.

With R the seen residual (scaled), W̃ and H̃ are stationary iff R H̃ = λ W̃ and Rᵀ W̃ = λ H̃; and a stationary point is
globally optimal, for this and every larger rank, iff ‖R‖₂ ≤ λ: the problem is then the convex one,
min ‖R‖² + 2λ ‖X̃‖_*. λ_collapse = ‖zero-filled seen matrix (scaled)‖₂ is the smallest λ whose optimum is zero.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from fedworth.completion.problem import Factors, Problem

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
    residual = problem.scaled(problem.residuals(W, H))
    return Certificate(stationarity(problem, W, H, penalty), spectral_norm(residual) / penalty)


def stationarity(problem: Problem, W: Factors, H: Factors, penalty: float) -> float:
    """How far the gradient is from zero, relative to the penalty's part of it (0 for zero factors)."""
    residual = problem.by_row(problem.residuals(W, H))
    charge_W, charge_H = penalty * problem.row_weights[:, None] * W, penalty * problem.column_weights[:, None] * H
    scale = np.sqrt((charge_W**2).sum() + (charge_H**2).sum())
    if scale == 0:
        return 0.0
    slope = ((residual @ H - charge_W) ** 2).sum() + ((residual.T @ W - charge_H) ** 2).sum()
    return float(np.sqrt(slope) / scale)


def spectral_norm(matrix: sparse.csr_array) -> float:
    """The largest singular value of a matrix with few rows."""
    return float(top_singular(matrix, 1)[1][0])


def top_singular(
    matrix: sparse.csr_array, n: int
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """The `n` leading singular triples (U, σ, V) of a matrix with few rows, from the small Gram matrix M Mᵀ.
    Signs are settled: the largest entry of each left vector is positive."""
    gram = (matrix @ matrix.T).toarray()  # (n_rows, n_rows)
    eigenvalues, vectors = np.linalg.eigh(gram)
    n = min(n, len(eigenvalues))
    sigma = np.sqrt(np.maximum(eigenvalues[::-1][:n], 0))  # (n,)
    U = vectors[:, ::-1][:, :n]  # (n_rows, n)
    U = U * np.sign(U[np.abs(U).argmax(axis=0), np.arange(n)])
    V = np.asarray(matrix.T @ U) / np.where(sigma > 0, sigma, 1)  # (n_columns, n)
    return U, sigma, V
