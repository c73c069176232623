"""Every row's small system (Σ h hᵀ + charge · I) x = b over its cells, solved by factors L D Lᵀ.

LANES rows are solved side by side, so that vector instructions do. No pivot in D is below the charge; where rounding
says otherwise it is set to it.
"""

import numpy as np

from fedworth.compile import compiled_within
from fedworth.completion.kernels.layout import LANES, Cells, Factors, Floats, Grams, Systems


@compiled_within
def grams(cells: Cells, H: Factors, penalty: float) -> Grams:
    """(n_rows, rank²): Σ h_S h_Sᵀ over the row's seen cells, plus its charge on the diagonal."""
    sums, squares = np.empty((len(cells.weights), H.shape[1] ** 2)), squares_of(H)
    for t in range(len(sums)):
        sum_squares(cells, t, squares, penalty * cells.weights[t], sums, t)
    return sums


@compiled_within
def squares_of(H: Factors) -> Grams:
    """h hᵀ of each."""
    rank = H.shape[1]
    squares = np.empty((len(H), rank * rank))
    for column in range(len(H)):
        for k in range(rank):
            for m in range(rank):
                squares[column, k * rank + m] = H[column, k] * H[column, m]
    return squares


@compiled_within
def sum_squares(cells: Cells, t: int, squares: Grams, charge: float, gram: Grams, row: int) -> None:
    """One row's Gram matrix; with 1 on the diagonal for a row with no charge, so that its factors are 0."""
    size = gram.shape[1]
    for k in range(size):
        gram[row, k] = 0.0
    for cell in range(cells.starts[t], cells.starts[t + 1]):
        column = cells.columns[cell]
        for k in range(size):
            gram[row, k] += squares[column, k]
    for k in range(0, size, int(np.sqrt(size)) + 1):
        gram[row, k] += charge if charge > 0 else 1.0


@compiled_within
def factorised(matrices: Grams, weights: Floats, penalty: float) -> Systems:
    """All of them, factorised."""
    n, size = matrices.shape
    rank, systems = int(np.sqrt(size)), np.empty((-(-n // LANES), size + 1, LANES))
    for block in range(len(systems)):
        first = block * LANES
        for lane in range(min(LANES, n - first)):
            load(matrices, first + lane, penalty * weights[first + lane], systems, block, lane)
        fill(systems, block, n - first, rank)
        factorise(systems, block, rank)
    return systems


@compiled_within
def load(matrices: Grams, row: int, charge: float, systems: Systems, block: int, lane: int) -> None:
    for k in range(matrices.shape[1]):
        systems[block, k, lane] = matrices[row, k]
    systems[block, matrices.shape[1], lane] = charge


@compiled_within
def fill(systems: Systems, block: int, n: int, rank: int) -> None:
    """The identity in the lanes that have no row."""
    for lane in range(n, LANES):
        for k in range(systems.shape[1]):
            systems[block, k, lane] = 0.0
        for k in range(rank):
            systems[block, k * rank + k, lane] = 1.0


@compiled_within
def factorise(systems: Systems, block: int, rank: int) -> None:
    """L below the diagonal and D⁻¹ on it, in place of L D Lᵀ."""
    for k in range(rank):
        here = k * rank
        for m in range(k):
            for p in range(m):
                for lane in range(LANES):
                    product = systems[block, here + p, lane] * systems[block, m * rank + p, lane]
                    systems[block, here + m, lane] -= product
        for m in range(k):
            for lane in range(LANES):
                entry = systems[block, here + m, lane]
                scaled = entry * systems[block, m * rank + m, lane]
                systems[block, here + m, lane] = scaled
                systems[block, here + k, lane] -= entry * scaled
        for lane in range(LANES):
            pivot = max(systems[block, here + k, lane], systems[block, rank * rank, lane])
            systems[block, here + k, lane] = 1 / pivot


@compiled_within
def solve_block(systems: Systems, block: int, vectors: Factors, first: int, n: int, room: Floats) -> None:
    """(L D Lᵀ)⁻¹ v in place of each of n vectors, with the factorised systems of one block."""
    rank = vectors.shape[1]
    for k in range(rank):
        for lane in range(n):
            room[k, lane] = vectors[first + lane, k]
        for lane in range(n, LANES):
            room[k, lane] = 0.0
    for k in range(rank):
        for m in range(k):
            for lane in range(LANES):
                room[k, lane] -= systems[block, k * rank + m, lane] * room[m, lane]
    for k in range(rank - 1, -1, -1):
        for lane in range(LANES):
            room[k, lane] *= systems[block, k * rank + k, lane]
        for m in range(k + 1, rank):
            for lane in range(LANES):
                room[k, lane] -= systems[block, m * rank + k, lane] * room[m, lane]
    for k in range(rank):
        for lane in range(n):
            vectors[first + lane, k] = room[k, lane]


@compiled_within
def solve_rows(systems: Systems, vectors: Factors) -> None:
    room = np.empty((vectors.shape[1], LANES))
    for first in range(0, len(vectors), LANES):
        solve_block(systems, first // LANES, vectors, first, min(LANES, len(vectors) - first), room)
