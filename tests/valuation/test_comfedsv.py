"""ComFedSV: the Shapley value of a completed matrix, exactly and by permutations."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedworth.coalitions import coalitions_of
from fedworth.completion.factors import FactorSettings, complete
from fedworth.errors import NeverHeardError, UnseenError, UsageError, ValuationError
from fedworth.games.squares import draw_permutations
from fedworth.valuation.comfedsv import comfedsv
from tests.support.games import factors_completion, federation, matrix_of, shapley_by_definition

NAMES = ("a", "b", "c", "d", "e")


def given_factors(seed, n_clients=5, n_rounds=6):
    """A completion of all coalitions in the order of their integers, with h_∅ = 0."""
    rng = np.random.default_rng(seed)
    W, H = rng.normal(size=(n_rounds, 2)), rng.normal(size=(2**n_clients, 2))
    H[0] = 0
    return factors_completion(NAMES[:n_clients], coalitions_of(np.arange(n_clients), n_clients), W, H), W @ H.T


@given(st.integers(0, 1000))
def test_values_are_the_shapley_values_of_the_completed_rounds_summed(seed):
    completion, X = given_factors(seed)
    found = comfedsv(federation(0)[1], completion)
    expected = sum(shapley_by_definition(row) for row in X)
    assert found.values == pytest.approx(expected, rel=1e-9, abs=1e-9)
    assert found.values.sum() == pytest.approx(X[:, -1].sum(), rel=1e-9, abs=1e-9)
    assert found.standard_errors is None
    assert found.completion == completion.summary()


def test_all_permutations_give_the_exact_value():
    utilities, matrix = federation(1)
    completion, _ = given_factors(1)
    permutations = np.array(list(itertools.permutations(range(5))))
    estimated = comfedsv(matrix_of(utilities, matrix.participants, permutations=permutations), completion)
    assert estimated.values == pytest.approx(comfedsv(matrix, completion).values, rel=1e-9)
    assert "Monte Carlo over 120 permutations" in estimated.notes[0]


def test_random_permutations_are_unbiased():
    # |estimate − exact| < 5 standard errors for each of 5 clients, but with probability < 5 · 6e-7
    utilities, matrix = federation(2)
    completion, _ = given_factors(2)
    permutations = draw_permutations(np.arange(5), 2000, rng=np.random.default_rng(2))
    estimated = comfedsv(matrix_of(utilities, matrix.participants, permutations=permutations), completion)
    assert estimated.standard_errors is not None
    exact = comfedsv(matrix, completion).values
    assert (np.abs(estimated.values - exact) < 5 * estimated.standard_errors).all()


def test_the_empty_coalition_is_worth_nothing_where_a_completion_leaves_it_out():
    completion, _ = given_factors(3)
    nonempty = completion.coalitions.any(axis=1)
    W, H = completion.round_factors, completion.coalition_factors
    other = factors_completion(NAMES, completion.coalitions[nonempty], W, H[nonempty])
    matrix = federation(0)[1]
    assert comfedsv(matrix, other).values == pytest.approx(comfedsv(matrix, completion).values)


def never_together():
    """Clients d and e never in one round with a; all heard."""
    participants = np.zeros((6, 5), dtype=bool)
    participants[:3, :3], participants[3:, 2:] = True, True
    return matrix_of(federation(4)[0], participants)


def test_a_coalition_never_seen_is_refused():
    matrix = never_together()
    with pytest.raises(UnseenError, match="18 of 32 coalitions were never seen") as caught:
        comfedsv(matrix, complete(matrix))
    assert caught.value.exit_code == 8


def test_zeros_for_the_unseen_are_given_when_asked_for_and_counted_and_named():
    matrix = never_together()
    completion = complete(matrix)
    found = comfedsv(matrix, completion, unseen="zero")
    assert "18 of 32 coalitions were never seen and count as utility 0, as asked" in found.notes[0]
    assert "every value rests on them" in found.notes[0]
    everything = coalitions_of(np.arange(5), 5)
    totals = np.zeros(32)
    known = completion.has(everything)
    totals[known] = completion.totals(everything[known])
    totals[0] = 0
    assert found.values == pytest.approx(shapley_by_definition(totals), rel=1e-9, abs=1e-12)


def test_only_the_clients_whose_values_rest_on_unseen_coalitions_are_named():
    participants = np.array([[1, 1, 0], [0, 0, 1], [1, 1, 0]], dtype=bool)
    utilities = np.random.default_rng(0).normal(size=(3, 8))
    utilities[:, 0] = 0
    permutations = np.array([[2, 0, 1], [2, 1, 0]])  # unseen: {c, a}, {c, b} and everyone
    matrix = matrix_of(utilities, participants, permutations=permutations)
    found = comfedsv(matrix, complete(matrix), unseen="zero")
    assert "3 of 5 coalitions" in found.notes[0]
    assert "the values of a, b rest on them" in found.notes[0]
    matrix = matrix_of(utilities, participants, permutations=np.array([[0, 1, 2]]))  # unseen: everyone
    found = comfedsv(matrix, complete(matrix), unseen="zero")
    assert "1 of 4 coalitions" in found.notes[0]
    assert "the values of c rest on them" in found.notes[0]


def test_clients_never_heard_have_no_value_and_the_others_play_without_them():
    participants = np.array([[1, 1, 0, 1], [1, 1, 0, 0], [0, 1, 0, 1]], dtype=bool)
    utilities = np.random.default_rng(5).normal(size=(3, 16))
    utilities[:, 0] = 0
    matrix = matrix_of(utilities, participants)
    found = comfedsv(matrix, complete(matrix))
    without = matrix_of(utilities[:, [0, 1, 2, 3, 8, 9, 10, 11]], participants[:, [0, 1, 3]])
    assert found.values[[0, 1, 3]] == pytest.approx(comfedsv(without, complete(without)).values, rel=1e-9)
    assert np.isnan(found.values[2])
    assert "client c" in found.notes[0]
    with pytest.raises(NeverHeardError, match="client c"):
        comfedsv(matrix, complete(matrix), strict=True)


def test_permutations_that_name_clients_never_heard_are_read_without_them():
    participants = np.array([[1, 1, 0, 1], [1, 1, 0, 0], [0, 1, 0, 1]], dtype=bool)
    utilities = np.random.default_rng(6).normal(size=(3, 16))
    utilities[:, 0] = 0
    permutations = np.array([[2, 0, 1, 3], [3, 2, 1, 0], [1, 3, 0, 2]])
    matrix = matrix_of(utilities, participants, permutations=permutations)
    found = comfedsv(matrix, complete(matrix))
    kept = np.array([[0, 1, 2], [2, 1, 0], [1, 2, 0]])  # without c, and d renumbered
    without = matrix_of(utilities[:, [0, 1, 2, 3, 8, 9, 10, 11]], participants[:, [0, 1, 3]], permutations=kept)
    expected = comfedsv(without, complete(without))
    assert found.standard_errors is not None
    assert expected.standard_errors is not None
    assert found.values[[0, 1, 3]] == pytest.approx(expected.values, rel=1e-9)
    assert found.standard_errors[[0, 1, 3]] == pytest.approx(expected.standard_errors, rel=1e-9)
    assert np.isnan(found.values[2])
    assert np.isnan(found.standard_errors[2])


def test_values_scale_with_the_utilities():
    utilities, matrix = federation(7)
    settings = FactorSettings(rank=3)
    reference = comfedsv(matrix, complete(matrix, settings))
    for scale in (1e-6, 1e6):
        scaled = matrix_of(scale * utilities, matrix.participants)
        found = comfedsv(scaled, complete(scaled, settings))
        assert found.values / scale == pytest.approx(reference.values, rel=1e-5, abs=1e-7)
        assert found.completion is not None
        assert reference.completion is not None
        assert found.completion["status"] == reference.completion["status"]


def test_a_completion_of_another_federation_is_refused():
    _, matrix = federation(8)
    for other in (given_factors(0, n_clients=4)[0], given_factors(0, n_rounds=3)[0]):
        with pytest.raises(ValuationError, match="another federation"):
            comfedsv(matrix, other)


def test_an_unknown_treatment_of_unseen_coalitions_is_refused():
    with pytest.raises(UsageError, match="did you mean 'zero'"):
        comfedsv(federation(8)[1], given_factors(0)[0], unseen="zeros")  # type: ignore[arg-type]
