"""Value: every method by its name."""

import numpy as np
import pytest

from fedworth.completion.factors import FactorSettings, complete
from fedworth.errors import NeverHeardError, UnseenError, UsageError
from fedworth.names import CHOICES
from fedworth.valuation.value import COMPLETED, value
from tests.support.games import federation, matrix_of


def truth_of(seed):
    utilities, matrix = federation(seed)
    return matrix_of(utilities, matrix.participants, is_truth=True)


@pytest.mark.parametrize("method", CHOICES["method"])
def test_every_method_answers_to_its_name(method):
    matrix = truth_of(0) if method == "truth" else federation(0)[1]
    found = value(matrix, method)
    assert found.method == method
    assert found.clients == matrix.clients
    assert np.isfinite(found.values).all()
    assert (found.completion is not None) == (method in COMPLETED)


def test_comfedsv_rests_on_the_completion_given_or_makes_its_own():
    _, matrix = federation(1)
    settings = FactorSettings(rank=2, penalty_kind="uniform")
    own = value(matrix, "comfedsv", settings=settings)
    handed = value(matrix, "comfedsv", completion=complete(matrix, settings))
    assert np.array_equal(own.values, handed.values)
    assert own.completion == handed.completion
    assert own.completion is not None
    assert own.completion["rank"] == 2


def test_two_valuations_of_the_same_cells_are_equal():
    one, two = (value(federation(2)[1], "comfedsv").document() for _ in range(2))
    assert one == two


def test_an_unknown_method_is_refused_with_the_nearest_name():
    with pytest.raises(UsageError, match="did you mean 'comfedsv'"):
        value(federation(0)[1], "comfedvs")  # type: ignore[arg-type]


@pytest.mark.parametrize("method", [m for m in CHOICES["method"] if m != "fedsv-later"])
def test_strict_reaches_every_method(method):
    matrix = matrix_of(np.tile(np.array([0, 1.0, 2, 3]), (2, 1)), [[True, False]] * 2, is_truth=method == "truth")
    if method in COMPLETED:
        completion = complete(matrix)
        with pytest.raises(NeverHeardError):
            value(matrix, method, completion=completion, strict=True)
        return
    with pytest.raises(NeverHeardError):
        value(matrix, method, strict=True)


def test_unseen_coalitions_are_refused_unless_zero_is_asked_for():
    utilities, _ = federation(3, n_rounds=2, n_clients=3)
    matrix = matrix_of(utilities, [[True, True, False], [False, True, True]])
    with pytest.raises(UnseenError):
        value(matrix, "comfedsv")
    assert "never seen" in value(matrix, "comfedsv", unseen="zero").warnings[0]
