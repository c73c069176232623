"""Stopping rules: each holds when it should, and they combine."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedworth.errors import UsageError
from fedworth.games import Estimate
from fedworth.valuation.stopping import (
    StoppingReason,
    all_of,
    difference_errors,
    precise_relative,
    ranked,
)


def estimate(values, errors, correlation=0.0):
    errors = np.asarray(errors, dtype=float)
    covariance = correlation * np.outer(errors, errors)
    np.fill_diagonal(covariance, errors**2)
    return Estimate(np.asarray(values, dtype=float), covariance, 100)


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
    assert all_of(ranked(2), precise_relative(0.01))(found) == ()
    assert all_of(ranked(2), precise_relative(1))(found) == (StoppingReason.RANKED, StoppingReason.PRECISE)


@pytest.mark.parametrize("make", [precise_relative, ranked, lambda x: ranked(1, tie=x)])
def test_negative_settings_are_refused(make):
    with pytest.raises(UsageError, match=r"-1: expected 0 or more"):
        make(-1)
