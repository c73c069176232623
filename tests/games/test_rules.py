"""Sharing rules: axioms, games with known answers, other packages' answers, and evaluations counted."""

import json
import math
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.stats import betabinom

from fedworth.coalitions import coalitions_of
from fedworth.games import rules
from fedworth.games.effort import shapley
from fedworth.games.game import CountedGame, SummedGame
from fedworth.games.rules import (
    SLACK,
    banzhaf,
    beta_shapley,
    gtg,
    least_core,
    least_core_of,
    leave_one_out,
    tmc,
    to_large,
)
from fedworth.games.shapley import shapley_values
from tests.support.games import ArrayGame, game

GAMES = (
    st.integers(1, 5)
    .flatmap(lambda n: arrays(np.float64, 2**n - 1, elements=st.floats(-10, 10, width=16)))
    .map(lambda rest: np.concatenate([[0.0], rest]))
)
EXACT = [shapley, leave_one_out, banzhaf, beta_shapley, to_large, least_core]
ALL = [*EXACT, tmc, gtg]
KEPT = json.loads((Path(__file__).parents[1] / "golden" / "g9_pydvl.json").read_text())


class PartsGame:
    """Clients who each bring their part, whatever their number."""

    def __init__(self, parts, combine=lambda rows, parts: rows @ parts):
        self.parts, self.combine = np.asarray(parts, dtype=float), combine
        self.clients, self.n_blocks = np.arange(len(parts)), 1

    def utilities(self, coalitions):
        return self.combine(coalitions, self.parts).reshape(len(coalitions), 1)


def shared(rule, utilities, seed=0):
    return rule(ArrayGame(np.asarray(utilities)), np.random.default_rng(seed)).totals


def least_complaint(utilities):
    n = len(utilities).bit_length() - 1
    return least_core_of(coalitions_of(np.arange(n), n)[1:-1], utilities[1:-1], float(utilities[-1]))[1]


def swapped(utilities, i, j):
    """The same game with two clients' names exchanged."""
    n = len(utilities).bit_length() - 1
    order = np.arange(n)
    order[[i, j]] = order[[j, i]]
    return np.array([utilities[sum(1 << int(order[k]) for k in range(n) if c >> k & 1)] for c in range(2**n)])


@pytest.mark.parametrize("rule", EXACT)
@given(utilities=GAMES)
def test_exchanging_two_names_exchanges_their_values(rule, utilities):
    n = len(utilities).bit_length() - 1
    expected = shared(rule, utilities)
    expected[[0, n - 1]] = expected[[n - 1, 0]]
    assert shared(rule, swapped(utilities, 0, n - 1)) == pytest.approx(expected, abs=1e-4)  # the least core's slack


@pytest.mark.parametrize("rule", [shapley, leave_one_out, banzhaf, beta_shapley])
@given(utilities=GAMES)
def test_a_client_that_adds_nothing_gets_nothing(rule, utilities):
    with_null = np.concatenate([utilities, utilities])  # one more client, the highest bit
    assert shared(rule, with_null)[-1] == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize("rule", [shapley, leave_one_out, banzhaf, beta_shapley])
@given(utilities=GAMES)
def test_linear_rules_share_out_a_sum_of_games_as_the_sum_of_shares(rule, utilities):
    other = utilities**2
    summed = rule(SummedGame([ArrayGame(utilities), ArrayGame(other)]), np.random.default_rng(0)).totals
    assert summed == pytest.approx(shared(rule, utilities) + shared(rule, other), rel=1e-9, abs=1e-9)
    assert rule not in rules.NONLINEAR


@pytest.mark.parametrize("rule", ALL)
def test_blocks_add_up_to_the_shares_of_the_sum(rule):
    blocks = np.random.default_rng(0).normal(size=(16, 3))
    blocks[0] = 0
    found = rule(ArrayGame(blocks), np.random.default_rng(1))
    assert found.values.shape == (4, 3)
    assert found.sampling_covariance.shape == (4, 4)
    assert found.totals == pytest.approx(shared(rule, blocks.sum(axis=1), seed=1), abs=1e-9)


@pytest.mark.parametrize("n", [1, 5, 14])
@pytest.mark.parametrize("rule", ALL)
def test_evaluations_are_counted_exactly(rule, n):
    counted = CountedGame(PartsGame(np.linspace(0.5, 2, n), lambda rows, parts: np.sqrt(rows @ parts)))
    found = rule(counted, np.random.default_rng(0))
    assert found.n_evaluations == counted.n_evaluations
    if rule is leave_one_out:
        assert found.n_evaluations == (n + 1 if n > 1 else 1)
    elif rule in EXACT and n <= 12:
        assert found.n_evaluations == 2**n - 1
    elif rule in EXACT:
        assert found.n_evaluations <= 22 * n


def test_leave_one_out_is_what_is_lost():
    assert shared(leave_one_out, game(3, lambda s: float(len(s) ** 2))).tolist() == [5, 5, 5]


@given(GAMES)
def test_beta_shapley_with_one_and_one_is_the_shapley_value(utilities):
    found = shared(partial(beta_shapley, alpha=1, beta=1), utilities)
    assert found == pytest.approx(shapley_values(utilities), abs=1e-9)


@given(GAMES)
def test_banzhaf_is_its_definition(utilities):
    n = len(utilities).bit_length() - 1
    expected = [
        np.mean([utilities[c | 1 << i] - utilities[c] for c in range(2**n) if not c >> i & 1]) for i in range(n)
    ]
    assert shared(banzhaf, utilities) == pytest.approx(expected, abs=1e-9)


@given(GAMES)
def test_contributions_to_large_coalitions_are_means_over_their_sizes(utilities):
    n, expected = len(utilities).bit_length() - 1, []
    for i in range(n):
        by_size: dict[int, list[float]] = {size: [] for size in range(n) if 2 * size >= n - 1}
        for others in (c for c in range(2**n) if not c >> i & 1 and c.bit_count() in by_size):
            by_size[others.bit_count()].append(utilities[others | 1 << i] - utilities[others])
        expected.append(np.mean([np.mean(added) for added in by_size.values()]))
    assert shared(to_large, utilities) == pytest.approx(expected, abs=1e-9)


def test_beta_shapley_has_its_published_weights():
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
    assert shared(beta_shapley, utilities) == pytest.approx(expected, rel=1e-9)


def test_weights_of_sizes_are_beta_binomial():
    assert rules.size_weights(30, 16, 1) == pytest.approx(betabinom.pmf(np.arange(30), 29, 1, 16))
    assert rules.size_weights(100, 16, 1).sum() == pytest.approx(1)


def test_the_least_core_of_known_games():
    majority = game(3, lambda members: float(len(members) >= 2))
    assert least_complaint(majority) == pytest.approx(1 / 3)
    assert shared(least_core, majority) == pytest.approx([1 / 3] * 3, abs=1e-5)
    gloves = game(3, lambda members: float(0 in members and len(members) >= 2))  # one left glove, two right ones
    assert least_complaint(gloves) == pytest.approx(0, abs=1e-9)
    assert shared(least_core, gloves) == pytest.approx([1, 0, 0], abs=1e-5)
    additive = game(4, lambda members: float(sum(i + 1 for i in members)))
    assert shared(least_core, additive) == pytest.approx([1, 2, 3, 4], abs=1e-4)
    assert least_core in rules.NONLINEAR


@given(GAMES)
def test_no_coalition_complains_of_the_least_core_by_more_than_must_be(utilities):
    n = len(utilities).bit_length() - 1
    values = shared(least_core, utilities)
    assert values.sum() == pytest.approx(utilities[-1], abs=1e-6)
    paid = [sum(values[i] for i in range(n) if c >> i & 1) for c in range(2**n)]
    complaints = (utilities - paid)[1:-1]
    assert complaints.max(initial=-math.inf) <= least_complaint(utilities) + 2e-6 * np.abs(utilities).max()


@pytest.mark.parametrize("rule", [shapley, banzhaf, beta_shapley])
def test_pydvl_finds_the_same_semivalues(rule):
    """`tools/outside.py` made pyDVL's values of one completed game in an environment of its own."""
    expected = KEPT[{shapley: "shapley", banzhaf: "banzhaf", beta_shapley: "beta-shapley"}[rule]]
    assert shared(rule, KEPT["utilities"]) == pytest.approx(expected, abs=1e-12)


def test_pydvl_finds_the_same_least_core():
    utilities = np.array(KEPT["utilities"])
    assert least_complaint(utilities) == pytest.approx(KEPT["least-objection"], abs=1e-9)
    scale = np.abs(utilities).max()
    assert shared(least_core, utilities) == pytest.approx(KEPT["least-core"], abs=10 * SLACK * scale)


def test_shapiq_finds_the_same_banzhaf_values():
    shapiq = pytest.importorskip("shapiq")
    utilities = np.append(0.0, np.random.default_rng(3).standard_normal(2**6 - 1))
    theirs = shapiq.ExactComputer(n_players=6, game=lambda rows: utilities[np.atleast_2d(rows) @ (1 << np.arange(6))])
    values = theirs("BV")
    assert shared(banzhaf, utilities) == pytest.approx([values[(i,)] for i in range(6)], abs=1e-9)


@pytest.mark.parametrize("rule", [banzhaf, beta_shapley])
def test_drawn_semivalues_are_unbiased_with_standard_errors_that_hold(rule, monkeypatch):
    """Unbiased: the mean of 200 estimates lies within five of its standard errors. Mean z² of 200 estimates of 8
    clients is about 1 for right standard errors."""
    utilities = np.append(0.0, np.random.default_rng(4).normal(size=2**8 - 1))
    expected = shared(rule, utilities)
    monkeypatch.setattr(rules, "MOST_ENUMERATED", 0)
    made = [rule(ArrayGame(utilities), np.random.default_rng(seed)) for seed in range(200)]
    values = np.stack([one.totals for one in made])
    off = values.mean(axis=0) - expected
    assert np.abs(off).max() <= 5 * values.std(axis=0).max() / np.sqrt(200) + 1e-3  # sizes left out count 1e-4
    z = (values - expected) / np.stack([one.standard_errors for one in made])
    assert 0.5 <= (z**2).mean() <= 1.3


@pytest.mark.parametrize("rule", [shapley, leave_one_out, banzhaf, beta_shapley, least_core])
def test_thirty_clients_of_an_additive_game_get_their_parts(rule):
    parts = np.linspace(-1, 2, 30)
    found = rule(PartsGame(parts), np.random.default_rng(1))
    errors = np.nan_to_num(found.standard_errors, nan=0.01)  # the least core has none
    assert (np.abs(found.totals - parts) <= 5 * errors + 1e-3).all()
    again = rule(PartsGame(parts), np.random.default_rng(1))
    assert found.values.tobytes() == again.values.tobytes()


def test_the_drawn_least_core_says_how_many_other_coalitions_complain():
    noise: dict[bytes, float] = {}

    def measure(rows, _parts):
        rng = np.random.default_rng(2)
        return np.array([noise.setdefault(row.tobytes(), rng.normal()) for row in rows])

    found = least_core(PartsGame(np.zeros(30), measure), np.random.default_rng(3))
    assert np.isnan(found.standard_errors).all()
    assert "others complain more" in found.notes[0]


@pytest.mark.parametrize("rule", [tmc, gtg])
def test_truncated_permutations_value_an_additive_game(rule):
    found = rule(PartsGame([0.4, 0.3, 0.2, 0.1]), np.random.default_rng(0))
    assert found.totals == pytest.approx([0.4, 0.3, 0.2, 0.1], abs=1e-12)
    assert found.notes == ()  # the values settled
    assert rule(PartsGame([0.5, 0.5, 0.0]), np.random.default_rng(0)).notes == ()  # with a value of 0, too


def test_truncation_saves_evaluations():
    """Whoever comes first brings everything: one evaluation a client, and everyone."""
    found = gtg(PartsGame(np.ones(6), lambda rows, _: rows.any(axis=1).astype(float)), np.random.default_rng(0))
    assert found.totals == pytest.approx([1 / 6] * 6)
    assert found.n_evaluations == 6 + 1


def test_gtg_leaves_out_a_game_that_changed_little():
    found = gtg(PartsGame([0.01, -0.005]), np.random.default_rng(0), skip_below=0.01)
    assert found.totals.tolist() == [0, 0]
    assert found.n_evaluations == 1
    assert "left out" in found.notes[0]


@pytest.mark.parametrize("rule", [tmc, gtg])
def test_without_truncation_the_mean_over_orders_is_the_shapley_value(rule):
    """Coalitions are never near everyone; the bound is five standard errors."""
    utilities = np.concatenate([[0.0], np.random.default_rng(1).normal(size=14), [40.0]])
    found = rule(ArrayGame(utilities), np.random.default_rng(1))
    assert (np.abs(found.totals - shapley_values(utilities)) <= 5 * found.standard_errors + 1e-12).all()
    assert found.totals.sum() == pytest.approx(40.0)


def test_a_game_that_never_settles_ends_at_the_most_batches(monkeypatch):
    monkeypatch.setattr(rules, "MOST_BATCHES", 12)
    monkeypatch.setattr(rules, "SETTLED", 0.0)
    utilities = np.concatenate([[0.0], np.random.default_rng(1).normal(size=14), [40.0]])
    assert "had not settled" in tmc(ArrayGame(utilities), np.random.default_rng(0)).notes[0]
