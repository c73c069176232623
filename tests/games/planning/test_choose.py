"""One function chooses the plan, whoever asks."""

import numpy as np
import pytest

from fedworth.errors import UsageError
from fedworth.games.planning.choose import PlanSettings, choose_plan
from fedworth.games.planning.plan import plan_exact
from fedworth.games.squares import default_permutations

ROWS = np.array([[True] * 5, [True, True, False, False, False], [False, True, True, False, True]])


def same(first, second):
    return all(np.array_equal(a, b) for a, b in zip(first.cells, second.cells, strict=True))


def test_a_plan_is_exact_unless_asked_otherwise():
    assert same(choose_plan(ROWS), plan_exact(ROWS))
    assert same(choose_plan(ROWS, with_truth=True), plan_exact(ROWS, with_truth=True))


def test_monte_carlo_never_enumerates():
    plan = choose_plan(np.ones((2, 40), dtype=bool), PlanSettings(3))
    assert plan.permutations is not None
    assert plan.permutations.shape == (3, 40)


def test_the_default_number_and_sampler():
    plan = choose_plan(ROWS, PlanSettings("auto"))
    assert plan.permutations is not None
    assert len(plan.permutations) == default_permutations(5)
    assert plan.round_designs is not None
    assert plan.round_permutations is None


def test_every_setting_changes_the_plan():
    rows = np.ones((1, 9), dtype=bool)
    usual = choose_plan(rows, PlanSettings(6))
    for other in (
        PlanSettings(7),
        PlanSettings(6, sampler="permutations"),
        PlanSettings(6, with_fedsv=False),
    ):
        assert not same(usual, choose_plan(rows, other))
    assert not same(usual, choose_plan(rows, PlanSettings(6), seed=1))
    assert same(usual, choose_plan(rows, PlanSettings(6)))


def test_the_permutations_of_a_round_can_be_limited():
    plan = choose_plan(ROWS, PlanSettings(4, sampler="permutations", most_of_a_round=2))
    assert plan.permutations is not None
    assert plan.round_permutations is not None
    assert [len(own) for own in plan.round_permutations] == [2, 2, 2]
    assert np.array_equal(plan.round_permutations[0], plan.permutations[:2])  # the round that hears everyone
    assert len(plan.permutations) == 4


def test_a_longer_plan_begins_with_a_shorter_one():
    short, long = (choose_plan(ROWS, PlanSettings(n)) for n in (4, 9))
    assert short.permutations is not None
    assert long.permutations is not None
    assert np.array_equal(long.permutations[:4], short.permutations)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"permutations": 1}, "expected a whole number from 2 to 10,000,000, or auto"),
        ({"permutations": 4, "sampler": "stratify"}, "did you mean 'stratified'"),
        ({"with_fedsv": False}, "ask for permutations"),
    ],
)
def test_settings_that_make_no_plan_are_refused(settings, said):
    with pytest.raises(UsageError, match=said):
        PlanSettings(**settings)
