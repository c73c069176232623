"""Who can be valued: the heard; the others are named."""

import numpy as np
import pytest

from fedworth.errors import NeverHeardError, ValuationError
from fedworth.valuation.heard import heard_clients, spread
from tests.support.games import matrix_of

ZEROS = np.zeros((2, 8))


def test_when_everyone_was_heard_nobody_is_warned_of():
    heard, warnings = heard_clients(matrix_of(ZEROS, [[True, True, False], [False, True, True]]), strict=True)
    assert heard.tolist() == [0, 1, 2]
    assert warnings == ()


def test_clients_never_heard_are_named():
    heard, (warning,) = heard_clients(matrix_of(ZEROS, [[True, False, False]] * 2), strict=False)
    assert heard.tolist() == [0]
    assert warning.startswith("never heard in 2 rounds: clients b, c; no value can be given")


def test_under_strict_a_client_never_heard_is_an_error():
    with pytest.raises(NeverHeardError, match="client b; let a round hear everyone") as caught:
        heard_clients(matrix_of(ZEROS, [[True, False, True]] * 2), strict=True)
    assert caught.value.exit_code == 11


def test_a_federation_nobody_took_part_in_values_nobody():
    with pytest.raises(ValuationError, match="no client took part"):
        heard_clients(matrix_of(ZEROS, [[False] * 3] * 2), strict=False)


def test_values_of_some_are_values_of_all_with_gaps():
    assert spread(np.array([5.0, 7.0]), np.array([0, 2]), 3) == pytest.approx([5, np.nan, 7], nan_ok=True)
