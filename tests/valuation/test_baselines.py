"""The truth and the two baselines."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedworth.errors import ValuationError
from fedworth.games.matrix import matrix_from_cells
from fedworth.valuation.baselines import heard_round, leave_one_out, truth
from fedworth.valuation.fedsv import fedsv
from tests.support.games import federation, matrix_of, shapley_by_definition

SEEDS = st.integers(0, 10_000)


@given(SEEDS)
def test_the_truth_is_the_shapley_value_of_the_full_matrix(seed):
    utilities, matrix = federation(seed, n_rounds=3, n_clients=4)
    found = truth(matrix_of(utilities, matrix.participants, is_truth=True))
    assert found.values == pytest.approx(shapley_by_definition(utilities.sum(axis=0)), rel=1e-9, abs=1e-12)


def test_the_truth_needs_every_cell():
    with pytest.raises(ValuationError, match="round 1: 28 of 32 coalitions"):
        truth(federation(0)[1])


def test_the_truth_by_permutations_has_standard_errors():
    utilities, matrix = federation(1)
    permutations = np.array([[0, 1, 2, 3, 4], [4, 3, 2, 1, 0]])
    found = truth(matrix_of(utilities, matrix.participants, is_truth=True, permutations=permutations))
    total = utilities.sum(axis=0)
    up, down = np.diff(total[[0, 1, 3, 7, 15, 31]]), np.diff(total[[0, 16, 24, 28, 30, 31]])[::-1]
    assert found.values == pytest.approx((up + down) / 2, rel=1e-9)
    shared = np.sqrt(np.mean((up - down) ** 2)) / 2  # two permutations of five tell no client's spread from another's
    assert found.standard_errors == pytest.approx(np.full(5, shared), rel=1e-9)
    assert "Monte Carlo over 2 permutations" in found.notes


@given(SEEDS)
def test_the_heard_round_is_the_shapley_value_of_that_round(seed):
    utilities, matrix = federation(seed, n_rounds=3, n_clients=4)
    assert heard_round(matrix).values == pytest.approx(shapley_by_definition(utilities[0]), rel=1e-9, abs=1e-12)


def test_the_heard_round_need_not_be_the_first():
    utilities, _ = federation(2, n_rounds=3, n_clients=4)
    participants = np.array([[1, 1, 0, 0], [1, 1, 1, 1], [1, 1, 1, 1]], dtype=bool)
    found = heard_round(matrix_of(utilities, participants))
    assert found.values == pytest.approx(shapley_by_definition(utilities[1]), rel=1e-9)


def test_identical_clients_are_worth_the_same_in_the_heard_round():
    sizes = np.array([bin(c | c >> 1 & 1).count("1") for c in range(8)], dtype=float)  # 0 and 1 alike
    values = heard_round(matrix_of(np.array([(sizes > 0) * 1.0]), np.ones((1, 3), bool))).values
    assert values[0] == pytest.approx(values[1], rel=1e-12)


def test_without_a_round_that_heard_everyone_there_is_no_heard_round():
    utilities, _ = federation(3)
    participants = np.zeros((6, 5), dtype=bool)
    participants[:3, :4], participants[3:, 4] = True, True
    with pytest.raises(ValuationError, match="no round heard everyone: at most 4 of 5"):
        heard_round(matrix_of(utilities, participants))


def test_everyone_means_everyone_who_was_ever_heard():
    utilities, _ = federation(4, n_rounds=2, n_clients=3)
    found = heard_round(matrix_of(utilities, [[True, True, False], [True, False, False]]))
    assert found.values[:2] == pytest.approx(shapley_by_definition(utilities[0, :4]), rel=1e-9)
    assert np.isnan(found.values[2])
    assert "client c" in found.notes[0]


def test_leaving_one_out_is_what_the_participants_lose():
    utilities = np.array([[0, 1, 2, 5, 3, 4, 6, 9.0], [0, 1, 7, 4, 0, 0, 0, 0]])
    found = leave_one_out(matrix_of(utilities, [[True] * 3, [True, True, False]]))
    assert found.values == pytest.approx([(9 - 6) + (4 - 7), (9 - 4) + (4 - 1), 9 - 5])


def test_leaving_one_out_needs_only_the_whole_and_the_whole_without_one():
    rows = [(np.array([[1, 1, 1], [0, 1, 1], [1, 0, 1], [1, 1, 0]], dtype=bool), np.array([4.0, 3.0, 2.0, 1.0]))]
    matrix = matrix_from_cells(("a", "b", "c"), np.ones((1, 3), bool), rows)
    assert leave_one_out(matrix).values == pytest.approx([1, 2, 3])
    with pytest.raises(ValuationError, match="not seen"):
        fedsv(matrix)


def test_in_an_additive_game_all_methods_agree():
    worths = np.array([1.0, -2.0, 3.0])
    members = np.arange(8)[:, None] >> np.arange(3) & 1
    matrix = matrix_of(np.array([members @ worths]), np.ones((1, 3), bool))
    for method in (truth, heard_round, leave_one_out, fedsv):
        assert method(matrix).values == pytest.approx(worths)
