"""A Newton step of the row factors, the column factors always the best for them: conjugate gradients on the slope."""

import numpy as np

from fedworth.compile import compiled, compiled_within
from fedworth.completion.kernels.arithmetic import add, dot, product, scale_add
from fedworth.completion.kernels.layout import LANES, Cells, Factors, Floats, Point, Systems
from fedworth.completion.kernels.systems import factorised, grams, solve_block, solve_rows, unpacked

STEP, MISSING, DIRECTION, CURVED, EASED = range(5)
"""Rows of the room in which a Newton step is found: the step, what it does not yet cancel, where it goes next."""


@compiled
def newton_step(
    cells: Cells, transposed: Cells, at: Point, penalty: float, damping: float, exactness: float, most_inner: int
) -> Factors:
    """−(Hessian + damping · row Grams)⁻¹ slope by conjugate gradients, as far as the curvature is positive, and until
    no more than this share of the slope is left (squared, in the Grams' measure)."""
    rank, row_grams = at.W.shape[1], grams(cells, at.H, penalty)
    squares = unpacked(row_grams, rank)
    row_systems = factorised(row_grams, cells.weights, penalty, rank)
    column_systems = factorised(grams(transposed, at.W, penalty), transposed.weights, penalty, rank)
    room, size, before, found = np.zeros((5, at.W.size)), 0.0, 0.0, STEP
    D, curved, eased = _as(room, DIRECTION, at.W), _as(room, CURVED, at.W), _as(room, EASED, at.W)
    add(room, MISSING, -1.0, at.slope.reshape((1, at.W.size)), 0)
    for n_inner in range(most_inner + 1):
        scale_add(room, EASED, 0.0, MISSING)
        solve_rows(row_systems, eased)
        before, size = size, dot(room, MISSING, room, EASED)
        if n_inner == 0:
            enough = size * exactness
        elif size <= enough or n_inner == most_inner:
            break
        scale_add(room, DIRECTION, size / before if n_inner > 0 else 0.0, EASED)
        _curve(transposed, at, squares, column_systems, damping, D, curved)
        curvature = dot(room, DIRECTION, room, CURVED)
        if not curvature > 0:
            found = DIRECTION if n_inner == 0 else STEP
            break
        add(room, STEP, size / curvature, room, DIRECTION)
        add(room, MISSING, -size / curvature, room, CURVED)
    return _as(room, found, at.W).copy()


@compiled_within
def _as(room: Floats, row: int, like: Factors) -> Factors:
    """A row of room in the shape of factors."""
    factors: Factors = room[row].reshape(like.shape)
    return factors


@compiled_within
def _curve(
    transposed: Cells, at: Point, squares: Floats, systems: Systems, damping: float, D: Factors, curved: Factors
) -> None:
    """The derivative of the slope along D, damped: (1 + damping) G_t d_t + Σ_S ((w_t·dh_S) h_S − R_{t,S} dh_S)."""
    W, H, left, rank = at.W, at.H, at.left, at.W.shape[1]
    for t in range(len(W)):
        for k in range(rank):
            total = 0.0
            for m in range(rank):
                total += squares[t, k * rank + m] * D[t, m]
            curved[t, k] = (1 + damping) * total
    d_H, d_h = np.empty((LANES, rank)), np.empty((rank, LANES))
    for first in range(0, len(H), LANES):
        n = min(LANES, len(H) - first)
        for lane in range(n):
            column = first + lane
            for k in range(rank):
                d_H[lane, k] = 0.0
            for cell in range(transposed.starts[column], transposed.starts[column + 1]):
                t, rest = transposed.columns[cell], left[cell]
                moved = product(D, t, H, column)
                for k in range(rank):
                    d_H[lane, k] += rest * D[t, k] - moved * W[t, k]
        solve_block(systems, first // LANES, d_H, 0, n, d_h)
        for lane in range(n):
            column = first + lane
            for cell in range(transposed.starts[column], transposed.starts[column + 1]):
                t, rest = transposed.columns[cell], left[cell]
                moved = product(W, t, d_H, lane)
                for k in range(rank):
                    curved[t, k] += moved * H[column, k] - rest * d_H[lane, k]
