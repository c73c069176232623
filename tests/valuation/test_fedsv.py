"""FedSV: each round shared among its participants, and the rounds summed."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedworth.coalitions import prefixes
from fedworth.errors import NeverHeardError, TooManyError, ValuationError
from fedworth.games.matrix import matrix_from_cells
from fedworth.games.squares import draw_permutations
from fedworth.valuation.fedsv import fedsv, rounds_of
from tests.support.games import federation, matrix_of, shapley_by_definition

SEEDS = st.integers(0, 10_000)


@given(SEEDS)
def test_each_round_is_the_shapley_value_of_its_participants(seed):
    utilities, matrix = federation(seed, n_rounds=4, n_clients=4)
    earned, variances = rounds_of(matrix)
    assert variances is None
    for t, present in enumerate(matrix.participants):
        members = np.flatnonzero(present)
        inside = [sum(1 << members[k] for k in range(len(members)) if c >> k & 1) for c in range(2 ** len(members))]
        assert earned[t, members] == pytest.approx(shapley_by_definition(utilities[t, inside]), rel=1e-9, abs=1e-12)
        assert not earned[t, ~present].any()


@given(SEEDS)
def test_what_was_earned_is_what_the_participants_achieved(seed):
    utilities, matrix = federation(seed)
    whole = [utilities[t, int(row @ (1 << np.arange(5)))] for t, row in enumerate(matrix.participants)]
    assert fedsv(matrix).values.sum() == pytest.approx(sum(whole), rel=1e-9, abs=1e-9)


def test_rounds_add_up():
    utilities, matrix = federation(1)
    parts = [fedsv(matrix_of(utilities[[t]], matrix.participants[[t]])).values for t in range(6)]
    assert fedsv(matrix).values == pytest.approx(np.nansum(parts, axis=0), rel=1e-9)
    assert fedsv(matrix).values == pytest.approx(rounds_of(matrix)[0].sum(axis=0), rel=1e-12)


def test_without_the_rounds_that_heard_everyone_only_later_rounds_count():
    _, matrix = federation(2)
    later = fedsv(matrix, without_heard=True)
    assert later.method == "fedsv-later"
    assert later.values == pytest.approx(rounds_of(matrix)[0][1:].sum(axis=0), rel=1e-12)


def test_a_round_with_nobody_earns_nothing():
    utilities, matrix = federation(3)
    more = matrix_of(
        np.vstack([utilities, np.zeros((1, 32))]), np.vstack([matrix.participants, np.zeros((1, 5), bool)])
    )
    assert np.array_equal(fedsv(more).values, fedsv(matrix).values)


def test_a_client_never_heard_has_no_value_and_the_others_are_valued_without_it():
    utilities, _ = federation(4)
    participants = np.array([[1, 1, 0, 1, 1], [1, 0, 0, 1, 0]], dtype=bool)
    found = fedsv(matrix_of(utilities[:2], participants))
    assert np.isnan(found.values).tolist() == [False, False, True, False, False]
    assert "client c" in found.notes[0]
    with pytest.raises(NeverHeardError):
        fedsv(matrix_of(utilities[:2], participants), strict=True)


def test_all_permutations_of_each_round_give_the_exact_value():
    utilities, matrix = federation(5, n_clients=4)
    permutations = tuple(np.array(list(itertools.permutations(np.flatnonzero(row)))) for row in matrix.participants)
    estimated = fedsv(matrix_of(utilities, matrix.participants, round_permutations=permutations))
    assert estimated.values == pytest.approx(fedsv(matrix).values, rel=1e-9)
    assert "Monte Carlo over 2 to 24 permutations a round" in estimated.notes


def test_errors_of_rounds_add_up_in_squares():
    utilities, matrix = federation(6)
    rng = np.random.default_rng(0)
    permutations = tuple(draw_permutations(np.flatnonzero(row), 4, rng=rng) for row in matrix.participants)
    sampled = matrix_of(utilities, matrix.participants, round_permutations=permutations)
    found, (_, variances) = fedsv(sampled), rounds_of(sampled)
    assert variances is not None
    assert found.standard_errors is not None
    assert found.standard_errors == pytest.approx(np.sqrt(variances.sum(axis=0)), rel=1e-12)
    assert (found.standard_errors > 0).all()
    for t, row in enumerate(sampled.participants):
        assert not variances[t, ~row].any()


def test_only_the_prefixes_need_to_be_seen_for_monte_carlo():
    permutations = (np.array([[0, 1, 2], [2, 1, 0]]),)
    cells = prefixes(permutations[0], 3)
    rows = [(np.unique(cells, axis=0), np.unique(cells, axis=0).sum(axis=1).astype(float))]
    matrix = matrix_from_cells(("a", "b", "c"), np.ones((1, 3), bool), rows, round_permutations=permutations)
    assert fedsv(matrix).values == pytest.approx([1, 1, 1])


def test_a_coalition_that_was_not_seen_is_named():
    participants = np.ones((1, 2), dtype=bool)
    cells = [(np.array([[True, False], [True, True]]), np.array([1.0, 2.0]))]
    with pytest.raises(ValuationError, match=r"round 0: 1 of 4 coalitions.*the first \{b\}"):
        fedsv(matrix_from_cells(("a", "b"), participants, cells))


def test_too_many_participants_are_refused_with_monte_carlo_as_the_way_out():
    cells = [(np.zeros((1, 21), dtype=bool), np.zeros(1))]
    matrix = matrix_from_cells(tuple("abcdefghijklmnopqrstu"), np.ones((1, 21), bool), cells)
    with pytest.raises(TooManyError, match=r"2,097,152 coalitions.*--permutations auto"):
        fedsv(matrix)
