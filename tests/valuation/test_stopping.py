"""Stopping rules: each holds when it should, they combine, and a run says why it stopped."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedworth.errors import UsageError
from fedworth.utility.planning.design import least_budget
from fedworth.valuation.estimate import Estimate
from fedworth.valuation.shapley import shapley_values
from fedworth.valuation.stopping import (
    StoppingReason,
    all_of,
    any_of,
    difference_errors,
    precise,
    precise_relative,
    ranked,
    value_until,
)


def estimate(values, errors, correlation=0.0):
    errors = np.asarray(errors, dtype=float)
    covariance = correlation * np.outer(errors, errors)
    np.fill_diagonal(covariance, errors**2)
    return Estimate(np.asarray(values, dtype=float), covariance, 100)


class Game:
    """A game of n members that counts what it is asked; twins 0 and 1 are alike."""

    def __init__(self, n, seed=0, twins=False):
        rng = np.random.default_rng(seed)
        self.worth, self.rough, self.asked = rng.normal(size=(n, 3)), rng.normal(size=2**n), []
        if twins:
            self.worth[1] = self.worth[0]
        self.n, self.roughness = n, 0.0

    def __call__(self, coalitions):
        self.asked += (coalitions @ (1 << np.arange(self.n))).tolist()
        means = coalitions @ self.worth / coalitions.sum(axis=1)[:, None]
        rough = self.rough[coalitions @ (1 << np.arange(self.n))]
        return 1 - np.log(np.exp(means).sum(axis=1)) + self.roughness * rough

    def truth(self):
        everyone = (np.arange(1, 2**self.n)[:, None] >> np.arange(self.n) & 1).astype(bool)
        return shapley_values(np.concatenate([[0.0], self(everyone)]))


def test_precise_holds_when_every_standard_error_is_within():
    assert precise(0.1)(estimate([1, 2], [0.1, 0.05])) == (StoppingReason.PRECISE,)
    assert precise(0.1)(estimate([1, 2], [0.11, 0.05])) == ()


def test_relative_precision_is_of_the_largest_value_so_a_zero_is_no_obstacle():
    assert precise_relative(0.1)(estimate([0, -2], [0.2, 0.2])) == (StoppingReason.PRECISE,)
    assert precise_relative(0.1)(estimate([0, -2], [0.21, 0.2])) == ()


def test_a_ranking_is_settled_when_neighbours_are_apart():
    assert ranked(2, tie=0)(estimate([3, 1, 2], [0.1, 0.1, 0.1])) == (StoppingReason.RANKED,)
    assert ranked(2, tie=0)(estimate([3, 1, 1.2], [0.1, 0.1, 0.1])) == ()
    assert ranked(2, tie=0)(estimate([3], [0.1])) == (StoppingReason.RANKED,)


def test_errors_that_move_together_do_not_disturb_the_ranking():
    assert ranked(2, tie=0)(estimate([1.2, 1], [0.1, 0.1], correlation=0.9)) == (StoppingReason.RANKED,)
    assert ranked(2, tie=0)(estimate([1.2, 1], [0.1, 0.1], correlation=-0.9)) == ()


def test_a_certain_tie_is_settled_and_an_uncertain_one_is_not():
    assert ranked(2, tie=0.01)(estimate([1, 1, 3], [1e-3, 1e-3, 1e-3])) == (StoppingReason.RANKED,)
    assert ranked(2, tie=0.01)(estimate([1, 1, 3], [0.1, 0.1, 0.1])) == ()


@given(st.lists(st.floats(-5, 5), min_size=2, max_size=6), st.floats(0, 1), st.floats(-0.1, 0.9))
def test_the_error_of_a_difference_is_that_of_the_contrast(values, error, correlation):
    found = estimate(values, [error] * len(values), correlation)
    contrast = np.zeros(len(values))
    contrast[:2] = 1, -1
    expected = np.sqrt(contrast @ found.covariance @ contrast)
    assert difference_errors(found, np.array([0]), np.array([1]))[0] == pytest.approx(expected, abs=1e-7)


def test_rules_combine():
    found = estimate([3, 1], [0.1, 0.1])
    holds, fails = ranked(2), precise(0.01)
    assert all_of(holds, fails)(found) == ()
    assert all_of(holds, precise(1))(found) == (StoppingReason.RANKED, StoppingReason.PRECISE)
    assert any_of(holds, fails)(found) == (StoppingReason.RANKED,)
    assert any_of(fails, fails)(found) == ()


@pytest.mark.parametrize("make", [precise, precise_relative, ranked, lambda x: ranked(1, tie=x)])
def test_negative_settings_are_refused(make):
    with pytest.raises(UsageError, match=r"-1: expected 0 or more"):
        make(-1)


def test_a_run_stops_when_its_rule_holds_and_measures_nothing_twice():
    game = Game(9)
    found = value_until(game, 9, precise_relative(0.02), budget=400, rng=np.random.default_rng(0))
    assert found.reasons == (StoppingReason.PRECISE,)
    assert found.estimate.n_evaluations == len(found.design) == len(game.asked) == len(set(game.asked)) < 400
    true = game.truth()
    assert np.abs(found.estimate.values - true).max() < 5 * 0.02 * np.abs(true).max()


def test_a_harder_rule_takes_more():
    spent = [
        value_until(
            Game(9), 9, precise_relative(share), budget=500, rng=np.random.default_rng(0)
        ).estimate.n_evaluations
        for share in (0.3, 0.01, 0.0003)
    ]
    assert spent == sorted(spent)
    assert spent[0] < spent[-1]


def test_equal_clients_are_ranked_as_tied():
    found = value_until(Game(8, twins=True), 8, ranked(2, tie=0.05), budget=254, rng=np.random.default_rng(1))
    assert found.reasons == (StoppingReason.RANKED,)


def test_a_run_stops_at_its_budget_and_says_so():
    game = Game(9)
    game.roughness = 1.0
    found = value_until(game, 9, precise(1e-9), budget=100, rng=np.random.default_rng(0))
    assert found.reasons == (StoppingReason.BUDGET,)
    assert "raise it" in found.reasons[0]
    assert found.estimate.n_evaluations == len(game.asked) == 100


def test_a_run_that_has_measured_everything_is_exact():
    game = Game(6)
    game.roughness = 1.0
    found = value_until(game, 6, precise(0), budget=1000, rng=np.random.default_rng(0))
    assert found.reasons == (StoppingReason.EXACT,)
    assert len(game.asked) == 2**6 - 1
    assert found.estimate.values == pytest.approx(game.truth(), abs=1e-12)


def test_two_runs_give_equal_bytes():
    first, again = (
        value_until(Game(8), 8, precise_relative(0.01), budget=200, rng=np.random.default_rng(3)) for _ in range(2)
    )
    assert first.estimate.values.tobytes() == again.estimate.values.tobytes()
    assert np.array_equal(first.design, again.design)


def test_one_member_is_valued_at_once():
    found = value_until(Game(1), 1, precise(0), budget=1, rng=np.random.default_rng(0))
    assert found.reasons == (StoppingReason.EXACT,)
    assert found.estimate.n_evaluations == 1


def test_a_budget_below_the_least_design_and_no_growth_are_refused():
    with pytest.raises(UsageError, match=f"at least {least_budget(9)}"):
        value_until(Game(9), 9, precise(0), budget=5, rng=np.random.default_rng(0))
    with pytest.raises(UsageError, match="growth 1: expected more than 1"):
        value_until(Game(9), 9, precise(0), budget=50, growth=1, rng=np.random.default_rng(0))
