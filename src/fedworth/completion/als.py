"""Alternating exact ridge solves in float64. They do most of the solver's work.

With the column factors fixed, each row has its own small problem,

    (Σ_{S seen in t} h_S h_Sᵀ + λ a_t I) w_t = Σ_{S seen in t} U_{t,S} h_S,

and the columns' step is the same on the transpose. One sweep (columns, then rows) is a map on the row factors;
Anderson's mixing of the last few sweeps speeds it up, and is dropped whenever it would not lower the objective.
Stops when the gradient is small, not when progress is slow: a slow sweep may be far from the end.
"""

from dataclasses import dataclass
from enum import StrEnum

from fedworth.completion.kernels.layout import Cells, Factors, Point
from fedworth.completion.kernels.sweeps import sweeps
from fedworth.completion.problem import Problem

MEMORY = 8


class Status(StrEnum):
    """Why the solver stopped."""

    CERTIFIED = "converged; no other factors fit the seen cells better"
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


def point(problem: Problem, W: Factors, penalty: float) -> Point:
    """These row factors with the best column factors for them."""
    return _without_a_sweep(problem.cells, problem.transposed, W, penalty)


def column_step(problem: Problem, W: Factors, penalty: float) -> Factors:
    """The best column factors for these row factors."""
    return _without_a_sweep(problem.cells, problem.transposed, W, penalty).H


def row_step(problem: Problem, H: Factors, penalty: float) -> Factors:
    """The best row factors for these column factors."""
    return _without_a_sweep(problem.transposed, problem.cells, H, penalty).H


def _without_a_sweep(cells: Cells, transposed: Cells, W: Factors, penalty: float) -> Point:
    """Where sweeps start: the kernel that sweeps is the only one that has to be compiled."""
    at, _ = sweeps(cells, transposed, W, penalty, 0, 0.0, MEMORY)
    return at


def sweep(problem: Problem, W: Factors, penalty: float, *, max_sweeps: int, tolerance: float) -> Sweeps:
    """Sweep from these row factors until the gradient vanishes (relative to the penalty's part of it)."""
    cells, transposed = problem.cells, problem.transposed
    at, n_sweeps = sweeps(cells, transposed, W, penalty, max_sweeps, tolerance, MEMORY)
    return Sweeps(at.W, at.H, n_sweeps, at.steepness <= tolerance)
