"""Values from permutations: unbiased, balanced, with standard errors that hold."""

import itertools
import math

import numpy as np
import pytest

from fedworth.coalitions import coalitions_of, prefixes
from fedworth.games.squares import draw_permutations
from fedworth.valuation.permutations import permutation_covariance, permutation_values
from fedworth.valuation.shapley import shapley_values


def close(expected):
    return pytest.approx(expected, rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5])
def test_all_permutations_together_give_the_exact_value(n):
    utilities = np.random.default_rng(n).normal(size=2**n)
    permutations = np.array(list(itertools.permutations(range(n))))
    columns = prefixes(permutations, n) @ (1 << np.arange(n))
    values, _ = permutation_values(utilities[columns].reshape(len(permutations), -1), permutations, n)
    assert values == close(shapley_values(utilities))


def test_random_permutations_are_unbiased():
    # z = (estimate − exact)/σ̂ has |z| < 5 for each of 6 players but with probability < 6 · 6e-7, by the central limit
    n, rng = 6, np.random.default_rng(0)
    utilities = rng.normal(size=2**n)
    permutations = draw_permutations(np.arange(n), 4000, rng=rng)
    columns = prefixes(permutations, n) @ (1 << np.arange(n))
    values, errors = permutation_values(utilities[columns].reshape(len(permutations), -1), permutations, n)
    assert (np.abs(values - shapley_values(utilities)) < 5 * errors).all()


def drawn(utilities, permutations):
    """The utilities of all prefixes of these permutations, (n_permutations, n + 1)."""
    n = len(utilities).bit_length() - 1
    return utilities[prefixes(permutations, n) @ (1 << np.arange(n))].reshape(len(permutations), -1)


def marginals_of(utilities, permutations):
    """(n_permutations, n): what each client adds in each order."""
    return np.take_along_axis(np.diff(drawn(utilities, permutations), axis=1), np.argsort(permutations, axis=1), axis=1)


def shared(variances, n_own):
    """Variances drawn to their mean, which counts as four draws."""
    return (n_own * variances + 4 * variances.mean()) / (n_own + 4)


def test_standard_errors_of_any_orders_are_the_shared_spread_of_the_marginals():
    utilities, permutations = (
        np.random.default_rng(21).normal(size=16),
        np.random.default_rng(22).permuted(np.tile(np.arange(4), (9, 1)), axis=1),
    )
    values, errors = permutation_values(drawn(utilities, permutations), permutations, 4)
    marginals = marginals_of(utilities, permutations)
    assert values == close(marginals.mean(axis=0))
    assert errors**2 == close(shared(marginals.var(axis=0, ddof=1) / 9, 9 / 4 - 1))


def test_standard_errors_of_squares_are_the_spread_at_each_place_between_them():
    n, n_squares = 5, 3
    utilities = np.random.default_rng(23).normal(size=2**n)
    permutations = draw_permutations(np.arange(n), n_squares * n, rng=np.random.default_rng(24))
    marginals = marginals_of(utilities, permutations).reshape(n_squares, n, n)
    places = np.argsort(permutations, axis=1).reshape(n_squares, n, n)
    variances = np.zeros(n)
    for client in range(n):
        for place in range(n):
            at_place = marginals[:, :, client][places[:, :, client] == place]  # (n_squares,)
            variances[client] += at_place.var(ddof=1) / (n_squares * n**2)
    errors = permutation_values(drawn(utilities, permutations), permutations, n)[1]
    assert errors**2 == close(shared(variances, n_squares - 1))


def test_a_part_of_a_square_is_left_out_where_there_are_whole_ones():
    utilities = np.random.default_rng(25).normal(size=16)
    permutations = draw_permutations(np.arange(4), 11, rng=np.random.default_rng(26))
    seen = drawn(utilities, permutations)
    some, whole = permutation_values(seen, permutations, 4), permutation_values(seen[:8], permutations[:8], 4)
    assert np.array_equal(some, whole)


def averaging_game(n, rng):
    """Minus the loss of averaged logits: what a round of a federation looks like."""
    logits = rng.normal(size=(n, 12, 3)) + 2 * np.eye(3)[rng.integers(0, 3, n)][:, None]  # (n, samples, classes)
    weights = coalitions_of(np.arange(n), n)[1:].astype(float)
    mixed = np.einsum("cn,nsk->csk", weights / weights.sum(axis=1)[:, None], logits)
    losses = np.log(np.exp(mixed).sum(axis=2)) - mixed[:, np.arange(12), np.arange(12) % 3]
    return np.concatenate([[0.0], math.log(3) - losses.mean(axis=1)])


@pytest.mark.parametrize("balanced", [True, False])
def test_standard_errors_are_as_large_as_the_errors(balanced):
    """z = error / standard error, of 2,000 estimates of one game: its mean square is 1 if standard errors are right.
    The mean over 8 clients of z² has a standard deviation of at most √2 (normal z, all clients moving as one), so the
    mean over the draws lies within 5 √2 / √2000 = 0.16 of its expectation but for a chance of 6e-7, and the share
    beyond 1.96 within 5 √(0.05 / 2000) = 0.025 of 5 %. Bounds are twice as wide, for standard errors are estimates."""
    n, rng = 8, np.random.default_rng(27)
    utilities = averaging_game(n, rng)
    true, missed = shapley_values(utilities), []
    for _ in range(2000):
        permutations = draw_permutations(np.arange(n), 3 * n, rng=rng)
        permutations = permutations if balanced else rng.permuted(permutations, axis=1)
        values, errors = permutation_values(drawn(utilities, permutations), permutations, n)
        missed.append((values - true) / errors)
    z = np.array(missed)
    assert np.mean(z**2) == pytest.approx(1, abs=0.32)
    assert np.mean(np.abs(z) > 1.96) == pytest.approx(0.05, abs=0.05)


def test_squares_err_far_less_than_as_many_random_orders():
    """Errors of 300 estimates each, root mean square; their ratio was measured at 0.2 to 0.6."""
    n, rng = 8, np.random.default_rng(28)
    utilities = averaging_game(n, rng)
    true, squares, random = shapley_values(utilities), [], []
    for _ in range(300):
        permutations = draw_permutations(np.arange(n), 3 * n, rng=rng)
        squares.append(marginals_of(utilities, permutations).mean(axis=0) - true)
        random.append(marginals_of(utilities, rng.permuted(permutations, axis=1)).mean(axis=0) - true)
    assert np.mean(np.square(squares)) < 0.5**2 * np.mean(np.square(random))


def test_one_permutation_has_no_standard_error_and_an_absent_client_no_value():
    values, errors = permutation_values(np.array([[0.0, 1.0, 3.0]]), np.array([[2, 0]]), 3)
    assert values == pytest.approx([2.0, np.nan, 1.0], nan_ok=True)
    assert np.isnan(errors).all()


@pytest.mark.parametrize("count", [30, 33])
@pytest.mark.parametrize("balanced", [True, False])
def test_the_covariance_has_the_variances_and_no_direction_of_negative_variance(balanced, count):
    n, rng = 5, np.random.default_rng(3)
    utilities = rng.normal(size=2**n)
    permutations = draw_permutations(np.arange(n), count, rng=rng)
    permutations = permutations if balanced else rng.permuted(permutations, axis=1)
    covariance = permutation_covariance(drawn(utilities, permutations), permutations)
    errors = permutation_values(drawn(utilities, permutations), permutations, n)[1]
    assert np.diag(covariance) == close(errors**2)
    assert np.linalg.eigvalsh(covariance).min() > -1e-12
    if not balanced:
        assert covariance.sum(axis=0) == pytest.approx(np.zeros(n), abs=1e-12)  # every order shares out the same
