"""The Shapley value: its axioms, games whose values are known, and the definition itself."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from fedworth.coalitions import coalitions_of
from fedworth.errors import TooManyError, ValuationError
from fedworth.games.effort import shapley
from fedworth.games.shapley import MOST_ENUMERATED, interaction_values, interactions, shapley_values
from tests.support.games import ArrayGame, game, shapley_by_definition

MODEST = st.floats(-1e3, 1e3)
SIZES = st.integers(1, 6)


def games_of(n):
    return hnp.arrays(np.float64, 2**n, elements=MODEST)


GAMES = SIZES.flatmap(games_of)
PAIRS = SIZES.flatmap(lambda n: st.tuples(games_of(n), games_of(n)))


def close(expected):
    return pytest.approx(expected, rel=1e-9, abs=1e-9)


def swap(utilities, i, j):
    """The same game with players i and j in each other's place."""
    c = np.arange(len(utilities))
    bit_i, bit_j = c >> i & 1, c >> j & 1
    return utilities[c & ~(1 << i | 1 << j) | bit_i << j | bit_j << i]


@given(GAMES)
def test_values_share_out_exactly_the_grand_utility(utilities):
    assert shapley_values(utilities).sum() == close(utilities[-1] - utilities[0])


@given(GAMES)
def test_the_fast_value_is_the_definition(utilities):
    assert shapley_values(utilities) == close(shapley_by_definition(utilities))


@given(GAMES, st.data())
def test_players_that_add_the_same_are_worth_the_same(utilities, data):
    n = len(utilities).bit_length() - 1
    i, j = data.draw(st.tuples(st.integers(0, n - 1), st.integers(0, n - 1)))
    values = shapley_values((utilities + swap(utilities, i, j)) / 2 if i != j else utilities)
    assert values[i] == close(values[j])


@given(GAMES, st.data())
def test_a_player_that_adds_nothing_is_worth_nothing(utilities, data):
    n = len(utilities).bit_length() - 1
    i = data.draw(st.integers(0, n - 1))
    assert shapley_values(utilities[np.arange(2**n) & ~(1 << i)])[i] == 0


@given(PAIRS, MODEST)
def test_values_are_linear_in_the_game(pair, factor):
    one, two = pair
    expected = shapley_values(one) + factor * shapley_values(two)
    assert shapley_values(one + factor * two) == pytest.approx(expected, rel=1e-9, abs=1e-6)


@given(GAMES, st.data())
def test_renaming_the_players_renames_the_values(utilities, data):
    n = len(utilities).bit_length() - 1
    order = np.array(data.draw(st.permutations(range(n))))  # player k is called order[k]
    renamed = np.array([sum(1 << k for k in range(n) if c >> order[k] & 1) for c in range(2**n)])
    assert shapley_values(utilities[renamed])[order] == close(shapley_values(utilities))


@given(st.lists(MODEST, min_size=1, max_size=8))
def test_in_an_additive_game_everyone_is_worth_what_they_add(worths):
    utilities = game(len(worths), lambda S: sum(worths[i] for i in S))
    assert shapley_values(utilities) == close(np.array(worths))


@pytest.mark.parametrize("needed", [{0}, {1, 3}, {0, 2, 4}, {0, 1, 2, 3, 4}])
def test_in_a_unanimity_game_those_needed_share_equally(needed):
    expected = [1 / len(needed) if i in needed else 0 for i in range(5)]
    assert shapley_values(game(5, needed.issubset)) == close(expected)


def test_in_the_glove_game_the_scarce_glove_takes_two_thirds():
    gloves = game(3, lambda S: min(len(S & {0}), len(S & {1, 2})))
    assert shapley_values(gloves) == close([2 / 3, 1 / 6, 1 / 6])


def test_in_the_airport_game_each_stretch_is_shared_by_those_who_need_it():
    costs = [1.0, 3.0, 4.0, 9.0]
    expected = np.cumsum(np.diff(costs, prepend=0) / np.arange(4, 0, -1))
    assert shapley_values(game(4, lambda S: max((costs[i] for i in S), default=0))) == close(expected)


def test_a_single_player_gets_everything():
    assert shapley_values(np.array([2.0, 5.0])) == close([3.0])


def test_twenty_clients_are_valued_exactly():
    rng = np.random.default_rng(20)
    worths = rng.normal(size=20)
    members = coalitions_of(np.arange(20), 20)
    assert shapley_values((members @ worths) ** 2) == close(worths * worths.sum())  # v_i of (Σ_S x)² is x_i Σ x


@pytest.mark.parametrize("utilities", [np.zeros(1), np.zeros(3), np.zeros((2, 2, 2)), np.zeros(0)])
def test_what_is_not_a_game_is_refused(utilities):
    with pytest.raises(ValuationError, match="expected 2\\^n utilities"):
        shapley_values(utilities)


def test_an_unknown_utility_is_refused():
    with pytest.raises(ValuationError, match="1 utilities are not finite"):
        shapley_values(np.array([0.0, np.nan]))


def test_several_games_are_valued_as_one_by_one():
    games = np.random.default_rng(0).standard_normal((5, 8))
    assert shapley_values(games) == close(np.stack([shapley_values(game) for game in games]))
    assert shapley_values(games[:0]).shape == (0, 3)


def test_the_values_of_a_game_are_exact_on_every_block():
    utilities = np.random.default_rng(1).standard_normal((2**4, 3))
    utilities[0] = 0
    found = shapley(ArrayGame(utilities), np.random.default_rng(0))
    assert found.values == close(np.stack([shapley_by_definition(column) for column in utilities.T], axis=1))
    assert found.totals == close(shapley_by_definition(utilities.sum(axis=1)))
    assert found.n_evaluations == 2**4 - 1
    assert not found.sampling_covariance.any()


def test_a_game_of_nobody_has_no_values():
    found = shapley(ArrayGame(np.zeros((1, 2))), np.random.default_rng(0))
    assert found.values.shape == (0, 2)
    assert found.n_evaluations == 0


def test_values_agree_with_shapiq():
    shapiq = pytest.importorskip("shapiq")
    utilities = np.append(0.0, np.random.default_rng(3).standard_normal(2**6 - 1))
    theirs = shapiq.ExactComputer(n_players=6, game=lambda rows: utilities[np.atleast_2d(rows) @ (1 << np.arange(6))])
    values = theirs("SV")
    assert shapley_values(utilities) == close([values[(i,)] for i in range(6)])
    pairs = theirs("SII", order=2)
    found = interaction_values(utilities)
    assert [found[i, j] for i, j in itertools.combinations(range(6), 2)] == close(
        [pairs[pair] for pair in itertools.combinations(range(6), 2)]
    )


def interaction_by_definition(utilities, i, j):
    n = len(utilities).bit_length() - 1
    others, total = [k for k in range(n) if k not in (i, j)], 0.0
    for size in range(n - 1):
        weight = math.factorial(size) * math.factorial(n - size - 2) / math.factorial(n - 1)
        for chosen in itertools.combinations(others, size):
            s = sum(1 << k for k in chosen)
            both = utilities[s | 1 << i | 1 << j] - utilities[s | 1 << i] - utilities[s | 1 << j] + utilities[s]
            total += weight * both
    return total


@pytest.mark.parametrize("n", [2, 3, 5])
def test_the_interaction_of_every_pair_is_its_definition(n):
    utilities = np.append(0.0, np.random.default_rng(n).normal(size=2**n - 1))
    found = interactions(ArrayGame(utilities))
    for i, j in itertools.permutations(range(n), 2):
        assert found[i, j] == pytest.approx(interaction_by_definition(utilities, i, j))
    assert np.diag(found).tolist() == [0] * n


def test_copies_are_redundant_and_complements_are_not():
    """0 and 1 hold the same; 2 and 3 are worth something only together."""
    found = interaction_values(game(4, lambda s: float(bool(s & {0, 1})) + float({2, 3} <= s)))
    assert found[0, 1] == pytest.approx(-1)
    assert found[2, 3] == pytest.approx(1)
    assert found[0, 2] == pytest.approx(0)


def test_interactions_of_one_client_or_of_too_many_are_refused():
    with pytest.raises(ValuationError, match="n ≥ 2 clients"):
        interactions(ArrayGame(np.zeros(2)))
    with pytest.raises(TooManyError, match="at most 12 clients"):
        interactions(ArrayGame(np.zeros(2 ** (MOST_ENUMERATED + 1))))
