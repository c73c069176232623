"""Coverage: how often clients, sizes and columns were seen, counted by hand."""

import numpy as np
import pytest

from tests.support.games import federation, matrix_of


def test_what_was_seen_is_counted_by_client_column_and_size():
    participants = [[True, True, True], [True, True, False], [True, False, False]]
    found = matrix_of(np.zeros((3, 8)), participants).coverage()
    assert found["n_rounds_heard"] == [3, 2, 1]
    assert (found["n_columns"], found["n_columns_unseen"]) == (7, 0)  # all coalitions but the empty one
    assert found["n_columns_seen_once"] == 4  # {c}, {a, c}, {b, c} and everyone
    assert found["n_columns_by_size"] == [3, 3, 1]
    assert found["share_seen_by_size"] == pytest.approx([(3 + 2 + 1) / 9, (2 + 1 + 1) / 9, 1 / 3])
    assert found["share_seen"] == pytest.approx((7 + 3 + 1) / 21)


def test_columns_that_no_round_has_shown_are_counted():
    found = matrix_of(np.zeros((2, 8)), [[True, True, False], [False, True, True]]).coverage()
    assert (found["n_columns"], found["n_columns_unseen"]) == (7, 2)  # {a, c} and everyone
    assert found["share_seen_by_size"] == pytest.approx([4 / 6, 2 / 6, 0])


def test_clients_never_heard_have_no_columns():
    found = matrix_of(np.zeros((2, 8)), [[True, True, False], [True, False, False]]).coverage()
    assert found["n_rounds_heard"] == [2, 1, 0]
    assert (found["n_columns"], found["n_columns_unseen"]) == (3, 0)
    assert found["share_seen_by_size"] == pytest.approx([3 / 4, 1 / 2, 0])


def test_with_permutations_only_their_prefixes_count():
    utilities, matrix = federation(0)
    permutations = np.array([[0, 1, 2, 3, 4], [0, 1, 2, 4, 3]])
    found = matrix_of(utilities, matrix.participants, permutations=permutations).coverage()
    assert found["n_columns"] == 6
    assert found["n_columns_by_size"] == [1, 1, 1, 2, 1]
    assert found["n_columns_seen_once"] >= 3  # those larger than the two participants
