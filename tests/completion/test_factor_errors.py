"""What a factor completion's errors follow from: a second estimate, or, of too many coalitions, alternatives."""

from dataclasses import replace

import numpy as np
import pytest

from fedworth.coalitions import coalitions_of
from fedworth.completion import factor_errors as module
from fedworth.completion.by_kernel import complete_by_kernel
from fedworth.completion.complete import complete
from fedworth.completion.completion import TOO_NARROW
from fedworth.completion.completion_file import load_completion, save_completion
from fedworth.completion.doubt import Doubt
from fedworth.completion.factor_errors import with_errors
from fedworth.valuation.value import value
from tests.support.games import federation

EVERYONE = coalitions_of(np.arange(5), 5)


@pytest.fixture(scope="module")
def matrix():
    return federation(0)[1]


@pytest.fixture(scope="module")
def made(matrix):
    return with_errors(matrix, complete(matrix))


def test_the_estimates_stay_and_their_errors_are_those_of_the_second_one(matrix, made):
    bare, second = complete(matrix), complete_by_kernel(matrix)
    np.testing.assert_array_equal(made.estimates(EVERYONE), bare.estimates(EVERYONE))
    apart = bare.estimates(EVERYONE) - second.estimates(EVERYONE)
    np.testing.assert_allclose(made.variances(EVERYONE), apart**2 + second.variances(EVERYONE), rtol=1e-9)
    L, own = made.error_factors(EVERYONE), second.error_factors(EVERYONE)
    gaps = apart.sum(axis=0)
    assert L is not None
    assert own is not None
    np.testing.assert_allclose(L @ L.T, np.outer(gaps, gaps) + own @ own.T, rtol=1e-6, atol=1e-9)


def test_an_interval_holds_the_second_estimates_value(matrix, made):
    """sd² = (s − s')² + sd'², so s' lies within one standard deviation of s."""
    ours = value(matrix, "comfedsv", completion=made)
    second = value(matrix, "comfedsv", completion=complete_by_kernel(matrix))
    assert ours.uncertainty is not None
    assert second.uncertainty is not None
    expected = (ours.values - second.values) ** 2 + second.uncertainty.deviations**2
    np.testing.assert_allclose(ours.uncertainty.deviations**2, expected, rtol=1e-6)
    assert made.doubts() == complete_by_kernel(matrix).doubts() == ()


def test_of_too_many_coalitions_alternatives_speak_and_say_that_they_are_too_narrow(matrix, monkeypatch):
    monkeypatch.setattr(module, "MOST_TOGETHER", 8)
    found = with_errors(matrix, complete(matrix))
    assert found.reference is None
    assert found.alternatives is not None
    told = value(matrix, "comfedsv", completion=found).uncertainty
    assert told is not None
    assert told.doubts == (Doubt(None, TOO_NARROW),)


def test_where_no_second_estimate_can_be_had_nothing_is_claimed(matrix):
    empty = replace(complete(matrix), coalitions=matrix.coalitions)
    bare = replace(matrix, is_truth=True)
    assert with_errors(bare, empty) is empty


def test_the_second_estimate_survives_the_disk(made, tmp_path):
    save_completion(made, tmp_path / "completion.npz")
    back = load_completion(tmp_path / "completion.npz")
    np.testing.assert_array_equal(back.variances(EVERYONE), made.variances(EVERYONE))
