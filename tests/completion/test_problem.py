"""The completion problem: what is charged, and the exactness of the column collapse."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedworth.completion.problem import collapse, problem_of, problem_of_cells
from fedworth.errors import CompletionError, UsageError
from tests.support.games import federation, random_problem

SEEDS = st.integers(0, 10_000)


def test_the_objective_is_the_printed_one():
    U = np.array([[1.0, 2.0], [np.nan, 3.0]])
    rows, columns = np.nonzero(~np.isnan(U))
    W, H = np.array([[1.0], [2.0]]), np.array([[3.0], [0.5]])
    fit = (1 - 3) ** 2 + (2 - 0.5) ** 2 + (3 - 1) ** 2
    uniform = problem_of_cells((2, 2), rows, columns, U[rows, columns], "uniform")
    assert uniform.objective(W, H, 0.1) == pytest.approx(fit + 0.1 * (1 + 4 + 9 + 0.25), rel=1e-14)
    counts = problem_of_cells((2, 2), rows, columns, U[rows, columns], "counts")  # 2 and 1 in rows, 1 and 2 in columns
    assert counts.objective(W, H, 0.1) == pytest.approx(fit + 0.1 * (2 * 1 + 4 + 9 + 2 * 0.25), rel=1e-14)


def test_counts_include_the_empty_coalition():
    _, matrix = federation(0, n_rounds=4, n_clients=4, n_participants=2)
    problem = problem_of(matrix, "counts")
    assert problem.row_weights.tolist() == [16, 4, 4, 4]
    assert problem.column_weights[0] == 4  # the empty coalition is seen in every round
    assert problem_of(matrix, "uniform").row_weights.tolist() == [1, 1, 1, 1]


def test_rows_and_columns_without_a_seen_cell_are_charged_nothing():
    problem = problem_of_cells((3, 3), np.array([0, 2]), np.array([0, 2]), np.array([1.0, 2.0]), "uniform")
    assert problem.row_weights.tolist() == [1, 0, 1]
    assert problem.column_weights.tolist() == [1, 0, 1]


@given(SEEDS, st.randoms(use_true_random=False))
def test_the_order_in_which_cells_come_does_not_matter(seed, random):
    problem, _ = random_problem(seed)
    order = list(range(len(problem.values)))
    random.shuffle(order)
    cells = problem.rows[order], problem.columns[order], problem.values[order]
    again = problem_of_cells(problem.shape, *cells, "uniform")
    assert np.array_equal(again.rows, problem.rows)
    assert np.array_equal(again.columns, problem.columns)
    assert np.array_equal(again.values, problem.values)


@given(SEEDS)
def test_both_layouts_have_the_cells_where_they_were_seen(seed):
    problem, _ = random_problem(seed)
    for cells, lines, others in (
        (problem.cells, problem.rows, problem.columns),
        (problem.transposed, problem.columns, problem.rows),
    ):
        line = np.repeat(np.arange(len(cells.weights)), np.diff(cells.starts))
        order = np.lexsort((others, lines))
        assert np.array_equal(line, lines[order])
        assert np.array_equal(cells.columns, others[order])
        assert np.array_equal(cells.values, problem.values[order])  # a seen zero stays seen
    assert problem.cells.weights is problem.row_weights
    assert problem.transposed.weights is problem.column_weights


@given(SEEDS, st.integers(1, 3), st.floats(0.01, 10))
def test_collapsing_columns_leaves_the_best_objective_of_every_row_factor(seed, rank, penalty):
    # both problems with their best column factors, for the same arbitrary row factors
    whole, _ = random_problem(seed)
    whole = problem_of_cells(
        whole.shape, whole.rows, whole.columns, whole.values / np.abs(whole.values).max(), "counts"
    )
    small = collapse(whole)
    W = np.random.default_rng(seed).normal(size=(whole.shape[0], rank))
    H_whole, H_small = best_columns(whole, W, penalty), best_columns(small.problem, W, penalty)
    expected = whole.objective(W, H_whole, penalty)
    assert small.problem.objective(W, H_small, penalty) == pytest.approx(expected, rel=1e-10)
    assert small.expand(whole, W, H_small, penalty) == pytest.approx(H_whole, rel=1e-8, abs=1e-10)


def best_columns(problem, W, penalty):
    """Each column's ridge problem, one by one."""
    H = np.zeros((problem.shape[1], W.shape[1]))
    for column in range(problem.shape[1]):
        mine = problem.columns == column
        if mine.any():
            rows = W[problem.rows[mine]]
            gram = rows.T @ rows + penalty * problem.column_weights[column] * np.eye(W.shape[1])
            H[column] = np.linalg.solve(gram, rows.T @ problem.values[mine])
    return H


def test_columns_seen_once_become_one_column_a_round():
    # column 0 is seen in both rounds; 1 and 2 in round 0 only, 3 in round 1 only, 4 never
    rows, columns = np.array([0, 0, 0, 1, 1]), np.array([0, 1, 2, 0, 3])
    whole = problem_of_cells((2, 5), rows, columns, np.array([1.0, 3.0, 4.0, 2.0, 7.0]), "counts")
    small = collapse(whole)
    assert small.kept.tolist() == [0]
    cells = small.problem.rows.tolist(), small.problem.columns.tolist(), small.problem.values.tolist()
    assert cells == ([0, 0, 1, 1], [0, 1, 0, 2], [1, 5, 2, 7])
    assert small.problem.row_weights.tolist() == [3, 2]  # the counts of the whole
    assert small.problem.column_weights.tolist() == [2, 1, 1]


def test_columns_that_are_zero_wherever_seen_are_left_out_and_have_zero_factors():
    rows, columns = np.array([0, 0, 1, 1]), np.array([0, 1, 0, 1])
    whole = problem_of_cells((2, 2), rows, columns, np.array([0.0, 3.0, 0.0, 2.0]), "counts")
    small, W = collapse(whole), np.array([[0.5, 2.0], [1.0, 1.0]])
    assert small.kept.tolist() == [1]
    assert small.problem.row_weights.tolist() == [2, 2]  # the counts of the whole
    H = small.expand(whole, W, best_columns(small.problem, W, 0.3), 0.3)
    assert np.allclose(H, best_columns(whole, W, 0.3), rtol=1e-12, atol=0)
    assert not H[0].any()


def test_a_column_seen_once_is_its_round_rescaled():
    rows, columns = np.array([0, 0, 1]), np.array([0, 1, 0])
    whole = problem_of_cells((2, 2), rows, columns, np.array([1.0, 3.0, 2.0]), "uniform")
    W = np.array([[0.5, 2.0], [1.0, 1.0]])
    small = collapse(whole)
    H = small.expand(whole, W, best_columns(small.problem, W, 0.3), 0.3)
    assert H[1] == pytest.approx(W[0] * 3 / (0.25 + 4 + 0.3), rel=1e-14)


@pytest.mark.parametrize("values", [np.zeros(0), np.zeros(2)])
def test_nothing_to_complete_from_is_refused(values):
    rows = np.arange(len(values))
    with pytest.raises(CompletionError, match="nothing to complete from"):
        problem_of_cells((2, 2), rows, rows, values, "counts")


def test_an_unknown_penalty_kind_is_refused_with_the_nearest_name():
    with pytest.raises(UsageError, match="did you mean 'uniform'"):
        problem_of_cells((1, 1), np.array([0]), np.array([0]), np.ones(1), "unifrom")  # type: ignore[arg-type]
