"""Alternating ridge solves: each step is the best one, and sweeping only ever gets lower."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedworth.completion.als import column_step, row_step, sweep
from fedworth.completion.certificate import stationarity
from fedworth.completion.newton import descend
from fedworth.completion.problem import collapse, problem_of, problem_of_cells
from fedworth.completion.solver import collapse_penalty
from tests.support.games import federation, random_problem

KINDS = pytest.mark.parametrize("kind", ["uniform", "counts"])


def start(problem, rank, seed=0):
    return np.random.default_rng(seed).normal(size=(problem.shape[0], rank))


def product(factors):
    return factors.W @ factors.H.T


@given(st.integers(0, 10_000), st.integers(1, 3))
def test_each_factor_solves_its_own_ridge_problem(seed, rank):
    problem, fraction = random_problem(seed)
    penalty = fraction * collapse_penalty(problem)
    W = start(problem, rank, seed)
    H = column_step(problem, W, penalty)
    for column in range(problem.shape[1]):
        mine = problem.columns == column
        A = W[problem.rows[mine]]
        gram = A.T @ A + penalty * problem.column_weights[column] * np.eye(rank)
        if mine.any():
            pull = A.T @ problem.values[mine]
            assert gram @ H[column] == pytest.approx(pull, rel=1e-6, abs=1e-9 * np.abs(problem.values).max())
        else:
            assert not H[column].any()


@KINDS
def test_no_other_factors_do_better_than_a_steps(kind):
    problem = problem_of(federation(0)[1], kind)
    rng = np.random.default_rng(1)
    W = start(problem, 2)
    H = column_step(problem, W, 0.3)
    best = problem.objective(W, H, 0.3)
    assert all(problem.objective(W, H + 0.01 * rng.normal(size=H.shape), 0.3) > best for _ in range(20))
    W = row_step(problem, H, 0.3)
    best = problem.objective(W, H, 0.3)
    assert all(problem.objective(W + 0.01 * rng.normal(size=W.shape), H, 0.3) > best for _ in range(20))


@KINDS
def test_mixing_never_ends_above_plain_sweeps(kind):
    problem = problem_of(federation(1)[1], kind)
    W = start(problem, 2)
    plain = W
    for n_sweeps in range(1, 30):
        plain = row_step(problem, column_step(problem, plain, 0.05), 0.05)
        mixed = sweep(problem, W, 0.05, max_sweeps=n_sweeps, tolerance=0)
        assert mixed.n_sweeps == n_sweeps
        assert not mixed.is_stationary
    reached = problem.objective(plain, column_step(problem, plain, 0.05), 0.05)
    assert problem.objective(mixed.W, mixed.H, 0.05) <= reached * (1 + 1e-12)


@KINDS
@pytest.mark.parametrize("method", [sweep, descend])
def test_it_stops_when_the_gradient_is_as_small_as_asked(kind, method):
    problem = problem_of(federation(2)[1], kind)
    penalty = 0.1 * collapse_penalty(problem)
    for tolerance in (1e-2, 1e-5, 1e-9):
        found = method(problem, start(problem, 6), penalty, max_sweeps=2000, tolerance=tolerance)
        assert found.is_stationary
        assert stationarity(problem, found.W, found.H, penalty) <= tolerance
    cut = method(problem, start(problem, 6), penalty, max_sweeps=1, tolerance=1e-9)
    assert (cut.n_sweeps, cut.is_stationary) == (1, False)


@KINDS
def test_newton_and_alternating_solves_end_at_the_same_point(kind):
    problem = problem_of(federation(3)[1], kind)
    penalty = 0.1 * collapse_penalty(problem)
    slow = sweep(problem, start(problem, 6), penalty, max_sweeps=5000, tolerance=1e-10)
    fast = descend(problem, start(problem, 6), penalty, max_sweeps=500, tolerance=1e-10)
    assert fast.n_sweeps < slow.n_sweeps
    assert product(fast) == pytest.approx(product(slow), abs=1e-7)


@KINDS
def test_the_whole_and_the_collapsed_problem_reach_the_same_matrix(kind):
    whole = problem_of(federation(4)[1], kind)
    small, penalty = collapse(whole), 0.1 * collapse_penalty(whole)
    assert small.problem.shape[1] < whole.shape[1] / 2
    assert collapse_penalty(small.problem) == pytest.approx(collapse_penalty(whole), rel=1e-12)
    one = sweep(whole, start(whole, 6), penalty, max_sweeps=5000, tolerance=1e-11)
    two = sweep(small.problem, start(whole, 6), penalty, max_sweeps=5000, tolerance=1e-11)
    H = small.expand(whole, two.W, two.H, penalty)
    completed = two.W @ H.T
    assert completed == pytest.approx(product(one), abs=1e-8)
    reached = small.problem.objective(two.W, two.H, penalty)
    assert whole.objective(two.W, H, penalty) == pytest.approx(reached, rel=1e-12)
    assert whole.objective(one.W, one.H, penalty) == pytest.approx(reached, rel=1e-12)


def test_a_row_with_no_seen_cell_has_zero_factors():
    problem = problem_of_cells((3, 2), np.array([0, 2]), np.array([0, 1]), np.ones(2), "counts")
    W = row_step(problem, np.ones((2, 2)), 0.1)
    assert not W[1].any()
    assert W[[0, 2]].all()
