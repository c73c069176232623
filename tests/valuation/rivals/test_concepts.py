import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from fedworth.coalitions import coalitions_of
from fedworth.completion.factors import complete
from fedworth.errors import FedworthError, ValuationError
from fedworth.valuation.rivals import CONCEPTS, value_by_concept
from fedworth.valuation.rivals.concepts import (
    banzhaf_values,
    beta_shapley_values,
    least_core_of,
    least_core_values,
)
from fedworth.valuation.shapley import semivalues, shapley_values
from tests.support.games import game, low_rank, matrix_of

games = (
    st.integers(1, 5)
    .flatmap(lambda n: arrays(np.float64, 2**n - 1, elements=st.floats(-10, 10, width=16)))
    .map(lambda rest: np.concatenate([[0.0], rest]))
)


def least_objection(utilities):
    """e: how much the least content coalition must go without."""
    n = len(utilities).bit_length() - 1
    members = coalitions_of(np.arange(n), n)[1:-1].astype(float)
    return least_core_of(members, utilities[1:-1], float(utilities[-1]))[1]


def swapped(utilities, i, j):
    """The same game with two clients' names exchanged."""
    n = len(utilities).bit_length() - 1
    order = np.arange(n)
    order[[i, j]] = order[[j, i]]
    return np.array([utilities[sum(1 << int(order[k]) for k in range(n) if c >> k & 1)] for c in range(2**n)])


@given(games)
def test_beta_shapley_with_one_and_one_is_the_shapley_value(utilities):
    assert beta_shapley_values(utilities, 1, 1) == pytest.approx(shapley_values(utilities), abs=1e-9)


@given(games)
def test_banzhaf_by_its_definition(utilities):
    n = len(utilities).bit_length() - 1
    expected = [
        np.mean([utilities[c | 1 << i] - utilities[c] for c in range(2**n) if not c >> i & 1]) for i in range(n)
    ]
    assert banzhaf_values(utilities) == pytest.approx(expected, abs=1e-9)


def test_beta_shapley_by_its_published_weights():
    """w(j) = n B(j+β−1, n−j+α) / B(α,β) · C(n−1, j−1), v = (1/n) Σ_j w(j) · mean addition to coalitions of j−1."""
    rng, n, alpha, beta = np.random.default_rng(3), 5, 16.0, 1.0
    utilities = np.append(0.0, rng.normal(size=2**n - 1))

    def of_beta(a, b):
        return math.gamma(a) * math.gamma(b) / math.gamma(a + b)

    expected = np.zeros(n)
    for i in range(n):
        for j in range(1, n + 1):
            additions = [
                utilities[c | 1 << i] - utilities[c] for c in range(2**n) if not c >> i & 1 and c.bit_count() == j - 1
            ]
            weight = n * of_beta(j + beta - 1, n - j + alpha) / of_beta(alpha, beta) * math.comb(n - 1, j - 1)
            expected[i] += weight * np.mean(additions) / n
    assert beta_shapley_values(utilities) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("name", CONCEPTS)
@given(utilities=games)
def test_exchanging_two_names_exchanges_their_values(name, utilities):
    n = len(utilities).bit_length() - 1
    values, others = CONCEPTS[name](utilities), CONCEPTS[name](swapped(utilities, 0, n - 1))
    expected = values.copy()
    expected[[0, n - 1]] = values[[n - 1, 0]]
    assert others == pytest.approx(expected, abs=1e-4)  # the least core's slack is 1e-6 of utilities up to 10


@pytest.mark.parametrize("name", ["banzhaf", "beta-shapley"])
@given(utilities=games)
def test_who_adds_nothing_is_worth_nothing(name, utilities):
    with_null = np.concatenate([utilities, utilities])  # one more client, the highest bit
    assert CONCEPTS[name](with_null)[-1] == pytest.approx(0, abs=1e-9)


def test_banzhaf_values_do_not_share_out_the_whole():
    """In a majority of three each decides half the time: 3 · ½ where the whole is 1."""
    majority = game(3, lambda members: float(len(members) >= 2))
    assert banzhaf_values(majority) == pytest.approx([0.5, 0.5, 0.5])


def test_the_least_core_of_known_games():
    majority = game(3, lambda members: float(len(members) >= 2))
    assert least_objection(majority) == pytest.approx(1 / 3)
    assert least_core_values(majority) == pytest.approx([1 / 3] * 3, abs=1e-5)
    gloves = game(3, lambda members: float(0 in members and len(members) >= 2))  # one left glove, two right ones
    assert least_objection(gloves) == pytest.approx(0, abs=1e-9)
    assert least_core_values(gloves) == pytest.approx([1, 0, 0], abs=1e-5)
    additive = game(4, lambda members: float(sum(i + 1 for i in members)))
    assert least_core_values(additive) == pytest.approx([1, 2, 3, 4], abs=1e-4)


@given(games)
def test_no_coalition_can_object_to_the_least_core_by_more_than_must_be(utilities):
    n = len(utilities).bit_length() - 1
    values = least_core_values(utilities)
    assert values.sum() == pytest.approx(utilities[-1], abs=1e-6)
    paid = [sum(values[i] for i in range(n) if c >> i & 1) for c in range(2**n)]
    objections = (utilities - paid)[1:-1]
    assert objections.max(initial=-math.inf) <= least_objection(utilities) + 2e-6 * np.abs(utilities).max()


def test_concepts_of_a_completed_game_value_the_heard_and_nobody_else():
    rng = np.random.default_rng(0)
    participants = np.array([[1, 1, 1, 0], [1, 0, 1, 0], [0, 1, 1, 0]], dtype=bool)
    matrix = matrix_of(low_rank(3, 4, 1, rng), participants)
    completion = complete(matrix)
    for name in CONCEPTS:
        made = value_by_concept(matrix, completion, name)
        assert made.method == name
        assert np.isnan(made.values).tolist() == [False, False, False, True]
    with pytest.raises(FedworthError, match="least-core"):
        value_by_concept(matrix, completion, "shap")  # type: ignore[arg-type]


def test_a_game_of_another_size_is_refused():
    with pytest.raises(ValuationError, match=r"expected 2\^n utilities"):
        semivalues(np.zeros(3), np.ones(2))
