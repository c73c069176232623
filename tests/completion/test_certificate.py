"""The certificate of global optimality, held against a convex solver that knows no factors."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedworth.completion.certificate import Certificate, certify, spectral_norm, stationarity, top_singular
from fedworth.completion.problem import problem_of
from fedworth.completion.solver import collapse_penalty, solve
from tests.support.games import convex_objective, convex_optimum, federation, random_problem


@given(st.integers(0, 10_000))
def test_leading_singular_vectors_are_those_of_the_scaled_matrix(seed):
    problem, _ = random_problem(seed)
    matrix = np.zeros(problem.shape)
    roots = np.sqrt(problem.row_weights[problem.rows] * problem.column_weights[problem.columns])
    matrix[problem.rows, problem.columns] = problem.values / roots
    n, values = min(problem.shape), problem.transposed.values
    U, sigma = top_singular(problem, values, n)
    expected = np.linalg.svd(matrix, compute_uv=False)[:n]
    # from the Gram matrix, σ is known to √ε of the largest
    assert sigma == pytest.approx(expected, abs=1e-7 * expected[0])
    assert spectral_norm(problem, values) == pytest.approx(expected[0], rel=1e-12)
    assert matrix @ (matrix.T @ U) == pytest.approx(U * sigma**2, abs=1e-9 * expected[0] ** 2)
    largest = U[np.abs(U).argmax(axis=0), np.arange(U.shape[1])]
    assert (largest > 0).all()  # signs are settled


@pytest.mark.parametrize("kind", ["uniform", "counts"])
@pytest.mark.parametrize("fraction", [0.3, 0.05])
@pytest.mark.parametrize("seed", [0, 1])
def test_a_certified_point_is_the_optimum_of_the_convex_problem(kind, fraction, seed):
    problem = problem_of(federation(seed, n_rounds=4, n_clients=3)[1], kind)
    penalty = fraction * collapse_penalty(problem)
    X = convex_optimum(problem, penalty)
    solution = solve(problem, 4, penalty)
    assert solution.certificate.is_global
    completed = solution.W @ solution.H.T
    assert completed == pytest.approx(X, abs=1e-7 * np.abs(X).max())
    assert solution.objective == pytest.approx(convex_objective(problem, X, penalty), rel=1e-10)


@pytest.mark.parametrize("kind", ["uniform", "counts"])
def test_the_certificate_is_stationarity_and_the_residuals_norm(kind):
    problem = problem_of(federation(2, n_rounds=4, n_clients=3)[1], kind)
    rng = np.random.default_rng(0)
    W, H = rng.normal(size=(4, 2)), rng.normal(size=(problem.shape[1], 2))
    a, b = np.sqrt(problem.row_weights)[:, None], np.sqrt(problem.column_weights)[:, None]
    R = np.zeros(problem.shape)
    R[problem.rows, problem.columns] = problem.values - (W @ H.T)[problem.rows, problem.columns]
    found = certify(problem, W, H, 0.7)
    assert found.spectral_ratio == pytest.approx(np.linalg.norm(R / (a * b.T), 2) / 0.7, rel=1e-12)
    slope = np.hypot(np.linalg.norm(R @ H - 0.7 * a**2 * W), np.linalg.norm(R.T @ W - 0.7 * b**2 * H))
    size = np.hypot(np.linalg.norm(0.7 * a**2 * W), np.linalg.norm(0.7 * b**2 * H))
    assert found.stationarity == pytest.approx(slope / size, rel=1e-12)
    assert not found.is_global


def test_a_rank_that_is_too_small_is_stationary_but_not_certified():
    problem = problem_of(federation(3, rank=3)[1], "uniform")
    penalty = 0.01 * collapse_penalty(problem)
    small, enough = solve(problem, 1, penalty), solve(problem, 6, penalty)
    assert small.certificate.stationarity <= 1e-8
    assert small.certificate.spectral_ratio > 1.01
    assert not small.certificate.is_global
    assert enough.certificate.is_global
    assert enough.objective < small.objective


def test_zero_factors_are_stationary():
    problem = problem_of(federation(4)[1], "counts")
    W, H = np.zeros((problem.shape[0], 2)), np.zeros((problem.shape[1], 2))
    assert stationarity(problem, W, H, 1.0) == 0
    limit = collapse_penalty(problem)
    assert certify(problem, W, H, 1.001 * limit).is_global
    assert not certify(problem, W, H, 0.999 * limit).is_global


def test_both_parts_are_needed_for_a_certificate():
    assert Certificate(0.0, 1.0).is_global
    assert not Certificate(1e-3, 1.0).is_global
    assert not Certificate(0.0, 1.1).is_global
