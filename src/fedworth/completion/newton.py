"""Newton's method on the row factors. It finishes what alternating solves begin, since near the end they become slow.

With the best column factors H(W) put in, the objective is a function of W alone. Half its gradient is

    λ a_t w_t − Σ_S R_{t,S} h_S,        R the seen residual,

and its derivative along D needs only one ridge solve a column, dh_S = G_S⁻¹ Σ_t (R_{t,S} d_t − (d_t·h_S) w_t). So each
Newton step is found by conjugate gradients, preconditioned by the rows' own ridge problems. Turning W and H together
changes nothing, so the Hessian is singular; damping keeps rounding from growing along those turns. The more it is
damped, the nearer the step is to the alternating solve's, which is what remains if nothing better is found.
"""

import numpy as np

from fedworth.completion.als import Sweeps, point, row_step
from fedworth.completion.kernels.layout import Factors, Point
from fedworth.completion.kernels.newton import newton_step
from fedworth.completion.problem import Problem

MOST_INNER = 200
EXACTNESS = (1e-12, 1e-2)  # of a step, squared: at the end, and far from it
FIRST_DAMPING, LEAST_DAMPING, MOST_DAMPING = 1e-4, 1e-10, 1.0
EASED, STIFFENED = 4.0, 10.0  # how damping falls after a good step, and rises after a bad one
NOISE = 1e-13  # objectives that differ by less, relatively, are equal up to rounding
CLEARLY = 0.9
SMALL_ENOUGH = 1e-8  # a gradient that counts as zero where rounding hides any further fall


def descend(problem: Problem, W: Factors, penalty: float, *, max_sweeps: int, tolerance: float) -> Sweeps:
    """Newton steps from these row factors until the gradient vanishes (relative to the penalty's part of it), or
    until float64 shows no step that gets lower; a gradient below SMALL_ENOUGH then counts as zero."""
    at, damping = point(problem, W, penalty), FIRST_DAMPING
    for n_sweeps in range(max_sweeps + 1):
        if at.steepness <= tolerance or n_sweeps == max_sweeps:
            break
        reached, damping = _next(problem, at, penalty, damping)
        if reached is None:
            tolerance = max(tolerance, SMALL_ENOUGH)
            break
        at = reached
    return Sweeps(at.W, at.H, n_sweeps, at.steepness <= tolerance)


def _next(problem: Problem, at: Point, penalty: float, damping: float) -> tuple[Point | None, float]:
    """The Newton step, damped until it gets lower; else the alternating solve's; None where rounding hides any fall."""
    exactness = min(max(at.steepness, EXACTNESS[0]), EXACTNESS[1])
    while damping <= MOST_DAMPING:
        step = newton_step(problem.cells, problem.transposed, at, penalty, damping, exactness, MOST_INNER)
        reached = point(problem, at.W + step, penalty)
        if _is_progress(at, reached):
            return reached, max(damping / EASED, LEAST_DAMPING)
        damping *= STIFFENED
    reached = point(problem, row_step(problem, at.H, penalty), penalty)
    return (reached if _is_progress(at, reached) else None), MOST_DAMPING


def _is_progress(at: Point, reached: Point) -> bool:
    """A lower objective; or, where rounding hides whether it is lower, a clearly smaller slope."""
    if reached.objective < at.objective * (1 - NOISE):
        return True
    is_level = reached.objective <= at.objective * (1 + NOISE)
    return is_level and bool(np.linalg.norm(reached.slope) < CLEARLY * np.linalg.norm(at.slope))
