"""The errors of a factor completion: from alternatives, which are too narrow, or unknown, which a caveat says."""

import numpy as np
import pytest

from fedworth.coalitions import coalitions_of
from fedworth.completion.complete import complete
from fedworth.completion.completion import TOO_NARROW, UNKNOWN
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


def test_alternatives_give_intervals_and_say_that_they_are_too_narrow(matrix, made):
    np.testing.assert_array_equal(made.estimates(EVERYONE), complete(matrix).estimates(EVERYONE))
    told = value(matrix, "comfedsv", completion=made).uncertainty
    assert told is not None
    assert told.doubts == (Doubt(None, TOO_NARROW),)


def test_where_no_error_is_known_the_completion_says_so(matrix):
    bare = complete(matrix)
    assert bare.error_factors(EVERYONE) is None
    assert bare.doubts() == (Doubt(None, UNKNOWN),)


def test_alternatives_survive_the_disk(made, tmp_path):
    save_completion(made, tmp_path / "completion.npz")
    back = load_completion(tmp_path / "completion.npz")
    np.testing.assert_array_equal(back.variances(EVERYONE), made.variances(EVERYONE))
