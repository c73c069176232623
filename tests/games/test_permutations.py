"""Permutations in balanced sets, and values from them: unbiased, with standard errors that hold."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedworth.coalitions import coalitions_of, prefixes
from fedworth.games.permutations import (
    default_permutations,
    draw_permutations,
    n_balanced_sets,
    permutation_estimate,
    permutation_shapley,
)
from fedworth.games.shapley import shapley_values
from tests.support.games import ArrayGame


def permutation_values(prefix_utilities, permutations):
    """Values and standard errors from the utilities of all prefixes, (n_permutations, n + 1)."""
    values, covariance = permutation_estimate(prefix_utilities[:, :, None], permutations)
    return values[:, 0], np.sqrt(np.diag(covariance))


def close(expected):
    return pytest.approx(expected, rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5])
def test_all_permutations_together_give_the_exact_value(n):
    utilities = np.random.default_rng(n).normal(size=2**n)
    permutations = np.array(list(itertools.permutations(range(n))))
    columns = prefixes(permutations, n) @ (1 << np.arange(n))
    values, _ = permutation_values(utilities[columns].reshape(len(permutations), -1), permutations)
    assert values == close(shapley_values(utilities))


def test_random_permutations_are_unbiased():
    # z = (estimate − exact)/σ̂ has |z| < 5 for each of 6 players but with probability < 6 · 6e-7, by the central limit
    n, rng = 6, np.random.default_rng(0)
    utilities = rng.normal(size=2**n)
    permutations = draw_permutations(np.arange(n), 4000, rng=rng)
    columns = prefixes(permutations, n) @ (1 << np.arange(n))
    values, errors = permutation_values(utilities[columns].reshape(len(permutations), -1), permutations)
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
    values, errors = permutation_values(drawn(utilities, permutations), permutations)
    marginals = marginals_of(utilities, permutations)
    assert values == close(marginals.mean(axis=0))
    assert errors**2 == close(shared(marginals.var(axis=0, ddof=1) / 9, 9 / 4 - 1))


def test_standard_errors_of_squares_are_the_spread_at_each_place_between_them():
    n, n_sets = 5, 3
    utilities = np.random.default_rng(23).normal(size=2**n)
    permutations = draw_permutations(np.arange(n), n_sets * n, rng=np.random.default_rng(24))
    marginals = marginals_of(utilities, permutations).reshape(n_sets, n, n)
    places = np.argsort(permutations, axis=1).reshape(n_sets, n, n)
    variances = np.zeros(n)
    for client in range(n):
        for place in range(n):
            at_place = marginals[:, :, client][places[:, :, client] == place]  # (n_sets,)
            variances[client] += at_place.var(ddof=1) / (n_sets * n**2)
    errors = permutation_values(drawn(utilities, permutations), permutations)[1]
    assert errors**2 == close(shared(variances, n_sets - 1))


def test_a_part_of_a_square_is_left_out_where_there_are_whole_ones():
    utilities = np.random.default_rng(25).normal(size=16)
    permutations = draw_permutations(np.arange(4), 11, rng=np.random.default_rng(26))
    seen = drawn(utilities, permutations)
    some, whole = permutation_values(seen, permutations), permutation_values(seen[:8], permutations[:8])
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
        values, errors = permutation_values(drawn(utilities, permutations), permutations)
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


def test_one_permutation_has_no_standard_error():
    values, errors = permutation_values(np.array([[0.0, 1.0, 3.0]]), np.array([[1, 0]]))
    assert values.tolist() == [2.0, 1.0]
    assert np.isnan(errors).all()


def test_a_game_of_some_clients_is_shared_out_on_every_block():
    utilities = np.random.default_rng(5).normal(size=(8, 2))
    utilities[0] = 0
    clients = np.array([1, 4, 6])
    orders = np.array(list(itertools.permutations(clients)))
    found = permutation_shapley(ArrayGame(utilities, clients), orders)
    assert found.values == close(np.stack([shapley_values(column) for column in utilities.T], axis=1))
    assert found.n_evaluations == 7  # every coalition is a prefix of some order
    one = permutation_shapley(ArrayGame(utilities, clients), orders[:1])
    assert one.n_evaluations == 3


@pytest.mark.parametrize("count", [30, 33])
@pytest.mark.parametrize("balanced", [True, False])
def test_the_covariance_has_the_variances_and_no_direction_of_negative_variance(balanced, count):
    n, rng = 5, np.random.default_rng(3)
    utilities = rng.normal(size=2**n)
    permutations = draw_permutations(np.arange(n), count, rng=rng)
    permutations = permutations if balanced else rng.permuted(permutations, axis=1)
    covariance = permutation_estimate(drawn(utilities, permutations)[:, :, None], permutations)[1]
    errors = permutation_values(drawn(utilities, permutations), permutations)[1]
    assert np.diag(covariance) == close(errors**2)
    assert np.linalg.eigvalsh(covariance).min() > -1e-12
    if not balanced:
        assert covariance.sum(axis=0) == pytest.approx(np.zeros(n), abs=1e-12)  # every order shares out the same


@pytest.mark.parametrize(("n", "expected"), [(0, 1), (1, 1), (2, 2), (10, 30), (100, 500), (1000, 7000)])
def test_the_papers_number_of_permutations_is_rounded_up_to_whole_sets(n, expected):
    assert default_permutations(n) == expected
    assert expected >= (math.ceil(n * math.log(n)) if n > 1 else 1)


def test_permutations_are_of_the_members_and_depend_on_the_generator_alone():
    members = np.array([2, 5, 7])
    permutations = draw_permutations(members, 50, rng=np.random.default_rng(1))
    assert permutations.dtype == np.int64
    assert (np.sort(permutations, axis=1) == members).all()
    assert np.array_equal(permutations, draw_permutations(members, 50, rng=np.random.default_rng(1)))
    assert members.tolist() == [2, 5, 7]


@given(st.integers(1, 9), st.integers(1, 4), st.integers(0, 8), st.integers(0, 99))
def test_every_client_stands_in_every_place_once_a_set(n, sets, more, seed):
    permutations = draw_permutations(np.arange(n), sets * n + more % n, rng=np.random.default_rng(seed))
    counts = np.zeros((n, n), dtype=int)  # by place and client
    np.add.at(counts, (np.arange(n), permutations[: sets * n]), 1)
    assert (counts == sets).all()
    assert n_balanced_sets(permutations) == sets


@given(st.integers(2, 5), st.integers(0, 99))
def test_every_client_follows_every_other_once_a_set(half, seed):
    """Williams's property; for an odd number of clients no cyclic square has it."""
    n = 2 * half
    permutations = draw_permutations(np.arange(n), n, rng=np.random.default_rng(seed))
    followed = np.zeros((n, n), dtype=int)
    np.add.at(followed, (permutations[:, :-1], permutations[:, 1:]), 1)
    assert np.array_equal(followed, 1 - np.eye(n, dtype=int))


@given(st.integers(1, 7), st.integers(0, 20), st.integers(0, 20), st.integers(0, 99))
def test_a_longer_draw_begins_with_a_shorter_one(n, count, more, seed):
    short, long = (draw_permutations(np.arange(n), k, rng=np.random.default_rng(seed)) for k in (count, count + more))
    assert np.array_equal(long[:count], short)


def test_every_order_is_equally_likely():
    """Independent draws of one order each; χ² with 23 degrees of freedom is beyond 74.6 with chance 2e-7."""
    rng = np.random.default_rng(0)
    permutations = np.concatenate([draw_permutations(np.arange(4), 1, rng=rng) for _ in range(4800)])
    counts = np.unique(permutations @ np.array([64, 16, 4, 1]), return_counts=True)[1]
    assert len(counts) == math.factorial(4)
    assert ((counts - 200) ** 2 / 200).sum() < 74.6


def test_other_orders_are_no_balanced_sets():
    assert n_balanced_sets(np.array([[0, 1, 2], [1, 0, 2], [2, 1, 0]])) == 0
    assert n_balanced_sets(np.array([[0, 1, 2]])) == 0
    assert n_balanced_sets(np.zeros((4, 0), dtype=np.int64)) == 0
