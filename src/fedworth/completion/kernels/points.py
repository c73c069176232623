"""Row factors with the best column factors for them, and what they leave of the seen cells."""

import numpy as np

from fedworth.compile import compiled, compiled_within
from fedworth.completion.kernels.arithmetic import product, total
from fedworth.completion.kernels.layout import LANES, Cells, Factors, Floats, Grams, Point, Systems
from fedworth.completion.kernels.systems import factorise, fill, load, packed, solve_block, squares_of, sum_squares


@compiled_within
def ridge(cells: Cells, H: Factors, penalty: float) -> Factors:
    """Row factors that best explain the seen cells, column factors held fixed."""
    W, squares = np.empty((len(cells.weights), H.shape[1])), squares_of(H)
    systems, vectors = np.empty((1, packed(H.shape[1]) + 1, LANES)), np.empty((H.shape[1], LANES))
    for first in range(0, len(W), LANES):
        _ridge_block(cells, first, H, squares, penalty, systems, vectors, W)
    return W


@compiled_within
def _ridge_block(
    cells: Cells,
    first: int,
    H: Factors,
    squares: Grams,
    penalty: float,
    systems: Systems,
    vectors: Floats,
    W: Factors,
) -> None:
    """The best factors of LANES rows; `systems` and `vectors` are room to work in."""
    rank, n = H.shape[1], min(LANES, len(W) - first)
    gram = np.empty((1, packed(rank)))
    for lane in range(n):
        t = first + lane
        charge = penalty * cells.weights[t]
        sum_squares(cells, t, squares, charge, rank, gram, 0)
        load(gram, 0, charge, systems, 0, lane)
        for k in range(rank):
            W[t, k] = 0.0
        for cell in range(cells.starts[t], cells.starts[t + 1]):
            column, value = cells.columns[cell], cells.values[cell]
            for k in range(rank):
                W[t, k] += value * H[column, k]
    fill(systems, 0, n, rank)
    factorise(systems, 0, rank)
    solve_block(systems, 0, W, first, n, vectors)


@compiled_within
def point(cells: Cells, transposed: Cells, W: Factors, penalty: float) -> Point:
    """These row factors with the best column factors for them."""
    n_rows, rank, n_columns = len(W), W.shape[1], len(transposed.weights)
    H, squares = np.empty((n_columns, rank)), squares_of(W)
    systems, vectors = np.empty((1, packed(rank) + 1, LANES)), np.empty((rank, LANES))
    left, slope, costs, scale = np.empty(len(transposed.values)), np.empty(W.shape), np.zeros(n_rows + n_columns), 0.0
    for t in range(n_rows):
        for k in range(rank):
            charged = penalty * cells.weights[t] * W[t, k]
            slope[t, k] = charged
            costs[t] += charged * W[t, k]
            scale += charged * charged
    for column in range(n_columns):
        if column % LANES == 0:
            _ridge_block(transposed, column, W, squares, penalty, systems, vectors, H)
        cost = 0.0
        for k in range(rank):
            charged = penalty * transposed.weights[column] * H[column, k]
            cost += charged * H[column, k]
            scale += charged * charged
        for cell in range(transposed.starts[column], transposed.starts[column + 1]):
            t = transposed.columns[cell]
            rest = transposed.values[cell] - product(W, t, H, column)
            for k in range(rank):
                slope[t, k] -= rest * H[column, k]
            left[cell] = rest
            cost += rest * rest
        costs[n_rows + column] = cost
    norm = 0.0
    for t in range(n_rows):
        norm += product(slope, t, slope, t)
    steepness = np.sqrt(norm / scale) if scale > 0 else 0.0
    return Point(W, H, left, total(costs), slope, steepness)


def residuals(cells: Cells, W: Factors, H: Factors) -> Floats:
    """(n_seen,): what the factors leave of each cell, row by row."""
    rows, explained = np.repeat(np.arange(len(W)), np.diff(cells.starts)), np.zeros(len(cells.values))
    for k in range(W.shape[1]):
        explained += W[rows, k] * H[cells.columns, k]
    return cells.values - explained


def pulls(transposed: Cells, left: Floats, H: Factors, n_rows: int) -> Factors:
    """(n_rows, rank): Σ_S R_{t,S} h_S, with the residual column by column, in whose order it is summed."""
    columns = np.repeat(np.arange(len(H)), np.diff(transposed.starts))
    sums = [np.bincount(transposed.columns, left * H[columns, k], n_rows) for k in range(H.shape[1])]
    return np.stack(sums, axis=1)


@compiled
def scaled_gram(transposed: Cells, values: Floats, row_weights: Floats) -> Floats:
    """(n_rows, n_rows): M Mᵀ, where M has these values (column by column), each divided by √(a_t b_S)."""
    gram = np.zeros((len(row_weights), len(row_weights)))
    for column in range(len(transposed.weights)):
        start, weight = transposed.starts[column], transposed.weights[column]
        for one in range(start, transposed.starts[column + 1]):
            t, value = transposed.columns[one], values[one] / weight
            for other in range(start, one + 1):
                gram[t, transposed.columns[other]] += value * values[other]
    for t in range(len(gram)):
        for u in range(t + 1):
            if gram[t, u] != 0:
                gram[t, u] /= np.sqrt(row_weights[t] * row_weights[u])
            gram[u, t] = gram[t, u]
    return gram
