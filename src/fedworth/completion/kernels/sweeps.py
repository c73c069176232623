"""Alternating solves, each mixed with the last few (Anderson)."""

import numpy as np

from fedworth.compile import compiled, compiled_within
from fedworth.completion.kernels.arithmetic import add, dot
from fedworth.completion.kernels.layout import Cells, Factors, Floats, Point
from fedworth.completion.kernels.points import point, ridge

NOTHING_NEW = 1e-20
"""The share of its square that the difference of two steps must keep to say more than earlier ones."""


@compiled
def sweeps(
    cells: Cells, transposed: Cells, W: Factors, penalty: float, max_sweeps: int, tolerance: float, memory: int
) -> tuple[Point, int]:
    """Where alternating solves lead from these row factors, and how many it took. Each is mixed with the last few,
    unless that would not lower the objective; the plain one always does, and mixing starts anew. Of no sweeps at all
    come these row factors with the best column factors for them."""
    at, n_past = point(cells, transposed, W, penalty), 0
    points, steps = np.empty((memory, W.size)), np.empty((memory, W.size))
    for n_sweeps in range(1, max_sweeps + 1):
        plain = ridge(cells, at.H, penalty)
        n_past = _remember(points, steps, n_past, at.W, plain)
        mixed = mix(points, steps, n_past, W.shape[1])
        reached = point(cells, transposed, mixed, penalty)
        if not reached.objective <= at.objective:
            reached, n_past = point(cells, transposed, plain, penalty), 0
        at = reached
        if n_sweeps % 5 == 0 and at.steepness <= tolerance:
            return at, n_sweeps
    return at, max_sweeps


@compiled_within
def _remember(points: Floats, steps: Floats, n_past: int, W: Factors, plain: Factors) -> int:
    """Add a point and its step to the past ones, oldest first, in place of the oldest if there is no more room."""
    if n_past == len(points):
        n_past -= 1
        for j in range(n_past):
            for k in range(points.shape[1]):
                points[j, k] = points[j + 1, k]
                steps[j, k] = steps[j + 1, k]
    for t in range(len(W)):
        for k in range(W.shape[1]):
            points[n_past, t * W.shape[1] + k] = W[t, k]
            steps[n_past, t * W.shape[1] + k] = plain[t, k] - W[t, k]
    return n_past + 1


@compiled_within
def mix(points: Floats, steps: Floats, n_past: int, rank: int) -> Factors:
    """Anderson's mixing: the combination of past points (oldest first) whose step would be smallest, moved by it.

    Gram–Schmidt on the differences of steps; what is done to one is done to how it moves."""
    size, last = points.shape[1], n_past - 1
    turns, moves, sizes = np.empty((n_past, size)), np.empty((n_past, size)), np.zeros(n_past)
    for j in range(n_past):  # the last ones are the step itself, and where it leads
        for k in range(size):
            turns[j, k] = steps[last, k] if j == last else steps[j + 1, k] - steps[j, k]
            moves[j, k] = points[last, k] + turns[j, k] if j == last else points[j + 1, k] - points[j, k] + turns[j, k]
        before = dot(turns, j, turns, j)
        for i in range(j):
            if sizes[i] > 0:
                share = dot(turns, i, turns, j) / sizes[i]
                add(turns, j, -share, turns, i)
                add(moves, j, -share, moves, i)
        left = dot(turns, j, turns, j)
        sizes[j] = left if left > NOTHING_NEW * before else 0.0
    mixed: Factors = moves[last].copy().reshape((size // rank, rank))
    return mixed
