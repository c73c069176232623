"""Every row's small system (Σ h hᵀ + charge · I) x = b over its cells, solved by factors L D Lᵀ.

LANES rows are solved side by side, so that vector instructions do. No pivot in D is below the charge; where rounding
says otherwise it is set to it.
"""

import numpy as np

from fedworth.compile import compiled_within
from fedworth.completion.kernels.layout import LANES, WIDTH, Cells, Factors, Floats, Grams, Systems


@compiled_within
def packed(rank: int) -> int:
    """Numbers that a Gram matrix takes."""
    return -(-(rank * (rank + 1) // 2) // WIDTH) * WIDTH


@compiled_within
def place(k: int, m: int) -> int:
    """Where entry (k, m) of a Gram matrix lies, m at most k."""
    return k * (k + 1) // 2 + m


@compiled_within
def grams(cells: Cells, H: Factors, penalty: float) -> Grams:
    """Σ h_S h_Sᵀ over each row's seen cells, plus its charge on the diagonal."""
    rank, squares = H.shape[1], squares_of(H)
    sums = np.empty((len(cells.weights), packed(rank)))
    for t in range(len(sums)):
        sum_squares(cells, t, squares, penalty * cells.weights[t], rank, sums, t)
    return sums


@compiled_within
def unpacked(row_grams: Grams, rank: int) -> Floats:
    """(n_rows, rank²): both triangles of each."""
    whole = np.empty((len(row_grams), rank * rank))
    for t in range(len(row_grams)):
        for k in range(rank):
            for m in range(k + 1):
                whole[t, k * rank + m] = whole[t, m * rank + k] = row_grams[t, place(k, m)]
    return whole


@compiled_within
def squares_of(H: Factors) -> Grams:
    """h hᵀ of each."""
    rank = H.shape[1]
    squares = np.zeros((len(H), packed(rank)))
    for column in range(len(H)):
        for k in range(rank):
            for m in range(k + 1):
                squares[column, place(k, m)] = H[column, k] * H[column, m]
    return squares


@compiled_within
def sum_squares(cells: Cells, t: int, squares: Grams, charge: float, rank: int, gram: Grams, row: int) -> None:
    """One row's Gram matrix; with 1 on the diagonal for a row with no charge, so that its factors are 0."""
    size = gram.shape[1]
    for k in range(size):
        gram[row, k] = 0.0
    for cell in range(cells.starts[t], cells.starts[t + 1]):
        column = cells.columns[cell]
        for k in range(size):
            gram[row, k] += squares[column, k]
    for k in range(rank):
        gram[row, place(k, k)] += charge if charge > 0 else 1.0


@compiled_within
def factorised(matrices: Grams, weights: Floats, penalty: float, rank: int) -> Systems:
    """All of them, factorised."""
    n, size = matrices.shape
    systems = np.empty((-(-n // LANES), size + 1, LANES))
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
            systems[block, place(k, k), lane] = 1.0


@compiled_within
def factorise(systems: Systems, block: int, rank: int) -> None:
    """L below the diagonal and D⁻¹ on it, in place of L D Lᵀ."""
    for k in range(rank):
        here, charge = place(k, 0), systems.shape[1] - 1
        for m in range(k):
            for p in range(m):
                for lane in range(LANES):
                    product = systems[block, here + p, lane] * systems[block, place(m, p), lane]
                    systems[block, here + m, lane] -= product
        for m in range(k):
            for lane in range(LANES):
                entry = systems[block, here + m, lane]
                scaled = entry * systems[block, place(m, m), lane]
                systems[block, here + m, lane] = scaled
                systems[block, here + k, lane] -= entry * scaled
        for lane in range(LANES):
            pivot = max(systems[block, here + k, lane], systems[block, charge, lane])
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
                room[k, lane] -= systems[block, place(k, m), lane] * room[m, lane]
    for k in range(rank - 1, -1, -1):
        for lane in range(LANES):
            room[k, lane] *= systems[block, place(k, k), lane]
        for m in range(k + 1, rank):
            for lane in range(LANES):
                room[k, lane] -= systems[block, place(m, k), lane] * room[m, lane]
    for k in range(rank):
        for lane in range(n):
            vectors[first + lane, k] = room[k, lane]


@compiled_within
def solve_rows(systems: Systems, vectors: Factors) -> None:
    room = np.empty((vectors.shape[1], LANES))
    for first in range(0, len(vectors), LANES):
        solve_block(systems, first // LANES, vectors, first, min(LANES, len(vectors) - first), room)
