"""Orders: every client in every place equally often, and every order equally likely."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedworth.games.squares import default_permutations, draw_permutations, n_squares


@pytest.mark.parametrize(("n", "expected"), [(0, 1), (1, 1), (2, 2), (10, 30), (100, 500), (1000, 7000)])
def test_the_papers_number_of_permutations_is_rounded_up_to_whole_squares(n, expected):
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
def test_every_client_stands_in_every_place_once_a_square(n, squares, more, seed):
    permutations = draw_permutations(np.arange(n), squares * n + more % n, rng=np.random.default_rng(seed))
    counts = np.zeros((n, n), dtype=int)  # by place and client
    np.add.at(counts, (np.arange(n), permutations[: squares * n]), 1)
    assert (counts == squares).all()
    assert n_squares(permutations) == squares


@given(st.integers(2, 5), st.integers(0, 99))
def test_every_client_follows_every_other_once_a_square(half, seed):
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


def test_other_orders_are_no_squares():
    assert n_squares(np.array([[0, 1, 2], [1, 0, 2], [2, 1, 0]])) == 0
    assert n_squares(np.array([[0, 1, 2]])) == 0
    assert n_squares(np.zeros((4, 0), dtype=np.int64)) == 0
