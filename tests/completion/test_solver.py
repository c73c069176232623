"""The solver: it ends at the global optimum whenever the rank allows it, and always says where it ended."""

import numpy as np
import pytest

from fedworth.completion.als import Status
from fedworth.completion.problem import problem_of, problem_of_cells
from fedworth.completion.solver import collapse_penalty, collapse_penalty_of, solve
from fedworth.errors import CompletionError
from fedworth.games.matrix import UtilityMatrix
from fedworth.theory.fairness import completeness
from fedworth.valuation.shapley import shapley_values
from tests.support.games import convex_objective, federation, large_federation, matrix_of, random_problem

KINDS = pytest.mark.parametrize("kind", ["uniform", "counts"])


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
    limit = collapse_penalty_of(matrix, kind)
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
    penalty = 0.05 * collapse_penalty_of(matrix, kind)
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
