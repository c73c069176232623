"""The arithmetic of the factor completion, compiled: whatever touches the seen cells one by one.

A layout holds the cells row by row. The transpose's holds them column by column, and what is said here of rows is true
there of columns. Every row has a small system (Σ h hᵀ + charge · I) x = b over its cells, solved by factors L D Lᵀ,
LANES rows side by side, so that vector instructions do. No pivot in D is below the charge; where rounding says
otherwise it is set to it. All sums run in the cells' order and in one thread: the same cells give the same bytes.

All in one file, because numba's cache notices a change in a function's own file only.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedworth.arrays import Indices
from fedworth.compile import compiled

LANES = 16
"""Rows whose systems are solved side by side."""

NOTHING_NEW = 1e-20
"""The share of its square that the difference of two steps must keep to say more than earlier ones."""

STEP, MISSING, DIRECTION, CURVED, EASED = range(5)
"""Rows of the room in which a Newton step is found: the step, what it does not yet cancel, where it goes next."""

Floats = NDArray[np.float64]

Factors = NDArray[np.float64]
"""(n_rows or n_columns, rank)"""

Grams = NDArray[np.float64]
"""(n_rows or n_columns, rank²)"""

Systems = NDArray[np.float64]
"""(n_blocks, rank² + 1, LANES): Grams or their factors, row r in lane r % LANES of its block; then their charges."""


class Cells(NamedTuple):
    """Seen cells row by row, and how each row's factors are charged."""

    starts: Indices  # (n_rows + 1,): where each row's cells begin, and the last ones end
    columns: Indices  # (n_seen,)
    values: Floats  # (n_seen,)
    weights: Floats  # (n_rows,), 0 for a row with no seen cell


class Point(NamedTuple):
    """Row factors, their best column factors, and how good they are."""

    W: Factors
    H: Factors
    left: Floats  # (n_seen,): the residual, column by column
    objective: float
    slope: Factors  # (n_rows, rank): half the gradient; that of the columns is zero
    steepness: float  # its norm relative to that of the penalty's part, as in `certificate.stationarity`


@compiled
def ridge(cells: Cells, H: Factors, penalty: float) -> Factors:
    """Row factors that best explain the seen cells, column factors held fixed."""
    W, squares = np.empty((len(cells.weights), H.shape[1])), _squares(H)
    systems, vectors = np.empty((1, H.shape[1] ** 2 + 1, LANES)), np.empty((H.shape[1], LANES))
    for first in range(0, len(W), LANES):
        _ridge_block(cells, first, H, squares, penalty, systems, vectors, W)
    return W


@compiled
def point(cells: Cells, transposed: Cells, W: Factors, penalty: float) -> Point:
    """These row factors with the best column factors for them."""
    n_rows, rank, n_columns = len(W), W.shape[1], len(transposed.weights)
    H, squares = np.empty((n_columns, rank)), _squares(W)
    systems, vectors = np.empty((1, rank * rank + 1, LANES)), np.empty((rank, LANES))
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
            rest = transposed.values[cell] - _product(W, t, H, column)
            for k in range(rank):
                slope[t, k] -= rest * H[column, k]
            left[cell] = rest
            cost += rest * rest
        costs[n_rows + column] = cost
    norm = 0.0
    for t in range(n_rows):
        norm += _product(slope, t, slope, t)
    steepness = np.sqrt(norm / scale) if scale > 0 else 0.0
    return Point(W, H, left, _total(costs), slope, steepness)


@compiled
def residuals(cells: Cells, W: Factors, H: Factors) -> Floats:
    """(n_seen,): what the factors leave of each cell, row by row."""
    left = np.empty(len(cells.values))
    for t in range(len(W)):
        for cell in range(cells.starts[t], cells.starts[t + 1]):
            left[cell] = cells.values[cell] - _product(W, t, H, cells.columns[cell])
    return left


@compiled
def pulls(transposed: Cells, left: Floats, H: Factors, n_rows: int) -> Factors:
    """(n_rows, rank): Σ_S R_{t,S} h_S, with the residual column by column."""
    sums = np.zeros((n_rows, H.shape[1]))
    for column in range(len(H)):
        for cell in range(transposed.starts[column], transposed.starts[column + 1]):
            t, rest = transposed.columns[cell], left[cell]
            for k in range(H.shape[1]):
                sums[t, k] += rest * H[column, k]
    return sums


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


@compiled
def sweeps(
    cells: Cells, transposed: Cells, W: Factors, penalty: float, max_sweeps: int, tolerance: float, memory: int
) -> tuple[Point, int]:
    """Where alternating solves lead from these row factors, and how many it took. Each is mixed with the last few,
    unless that would not lower the objective; the plain one always does, and mixing starts anew."""
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


@compiled
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


@compiled
def mix(points: Floats, steps: Floats, n_past: int, rank: int) -> Factors:
    """Anderson's mixing: the combination of past points (oldest first) whose step would be smallest, moved by it.

    Gram–Schmidt on the differences of steps; what is done to one is done to how it moves."""
    size, last = points.shape[1], n_past - 1
    turns, moves, sizes = np.empty((n_past, size)), np.empty((n_past, size)), np.zeros(n_past)
    for j in range(n_past):  # the last ones are the step itself, and where it leads
        for k in range(size):
            turns[j, k] = steps[last, k] if j == last else steps[j + 1, k] - steps[j, k]
            moves[j, k] = points[last, k] + turns[j, k] if j == last else points[j + 1, k] - points[j, k] + turns[j, k]
        before = _dot(turns, j, turns, j)
        for i in range(j):
            if sizes[i] > 0:
                share = _dot(turns, i, turns, j) / sizes[i]
                _add(turns, j, -share, turns, i)
                _add(moves, j, -share, moves, i)
        left = _dot(turns, j, turns, j)
        sizes[j] = left if left > NOTHING_NEW * before else 0.0
    mixed: Factors = moves[last].copy().reshape((size // rank, rank))
    return mixed


@compiled
def newton_step(
    cells: Cells, transposed: Cells, at: Point, penalty: float, damping: float, exactness: float, most_inner: int
) -> Factors:
    """−(Hessian + damping · row Grams)⁻¹ slope by conjugate gradients, as far as the curvature is positive, and until
    no more than this share of the slope is left (squared, in the Grams' measure)."""
    row_grams = grams(cells, at.H, penalty)
    row_systems = _factorised(row_grams, cells.weights, penalty)
    column_systems = _factorised(grams(transposed, at.W, penalty), transposed.weights, penalty)
    room, size, before, found = np.zeros((5, at.W.size)), 0.0, 0.0, STEP
    D, curved, eased = _as(room, DIRECTION, at.W), _as(room, CURVED, at.W), _as(room, EASED, at.W)
    _add(room, MISSING, -1.0, at.slope.reshape((1, at.W.size)), 0)
    for n_inner in range(most_inner + 1):
        _scale_add(room, EASED, 0.0, MISSING)
        _solve_rows(row_systems, eased)
        before, size = size, _dot(room, MISSING, room, EASED)
        if n_inner == 0:
            enough = size * exactness
        elif size <= enough or n_inner == most_inner:
            break
        _scale_add(room, DIRECTION, size / before if n_inner > 0 else 0.0, EASED)
        _curve(transposed, at, row_grams, column_systems, damping, D, curved)
        curvature = _dot(room, DIRECTION, room, CURVED)
        if not curvature > 0:
            found = DIRECTION if n_inner == 0 else STEP
            break
        _add(room, STEP, size / curvature, room, DIRECTION)
        _add(room, MISSING, -size / curvature, room, CURVED)
    return _as(room, found, at.W).copy()


@compiled
def _as(room: Floats, row: int, like: Factors) -> Factors:
    """A row of room in the shape of factors."""
    factors: Factors = room[row].reshape(like.shape)
    return factors


@compiled
def grams(cells: Cells, H: Factors, penalty: float) -> Grams:
    """(n_rows, rank²): Σ h_S h_Sᵀ over the row's seen cells, plus its charge on the diagonal."""
    sums, squares = np.empty((len(cells.weights), H.shape[1] ** 2)), _squares(H)
    for t in range(len(sums)):
        _sum_squares(cells, t, squares, penalty * cells.weights[t], sums, t)
    return sums


@compiled
def _curve(
    transposed: Cells, at: Point, row_grams: Grams, systems: Systems, damping: float, D: Factors, curved: Factors
) -> None:
    """The derivative of the slope along D, damped: (1 + damping) G_t d_t + Σ_S ((w_t·dh_S) h_S − R_{t,S} dh_S)."""
    W, H, left, rank = at.W, at.H, at.left, at.W.shape[1]
    for t in range(len(W)):
        for k in range(rank):
            total = 0.0
            for m in range(rank):
                total += row_grams[t, k * rank + m] * D[t, m]
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
                moved = _product(D, t, H, column)
                for k in range(rank):
                    d_H[lane, k] += rest * D[t, k] - moved * W[t, k]
        _solve_block(systems, first // LANES, d_H, 0, n, d_h)
        for lane in range(n):
            column = first + lane
            for cell in range(transposed.starts[column], transposed.starts[column + 1]):
                t, rest = transposed.columns[cell], left[cell]
                moved = _product(W, t, d_H, lane)
                for k in range(rank):
                    curved[t, k] += moved * H[column, k] - rest * d_H[lane, k]


@compiled
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
    gram = np.empty((1, rank * rank))
    for lane in range(n):
        t = first + lane
        charge = penalty * cells.weights[t]
        _sum_squares(cells, t, squares, charge, gram, 0)
        _load(gram, 0, charge, systems, 0, lane)
        for k in range(rank):
            W[t, k] = 0.0
        for cell in range(cells.starts[t], cells.starts[t + 1]):
            column, value = cells.columns[cell], cells.values[cell]
            for k in range(rank):
                W[t, k] += value * H[column, k]
    _fill(systems, 0, n, rank)
    _factorise(systems, 0, rank)
    _solve_block(systems, 0, W, first, n, vectors)


@compiled
def _squares(H: Factors) -> Grams:
    """h hᵀ of each."""
    rank = H.shape[1]
    squares = np.empty((len(H), rank * rank))
    for column in range(len(H)):
        for k in range(rank):
            for m in range(rank):
                squares[column, k * rank + m] = H[column, k] * H[column, m]
    return squares


@compiled
def _sum_squares(cells: Cells, t: int, squares: Grams, charge: float, gram: Grams, row: int) -> None:
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


@compiled
def _factorised(matrices: Grams, weights: Floats, penalty: float) -> Systems:
    """All of them, factorised."""
    n, size = matrices.shape
    rank, systems = int(np.sqrt(size)), np.empty((-(-n // LANES), size + 1, LANES))
    for block in range(len(systems)):
        first = block * LANES
        for lane in range(min(LANES, n - first)):
            _load(matrices, first + lane, penalty * weights[first + lane], systems, block, lane)
        _fill(systems, block, n - first, rank)
        _factorise(systems, block, rank)
    return systems


@compiled
def _load(matrices: Grams, row: int, charge: float, systems: Systems, block: int, lane: int) -> None:
    for k in range(matrices.shape[1]):
        systems[block, k, lane] = matrices[row, k]
    systems[block, matrices.shape[1], lane] = charge


@compiled
def _fill(systems: Systems, block: int, n: int, rank: int) -> None:
    """The identity in the lanes that have no row."""
    for lane in range(n, LANES):
        for k in range(systems.shape[1]):
            systems[block, k, lane] = 0.0
        for k in range(rank):
            systems[block, k * rank + k, lane] = 1.0


@compiled
def _factorise(systems: Systems, block: int, rank: int) -> None:
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


@compiled
def _solve_block(systems: Systems, block: int, vectors: Factors, first: int, n: int, room: Floats) -> None:
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


@compiled
def _solve_rows(systems: Systems, vectors: Factors) -> None:
    room = np.empty((vectors.shape[1], LANES))
    for first in range(0, len(vectors), LANES):
        _solve_block(systems, first // LANES, vectors, first, min(LANES, len(vectors) - first), room)


@compiled
def _product(one: Factors, i: int, other: Factors, j: int) -> float:
    """Row i of one times row j of the other."""
    total = 0.0
    for k in range(one.shape[1]):
        total += one[i, k] * other[j, k]
    return total


@compiled
def _dot(one: Floats, i: int, other: Floats, j: int) -> float:
    """The same for long rows: in four sums, which a processor can add side by side."""
    a = b = c = d = 0.0
    size = one.shape[1]
    n = size // 4 * 4
    for k in range(0, n, 4):
        a += one[i, k] * other[j, k]
        b += one[i, k + 1] * other[j, k + 1]
        c += one[i, k + 2] * other[j, k + 2]
        d += one[i, k + 3] * other[j, k + 3]
    for k in range(n, size):
        a += one[i, k] * other[j, k]
    return (a + b) + (c + d)


@compiled
def _add(target: Floats, i: int, times: float, source: Floats, j: int) -> None:
    for k in range(target.shape[1]):
        target[i, k] += times * source[j, k]


@compiled
def _scale_add(room: Floats, i: int, times: float, j: int) -> None:
    """Row i becomes row j plus so many times itself."""
    for k in range(room.shape[1]):
        room[i, k] = room[j, k] + times * room[i, k]


@compiled
def _total(numbers: Floats) -> float:
    """Their sum, with what each addition rounds off carried along (Kahan): objectives are compared to 13 digits."""
    total = lost = 0.0
    for number in numbers:
        wanted = number - lost
        reached = total + wanted
        lost = (reached - total) - wanted
        total = reached
    return total
