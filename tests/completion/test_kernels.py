"""The compiled arithmetic of the completion, held against plain numpy."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedworth.compile import compiled
from fedworth.completion.als import column_step, point, row_step
from fedworth.completion.certificate import stationarity
from fedworth.completion.kernels.layout import LANES
from fedworth.completion.kernels.newton import newton_step
from fedworth.completion.kernels.points import pulls, residuals, scaled_gram
from fedworth.completion.kernels.sweeps import mix as mix_within
from fedworth.completion.kernels.systems import grams as grams_within
from fedworth.completion.kernels.systems import unpacked
from fedworth.completion.problem import problem_of, problem_of_cells
from fedworth.completion.solver import collapse_penalty, solve
from fedworth.names import PenaltyKind
from tests.support.games import federation, large_federation, random_problem


@compiled
def grams(cells, H, penalty):
    return unpacked(grams_within(cells, H, penalty), H.shape[1])


@compiled
def mix(points, steps, n_past, rank):
    return mix_within(points, steps, n_past, rank)


SEEDS, RANKS = st.integers(0, 10_000), st.integers(1, 6)


def drawn(seed, rank):
    """A problem whose values are of order one, a penalty, and factors for its rows and columns."""
    found, fraction = random_problem(seed)
    values = found.values / np.abs(found.values).max()
    kind: PenaltyKind = "counts" if seed % 2 else "uniform"
    problem = problem_of_cells(found.shape, found.rows, found.columns, values, kind)
    rng = np.random.default_rng(seed)
    W, H = (rng.normal(size=(n, rank)) for n in problem.shape)
    return problem, 0.1 + fraction, W * (problem.row_weights > 0)[:, None], H * (problem.column_weights > 0)[:, None]


def dense(problem, values):
    matrix = np.zeros(problem.shape)
    matrix[problem.rows, problem.columns] = values
    return matrix


def plain_gram(problem, W, column, penalty):
    mine = W[problem.rows[problem.columns == column]]
    charge = penalty * problem.column_weights[column]
    return mine.T @ mine + (charge if charge > 0 else 1) * np.eye(W.shape[1])


def plain_ridge(problem, W, penalty):
    """Each column's ridge problem, one by one."""
    pulled = dense(problem, problem.values).T @ W
    return np.array([np.linalg.solve(plain_gram(problem, W, j, penalty), pulled[j]) for j in range(problem.shape[1])])


def plain_derivative(problem, W, H, D, penalty):
    """The derivative of λ a W − R H along D, with H(W) = G⁻¹ Uᵀ W moving along, by its definition."""
    R, seen = dense(problem, problem.residuals(W, H)), dense(problem, np.ones(len(problem.values)))
    pull = R.T @ D - (seen * (D @ H.T)).T @ W
    d_H = np.array([np.linalg.solve(plain_gram(problem, W, j, penalty), pull[j]) for j in range(problem.shape[1])])
    d_R = -seen * (D @ H.T + W @ d_H.T)
    return penalty * problem.row_weights[:, None] * D - d_R @ H - R @ d_H


@given(SEEDS, RANKS)
def test_sums_over_the_cells_are_those_of_dense_matrices(seed, rank):
    problem, penalty, W, H = drawn(seed, rank)
    left = problem.values - (W @ H.T)[problem.rows, problem.columns]
    R = dense(problem, left)
    by_column = residuals(problem.transposed, H, W)
    assert residuals(problem.cells, W, H) == pytest.approx(left, abs=1e-12)
    assert pulls(problem.transposed, by_column, H, len(W)) == pytest.approx(R @ H, abs=1e-10)
    assert pulls(problem.cells, left, W, len(H)) == pytest.approx(R.T @ W, abs=1e-10)
    a, b = (np.where(w > 0, w, 1) for w in (problem.row_weights, problem.column_weights))
    scaled = R / np.sqrt(np.outer(a, b))
    gram = scaled_gram(problem.transposed, by_column, problem.row_weights)
    assert gram == pytest.approx(scaled @ scaled.T, abs=1e-10)
    expected = [plain_gram(problem, W, j, penalty).ravel() for j in range(len(H))]
    assert grams(problem.transposed, W, penalty) == pytest.approx(np.array(expected), abs=1e-10)


@given(SEEDS, RANKS)
def test_a_point_has_the_best_columns_and_their_objective_and_slope(seed, rank):
    problem, penalty, W, _ = drawn(seed, rank)
    at, H = point(problem, W, penalty), plain_ridge(problem, W, penalty)
    assert np.allclose(at.H, H, rtol=0, atol=1e-9)
    assert np.array_equal(at.H, column_step(problem, W, penalty))
    R = dense(problem, problem.residuals(W, at.H))
    assert at.objective == pytest.approx(problem.objective(W, at.H, penalty), rel=1e-12)
    assert at.slope == pytest.approx(penalty * problem.row_weights[:, None] * W - R @ at.H, abs=1e-10)
    assert at.steepness == pytest.approx(stationarity(problem, W, at.H, penalty), rel=1e-6, abs=1e-9)


@given(SEEDS, st.integers(1, 3))
def test_a_newton_step_solves_newtons_equations(seed, rank):
    problem, penalty, W, _ = drawn(seed, rank)
    at, units = point(problem, W, penalty), np.eye(W.size).reshape(-1, *W.shape)
    hessian = np.array([plain_derivative(problem, W, at.H, unit, penalty).ravel() for unit in units])
    row_grams = grams(problem.cells, at.H, penalty).reshape(-1, rank, rank)
    measure = np.array([np.einsum("tij,tj->ti", row_grams, unit).ravel() for unit in units])
    least = np.linalg.eigvals(np.linalg.solve(measure, hessian)).real.min()
    damping = 1 + max(0.0, -least)  # the curvature is positive
    step = newton_step(problem.cells, problem.transposed, at, penalty, damping, 1e-26, 500)
    expected = np.linalg.solve(hessian + damping * measure, -at.slope.ravel())
    assert step.ravel() == pytest.approx(expected, rel=1e-6, abs=1e-9 * max(1, np.abs(expected).max()))


@pytest.mark.parametrize("n_rows", [1, LANES - 1, LANES, LANES + 1, 3 * LANES + 5])
def test_rows_do_not_notice_how_many_are_solved_beside_them(n_rows):
    rng = np.random.default_rng(n_rows)
    seen = rng.random((n_rows, 7)) < 0.6
    seen[:, 0] = True
    rows, columns = np.nonzero(seen)
    problem = problem_of_cells(seen.shape, rows, columns, rng.normal(size=len(rows)), "counts")
    H = rng.normal(size=(7, 3))
    together = row_step(problem, H, 0.1)
    for t in range(n_rows):
        mine = rows == t
        alone = problem_of_cells((1, 7), rows[mine] * 0, columns[mine], problem.values[mine], "counts")
        assert np.array_equal(row_step(alone, H, 0.1)[0], together[t])


@given(SEEDS, st.integers(1, 8), st.booleans())
def test_mixing_is_the_least_squares_combination_of_past_steps(seed, n_past, has_repeats):
    rng = np.random.default_rng(seed)
    points, steps = rng.normal(size=(8, 24)), rng.normal(size=(8, 24))
    if has_repeats:  # a difference that says nothing new
        steps[2], points[2] = steps[1], points[1]
    mixed = mix(points, steps, n_past, 3)
    d_steps, d_points = np.diff(steps[:n_past], axis=0).T, np.diff(points[:n_past], axis=0).T
    share = np.linalg.lstsq(d_steps, steps[n_past - 1], rcond=1e-10)[0] if n_past > 1 else np.zeros(0)
    expected = points[n_past - 1] + steps[n_past - 1] - (d_points + d_steps) @ share
    assert mixed.ravel() == pytest.approx(expected, rel=1e-8, abs=1e-8)


def test_a_pivot_that_rounding_takes_below_its_charge_is_set_to_it():
    # two equal directions: the second pivot is the charge, 1e-18 of the first, and lost in it
    problem = problem_of_cells((1, 2), np.zeros(2, dtype=int), np.arange(2), np.array([1.0, 2.0]), "uniform")
    W = row_step(problem, np.array([[1.0, 1.0], [2.0, 2.0]]), 1e-18)
    assert np.isfinite(W).all()
    assert W.sum() == pytest.approx(1, rel=1e-9)


@pytest.mark.parametrize("kind", ["uniform", "counts"])
def test_the_same_cells_give_the_same_bytes_in_any_thread(kind):
    problems = [problem_of(federation(seed)[1], kind) for seed in range(3)]
    problems.append(problem_of(large_federation(20, 6, 30, 20), kind))

    def bytes_of(problem):
        solution = solve(problem, 3, 0.01 * collapse_penalty(problem))
        return solution.W.tobytes(), solution.H.tobytes(), solution.objective

    expected = [bytes_of(problem) for problem in problems]
    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(bytes_of, 2 * problems)) == 2 * expected
