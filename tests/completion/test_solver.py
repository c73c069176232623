"""The solver: it ends at the global optimum whenever the rank allows it, and always says where it ended."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedworth.completion.solver import (
    Certificate,
    Hessian,
    Status,
    best_columns,
    certify,
    collapse,
    collapse_penalty,
    descend,
    point,
    problem_of,
    problem_of_cells,
    solve,
    top_singular,
)
from fedworth.errors import CompletionError, UsageError
from fedworth.games.matrix import UtilityMatrix
from fedworth.games.shapley import shapley_values
from fedworth.names import PenaltyKind
from fedworth.theory.fairness import completeness
from tests.support.games import (
    convex_objective,
    convex_optimum,
    federation,
    large_federation,
    matrix_of,
    random_problem,
)

KINDS = pytest.mark.parametrize("kind", ["uniform", "counts"])
SEEDS, RANKS = st.integers(0, 10_000), st.integers(1, 6)


# The problem, held against dense matrices and ridge problems solved one by one


def drawn(seed, rank):
    """A problem whose values are of order one, a penalty, and row factors."""
    found, fraction = random_problem(seed)
    values = found.values / np.abs(found.values).max()
    kind: PenaltyKind = "counts" if seed % 2 else "uniform"
    problem = problem_of_cells(found.shape, found.rows, found.columns, values, kind)
    W = np.random.default_rng(seed).normal(size=(problem.shape[0], rank))
    return problem, 0.1 + fraction, W * (problem.row_weights > 0)[:, None]


def dense(problem, cells):
    matrix = np.zeros(problem.shape)
    matrix[problem.rows, problem.columns] = cells
    return matrix


def plain_columns(problem, W, penalty):
    """Each column's ridge problem, one by one."""
    H = np.zeros((problem.shape[1], W.shape[1]))
    for column in range(problem.shape[1]):
        mine = problem.columns == column
        if mine.any():
            rows = W[problem.rows[mine]]
            gram = rows.T @ rows + penalty * problem.column_weights[column] * np.eye(W.shape[1])
            H[column] = np.linalg.solve(gram, rows.T @ problem.values[mine])
    return H


def test_the_objective_is_the_printed_one():
    U = np.array([[1.0, 2.0], [np.nan, 3.0]])
    rows, columns = np.nonzero(~np.isnan(U))
    W, H = np.array([[1.0], [2.0]]), np.array([[3.0], [0.5]])
    fit = (1 - 3) ** 2 + (2 - 0.5) ** 2 + (3 - 1) ** 2
    uniform = problem_of_cells((2, 2), rows, columns, U[rows, columns], "uniform")
    assert uniform.objective(W, H, 0.1) == pytest.approx(fit + 0.1 * (1 + 4 + 9 + 0.25), rel=1e-14)
    counts = problem_of_cells((2, 2), rows, columns, U[rows, columns], "counts")  # 2 and 1 in rows, 1 and 2 in columns
    assert counts.objective(W, H, 0.1) == pytest.approx(fit + 0.1 * (2 * 1 + 4 + 9 + 2 * 0.25), rel=1e-14)


def test_counts_include_the_empty_coalition_and_nothing_seen_is_charged_nothing():
    _, matrix = federation(0, n_rounds=4, n_clients=4, n_participants=2)
    problem = problem_of(matrix, "counts")
    assert problem.row_weights.tolist() == [16, 4, 4, 4]
    assert problem.column_weights[0] == 4  # the empty coalition is seen in every round
    assert problem_of(matrix, "uniform").row_weights.tolist() == [1, 1, 1, 1]
    sparse = problem_of_cells((3, 3), np.array([0, 2]), np.array([0, 2]), np.array([1.0, 2.0]), "uniform")
    assert sparse.row_weights.tolist() == sparse.column_weights.tolist() == [1, 0, 1]


@given(SEEDS, RANKS)
def test_a_point_has_the_best_columns_and_their_objective_and_slope(seed, rank):
    problem, penalty, W = drawn(seed, rank)
    at = point(problem, W, penalty)
    np.testing.assert_allclose(at.H, plain_columns(problem, W, penalty), rtol=0, atol=1e-9)
    R = dense(problem, problem.residuals(W, at.H))
    assert at.objective == pytest.approx(problem.objective(W, at.H, penalty), rel=1e-12)
    assert at.slope == pytest.approx(penalty * problem.row_weights[:, None] * W - R @ at.H, abs=1e-10)
    assert at.steepness == pytest.approx(certify(problem, W, at.H, penalty).stationarity, rel=1e-6, abs=1e-9)


@given(SEEDS, st.integers(1, 3))
def test_a_newton_step_solves_newtons_equations(seed, rank):
    problem, penalty, W = drawn(seed, rank)
    at, width = point(problem, W, penalty), 1e-5
    slopes = []
    for unit in np.eye(W.size).reshape(-1, *W.shape):  # central differences of the slope
        ahead, behind = point(problem, W + width * unit, penalty), point(problem, W - width * unit, penalty)
        slopes.append((ahead.slope - behind.slope).ravel() / (2 * width))
    hessian = np.array(slopes)
    charges = np.where(problem.row_weights > 0, penalty * problem.row_weights, 1)
    D = np.zeros((W.size, W.size))
    for t in range(len(W)):
        H = at.H[problem.columns[problem.rows == t]]
        D[t * rank : (t + 1) * rank, t * rank : (t + 1) * rank] = H.T @ H + charges[t] * np.eye(rank)
    least = np.linalg.eigvals(np.linalg.solve(D, hessian)).real.min()
    damping = 1 + max(0.0, -least)  # the curvature is positive
    found = Hessian(problem, at, penalty)
    step = found.newton_step(at.slope.ravel(), damping, 1e-26)
    expected = np.linalg.solve(hessian + damping * D, -at.slope.ravel())
    assert step == pytest.approx(expected, rel=1e-3, abs=1e-5 * max(1, np.abs(expected).max()))
    alternating = np.linalg.solve(D, -at.slope.ravel())
    assert found.alternating_step(at.slope.ravel()) == pytest.approx(alternating, rel=1e-6, abs=1e-9)


@KINDS
def test_newton_and_alternating_ridge_solves_end_at_the_same_point(kind):
    problem = problem_of(federation(3)[1], kind)
    penalty, W = 0.1 * collapse_penalty(problem), np.random.default_rng(0).normal(size=(6, 6))
    fast = descend(problem, W, penalty, max_steps=500, tolerance=1e-10)
    assert fast.is_stationary
    assert certify(problem, fast.W, fast.H, penalty).stationarity <= 1e-10
    flipped = problem_of_cells(problem.shape[::-1], problem.columns, problem.rows, problem.values, kind)
    for _ in range(3000):
        H = best_columns(problem, W, penalty)[0]
        W = best_columns(flipped, H, penalty)[0]
    assert pytest.approx(W @ H.T, abs=1e-6) == fast.W @ fast.H.T


@given(SEEDS, st.integers(1, 3), st.floats(0.01, 10))
def test_collapsing_columns_leaves_the_best_objective_of_every_row_factor(seed, rank, penalty):
    whole, _, W = drawn(seed, rank)
    small = collapse(whole)
    H_whole, H_small = plain_columns(whole, W, penalty), plain_columns(small.problem, W, penalty)
    expected = whole.objective(W, H_whole, penalty)
    assert small.problem.objective(W, H_small, penalty) == pytest.approx(expected, rel=1e-10)
    assert small.expand(whole, W, H_small, penalty) == pytest.approx(H_whole, rel=1e-8, abs=1e-10)


def test_columns_seen_once_become_one_column_a_round_and_zeros_are_left_out():
    # column 0 is seen in both rounds; 1 and 2 in round 0 only, 3 in round 1 only, 4 never, 5 is 0 in both
    rows, columns = np.array([0, 0, 0, 1, 1, 0, 1]), np.array([0, 1, 2, 0, 3, 5, 5])
    values = np.array([1.0, 3.0, 4.0, 2.0, 7.0, 0.0, 0.0])
    whole = problem_of_cells((2, 6), rows, columns, values, "counts")
    small = collapse(whole)
    assert small.kept.tolist() == [0]
    cells = small.problem.rows.tolist(), small.problem.columns.tolist(), small.problem.values.tolist()
    assert cells == ([0, 1, 0, 1], [0, 0, 1, 2], [1, 2, 5, 7])
    assert small.problem.row_weights.tolist() == [4, 3]  # the counts of the whole
    assert small.problem.column_weights.tolist() == [2, 1, 1]


@pytest.mark.parametrize("values", [np.zeros(0), np.zeros(2)])
def test_nothing_to_complete_from_is_refused(values):
    rows = np.arange(len(values))
    with pytest.raises(CompletionError, match="nothing to complete from"):
        problem_of_cells((2, 2), rows, rows, values, "counts")
    with pytest.raises(UsageError, match="did you mean 'uniform'"):
        problem_of_cells((1, 1), np.array([0]), np.array([0]), np.ones(1), "unifrom")  # type: ignore[arg-type]


# The certificate, held against a convex solver that knows no factors


@given(SEEDS)
def test_leading_singular_vectors_are_those_of_the_scaled_matrix(seed):
    problem, _ = random_problem(seed)
    roots = np.sqrt(problem.row_weights[problem.rows] * problem.column_weights[problem.columns])
    matrix = dense(problem, problem.values / roots)
    n = min(problem.shape)
    U, sigma = top_singular(problem, problem.values, n)
    expected = np.linalg.svd(matrix, compute_uv=False)[:n]
    assert sigma == pytest.approx(expected, abs=1e-7 * expected[0])  # from the Gram matrix, σ is known to √ε
    assert collapse_penalty(problem) == pytest.approx(expected[0], rel=1e-12)
    assert matrix @ (matrix.T @ U) == pytest.approx(U * sigma**2, abs=1e-9 * expected[0] ** 2)
    assert (U[np.abs(U).argmax(axis=0), np.arange(U.shape[1])] > 0).all()


@KINDS
@pytest.mark.parametrize("fraction", [0.3, 0.05])
@pytest.mark.parametrize("seed", [0, 1])
def test_a_certified_point_is_the_optimum_of_the_convex_problem(kind, fraction, seed):
    problem = problem_of(federation(seed, n_rounds=4, n_clients=3)[1], kind)
    penalty = fraction * collapse_penalty(problem)
    X = convex_optimum(problem, penalty)
    solution = solve(problem, 4, penalty)
    assert solution.certificate.is_global
    assert pytest.approx(X, abs=1e-7 * np.abs(X).max()) == solution.W @ solution.H.T
    assert solution.objective == pytest.approx(convex_objective(problem, X, penalty), rel=1e-10)


@KINDS
def test_the_certificate_is_stationarity_and_the_residuals_norm(kind):
    problem = problem_of(federation(2, n_rounds=4, n_clients=3)[1], kind)
    rng = np.random.default_rng(0)
    W, H = rng.normal(size=(4, 2)), rng.normal(size=(problem.shape[1], 2))
    a, b = np.sqrt(problem.row_weights)[:, None], np.sqrt(problem.column_weights)[:, None]
    R = dense(problem, problem.residuals(W, H))
    found = certify(problem, W, H, 0.7)
    assert found.spectral_ratio == pytest.approx(np.linalg.norm(R / (a * b.T), 2) / 0.7, rel=1e-12)
    slope = np.hypot(np.linalg.norm(R @ H - 0.7 * a**2 * W), np.linalg.norm(R.T @ W - 0.7 * b**2 * H))
    size = np.hypot(np.linalg.norm(0.7 * a**2 * W), np.linalg.norm(0.7 * b**2 * H))
    assert found.stationarity == pytest.approx(slope / size, rel=1e-12)
    assert [Certificate(*parts).is_global for parts in ((0, 1), (1e-3, 1), (0, 1.1))] == [True, False, False]


def test_zero_factors_are_stationary_and_optimal_from_the_collapse_penalty_on():
    problem = problem_of(federation(4)[1], "counts")
    W, H, limit = np.zeros((problem.shape[0], 2)), np.zeros((problem.shape[1], 2)), collapse_penalty(problem)
    assert certify(problem, W, H, 1.001 * limit).is_global
    assert not certify(problem, W, H, 0.999 * limit).is_global


# The solver


@pytest.mark.parametrize("first", range(0, 120, 40))
def test_with_enough_rank_every_problem_is_solved_and_certified(first):
    # rank min(T, columns): every stationary point that uses all of it, or has ‖R‖₂ ≤ λ, is the convex optimum
    for seed in range(first, first + 40):
        problem, fraction = random_problem(seed)
        penalty = fraction * collapse_penalty(problem)
        solution = solve(problem, min(problem.shape), penalty)
        assert solution.status is Status.CERTIFIED, (seed, solution.certificate)
        assert solution.certificate.spectral_ratio <= 1 + 1e-6
        X = solution.W @ solution.H.T
        # what no factors can beat; the factors' own penalty is the nuclear norm once they are balanced
        assert solution.objective == pytest.approx(convex_objective(problem, X, penalty), rel=1e-8)


@KINDS
@pytest.mark.parametrize("seed", [3, 5])
def test_any_rank_that_is_large_enough_gives_the_same_matrix(kind, seed):
    problem = problem_of(federation(seed)[1], kind)
    penalty = 0.05 * collapse_penalty(problem)
    reference = solve(problem, 6, penalty)
    needed = int((np.linalg.svd(reference.W @ reference.H.T, compute_uv=False) > 1e-6).sum())
    for rank in (needed, needed + 1, 9):
        solution = solve(problem, rank, penalty)
        assert solution.status is Status.CERTIFIED
        assert solution.objective == pytest.approx(reference.objective, rel=1e-10)
        completed = solution.W @ solution.H.T
        assert completed == pytest.approx(reference.W @ reference.H.T, abs=1e-6)


def test_a_certificate_promises_the_objective_and_the_seen_cells_but_not_always_the_unseen_ones():
    # the convex problem is strictly convex in the seen cells only: here it has more than one optimum
    problem = problem_of(federation(0)[1], "uniform")
    penalty = 0.05 * collapse_penalty(problem)
    one, two = solve(problem, 6, penalty), solve(problem, 10, penalty)
    assert one.status is two.status is Status.CERTIFIED
    assert one.objective == pytest.approx(two.objective, rel=1e-10)
    assert problem.residuals(one.W, one.H) == pytest.approx(problem.residuals(two.W, two.H), abs=1e-6)
    assert np.abs(one.W @ one.H.T - two.W @ two.H.T).max() > 0.01


@KINDS
def test_the_order_of_rounds_and_coalitions_does_not_matter(kind):
    problem, rng = problem_of(federation(1)[1], kind), np.random.default_rng(0)
    penalty = 0.02 * collapse_penalty(problem)
    for rank in (1, 2, 6):  # also where the rank is too small for a certificate
        X, objective = matrix_and_objective(solve(problem, rank, penalty))
        rows, columns = rng.permutation(problem.shape[0]), rng.permutation(problem.shape[1])
        cells = rows[problem.rows], columns[problem.columns], problem.values
        moved = solve(problem_of_cells(problem.shape, *cells, kind), rank, penalty)
        Y, again = matrix_and_objective(moved)
        assert again == pytest.approx(objective, rel=1e-9)
        assert Y[np.ix_(rows, columns)] == pytest.approx(X, abs=1e-6)


def matrix_and_objective(solution):
    return solution.W @ solution.H.T, solution.objective


@KINDS
@pytest.mark.parametrize("scale", [1e-6, 1e-3, 1e3, 1e6])
def test_the_unit_of_utility_does_not_matter(kind, scale):
    problem = problem_of(federation(2)[1], kind)
    scaled = problem_of_cells(problem.shape, problem.rows, problem.columns, scale * problem.values, kind)
    limit = collapse_penalty(problem)
    assert collapse_penalty(scaled) == pytest.approx(scale * limit, rel=1e-12)
    one, two = solve(problem, 3, 0.01 * limit), solve(scaled, 3, 0.01 * scale * limit)
    assert two.status is one.status
    assert two.certificate.spectral_ratio == pytest.approx(one.certificate.spectral_ratio, rel=1e-6)
    assert two.objective == pytest.approx(scale**2 * one.objective, rel=1e-9)
    assert two.W @ two.H.T / scale == pytest.approx(one.W @ one.H.T, abs=1e-7)


@KINDS
def test_a_penalty_that_makes_everything_zero_is_refused(kind):
    _, matrix = federation(3)
    problem = problem_of(matrix, kind)
    limit = collapse_penalty(problem_of(matrix, kind))
    zero_filled = np.zeros(problem.shape)
    roots = np.sqrt(problem.row_weights[problem.rows] * problem.column_weights[problem.columns])
    zero_filled[problem.rows, problem.columns] = problem.values / roots
    assert limit == pytest.approx(np.linalg.norm(zero_filled, 2), rel=1e-12)
    for penalty in (limit * (1 + 1e-9), 10 * limit):
        with pytest.raises(CompletionError, match=r"λ_collapse.*every value, would be 0"):
            solve(problem, 2, penalty)
    just_below = solve(problem, 2, 0.999 * limit)
    assert just_below.status is Status.CERTIFIED
    size = np.abs(just_below.W @ just_below.H.T).max()
    assert 0 < size < 0.01 * np.abs(problem.values).max()


NO_PENALTIES = [0.0, 1e-320, 1e-30, -1.0, float("nan")]


@pytest.mark.parametrize(("rank", "penalty"), [(0, 1e-3), *((1, penalty) for penalty in NO_PENALTIES)])
def test_a_rank_or_penalty_that_is_not_positive_is_refused(rank, penalty):
    with pytest.raises(CompletionError, match="expected"):
        solve(problem_of(federation(3)[1], "counts"), rank, penalty)


def test_a_rank_that_is_too_small_converges_without_a_certificate():
    problem = problem_of(federation(4, rank=3)[1], "counts")
    solution = solve(problem, 1, 0.01 * collapse_penalty(problem))
    assert solution.status is Status.CONVERGED
    assert "a larger rank may do better" in solution.status
    assert solution.certificate.stationarity <= 1e-8
    assert solution.certificate.spectral_ratio > 1.01


def test_running_out_of_sweeps_is_said():
    problem = problem_of(federation(5)[1], "counts")
    solution = solve(problem, 3, 1e-4 * collapse_penalty(problem), max_sweeps=1)
    assert solution.status is Status.MAX_SWEEPS
    assert solution.certificate.stationarity > 1e-10


def test_a_penalty_too_small_for_float64_ends_with_that_reason_and_not_after_all_sweeps():
    problem = problem_of(federation(5)[1], "uniform")
    solution = solve(problem, 6, 1e-12 * collapse_penalty(problem))
    assert solution.status is Status.ROUNDING
    assert solution.n_sweeps < 5000


@KINDS
def test_a_column_seen_in_one_round_is_that_round_rescaled(kind):
    _, matrix = federation(6)
    problem = problem_of(matrix, kind)
    penalty = 0.05 * collapse_penalty(problem)
    solution = solve(problem, 3, penalty)
    everyone = int(matrix.coalitions.all(axis=1).argmax())  # seen in round 1 only
    w, U = solution.W[0], matrix.dense()[0, everyone]
    assert solution.H[everyone] == pytest.approx(w * U / (w @ w + penalty), rel=1e-12)


@KINDS
def test_rounds_in_which_nobody_took_part_change_nothing(kind):
    utilities, matrix = federation(7)
    empty = np.zeros((2, 5), dtype=bool)
    more = matrix_of(np.vstack([utilities, np.zeros((2, 32))]), np.vstack([matrix.participants, empty]))
    penalty = 0.05 * collapse_penalty(problem_of(matrix, kind))
    # the empty coalition is seen in every round and is 0 in all, so its column and those rounds have zero factors
    one, two = solve(problem_of(matrix, kind), 6, penalty), solve(problem_of(more, kind), 6, penalty)
    assert not two.W[6:].any()
    assert two.status is Status.CERTIFIED
    assert two.W[:6] @ two.H.T == pytest.approx(one.W @ one.H.T, abs=1e-8)


@pytest.mark.parametrize("n_clients", [5, 6, 7])
def test_a_certified_optimum_can_be_less_fair_than_theorem_1_prints(n_clients):
    # T = 2, U_1 ≡ 0, U_2(S) = 1 if S meets {0, 1}; everyone is heard in round 1, all but client 1 in round 2
    meets = (np.arange(2**n_clients) & 3 != 0).astype(float)
    truth = np.array([np.zeros(2**n_clients), meets])
    participants = np.ones((2, n_clients), dtype=bool)
    participants[1, 1] = False
    matrix, penalty = matrix_of(truth, participants), 0.1
    solution = solve(problem_of(matrix, "uniform"), 2, penalty)
    assert solution.status is Status.CERTIFIED
    completed = in_order(matrix, solution.W @ solution.H.T)
    values = shapley_values(completed.sum(axis=0))
    delta, gap = completeness(truth, completed), abs(values[0] - values[1])
    assert delta == pytest.approx(1, rel=1e-9)
    assert gap == pytest.approx(1 - penalty / 2 ** ((n_clients - 2) / 2), rel=1e-9)
    assert gap > 4 * delta / n_clients


def in_order(matrix: UtilityMatrix, X):
    """The columns of X in the order of the coalitions' integers."""
    return X[:, np.argsort(matrix.coalitions @ (1 << np.arange(matrix.n_clients)))]


@KINDS
def test_a_large_reduced_problem_is_certified(kind):
    problem = problem_of(large_federation(50, 15, 50, 100), kind)
    solution = solve(problem, 20, 0.01 * collapse_penalty(problem))
    assert solution.status is Status.CERTIFIED
    assert solution.n_sweeps < 500


@KINDS
def test_the_same_cells_give_the_same_bytes_in_any_thread(kind):
    problems = [problem_of(federation(seed)[1], kind) for seed in range(3)]
    problems.append(problem_of(large_federation(20, 6, 30, 20), kind))

    def bytes_of(problem):
        solution = solve(problem, 3, 0.01 * collapse_penalty(problem))
        return solution.W.tobytes(), solution.H.tobytes(), solution.objective

    expected = [bytes_of(problem) for problem in problems]
    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(bytes_of, 2 * problems)) == 2 * expected
