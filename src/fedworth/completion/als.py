"""Alternating exact ridge solves in float64: the kernel of the factor completion.

With the column factors fixed, each row has its own small problem,

    (Σ_{S seen in t} h_S h_Sᵀ + λ a_t I) w_t = Σ_{S seen in t} U_{t,S} h_S,

and the columns' step is the same on the transpose. One sweep (columns, then rows) is a map on the row factors;
Anderson's mixing of the last few sweeps speeds it up, and is dropped whenever it would not lower the objective.
Stops when the gradient is small, not when progress is slow: a slow sweep may be far from the end.
"""

from collections import deque
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from fedworth.completion.certificate import stationarity
from fedworth.completion.problem import Factors, Problem

MEMORY = 8


class Status(StrEnum):
    """Why the solver stopped."""

    CERTIFIED = "converged to the global optimum, certified"
    CONVERGED = "converged to a stationary point; a larger rank may do better"
    MAX_SWEEPS = "stopped at max_sweeps before the gradient vanished; raise it, or raise the penalty"
    ROUNDING = "stopped where rounding hides any further progress, before the gradient vanished; raise the penalty"


@dataclass(frozen=True)
class Sweeps:
    """Factors after some sweeps, and how it went."""

    W: Factors
    H: Factors
    n_sweeps: int
    is_stationary: bool


@dataclass(frozen=True)
class Kernel:
    """A problem in the form that a sweep wants: patterns and values, by row and by column."""

    problem: Problem
    pattern: sparse.csr_array  # (n_rows, n_columns)
    cells: sparse.csr_array  # (n_rows, n_columns)
    pattern_T: sparse.csr_array  # (n_columns, n_rows)
    cells_T: sparse.csr_array  # (n_columns, n_rows)


def kernel_of(problem: Problem) -> Kernel:
    """Lay a problem out for sweeping."""
    pattern, cells = problem.by_row(np.ones(len(problem.values))), problem.by_row(problem.values)
    return Kernel(problem, pattern, cells, pattern.T.tocsr(), cells.T.tocsr())


def grams(pattern: sparse.csr_array, H: Factors, charges: NDArray[np.float64]) -> NDArray[np.float64]:
    """(n_rows, rank, rank): Σ h_S h_Sᵀ over the row's seen cells, plus its charge on the diagonal."""
    rank = H.shape[1]
    outer = (H[:, :, None] * H[:, None, :]).reshape(len(H), rank * rank)  # (n_columns, rank²)
    sums = np.asarray(pattern @ outer).reshape(-1, rank, rank)
    sums[:, np.arange(rank), np.arange(rank)] += np.where(charges > 0, charges, 1)[:, None]
    return sums


def ridge_rows(pattern: sparse.csr_array, cells: sparse.csr_array, H: Factors, charges: NDArray[np.float64]) -> Factors:
    """Row factors that best explain the seen cells, column factors held fixed."""
    return np.linalg.solve(grams(pattern, H, charges), np.asarray(cells @ H)[:, :, None])[:, :, 0]


def column_step(kernel: Kernel, W: Factors, penalty: float) -> Factors:
    """The best column factors for these row factors."""
    return ridge_rows(kernel.pattern_T, kernel.cells_T, W, penalty * kernel.problem.column_weights)


def row_step(kernel: Kernel, H: Factors, penalty: float) -> Factors:
    """The best row factors for these column factors."""
    return ridge_rows(kernel.pattern, kernel.cells, H, penalty * kernel.problem.row_weights)


def sweep(kernel: Kernel, W: Factors, penalty: float, *, max_sweeps: int, tolerance: float) -> Sweeps:
    """Sweep from these row factors until the gradient vanishes (relative to the penalty's part of it)."""
    history: deque[tuple[Factors, Factors]] = deque(maxlen=MEMORY)
    H = column_step(kernel, W, penalty)
    objective = kernel.problem.objective(W, H, penalty)
    for n_sweeps in range(1, max_sweeps + 1):
        plain = row_step(kernel, H, penalty)
        history.append((W, plain - W))
        W, H, objective = _better(kernel, penalty, _mixed(history), plain, objective, history)
        if n_sweeps % 5 == 0 and stationarity(kernel.problem, W, H, penalty) <= tolerance:
            return Sweeps(W, H, n_sweeps, True)
    return Sweeps(W, H, max_sweeps, False)


def _better(
    kernel: Kernel,
    penalty: float,
    mixed: Factors,
    plain: Factors,
    objective: float,
    history: deque[tuple[Factors, Factors]],
) -> tuple[Factors, Factors, float]:
    """The mixed step if it lowers the objective, else the plain one (which always does), and start mixing anew."""
    H = column_step(kernel, mixed, penalty)
    reached = kernel.problem.objective(mixed, H, penalty)
    if reached <= objective:
        return mixed, H, reached
    history.clear()
    H = column_step(kernel, plain, penalty)
    return plain, H, kernel.problem.objective(plain, H, penalty)


def _mixed(history: deque[tuple[Factors, Factors]]) -> Factors:
    """Anderson mixing: the combination of past points whose step would be smallest, moved by that step."""
    W, step = history[-1]
    if len(history) < 2:
        return W + step
    steps = np.stack([s.ravel() for _, s in history], axis=1)  # (n, memory)
    points = np.stack([p.ravel() for p, _ in history], axis=1)  # (n, memory)
    d_steps, d_points = np.diff(steps, axis=1), np.diff(points, axis=1)  # (n, memory − 1)
    share = np.linalg.lstsq(d_steps, step.ravel(), rcond=1e-10)[0]  # (memory − 1,)
    return (W.ravel() + step.ravel() - (d_points + d_steps) @ share).reshape(W.shape)
