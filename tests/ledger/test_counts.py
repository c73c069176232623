"""What a client may weigh: whole numbers of samples, or weights where the server says so."""

from fractions import Fraction

import numpy as np
import pytest

from fedworth.errors import ModelError
from fedworth.ledger.counts import checked_count
from fedworth.ledger.ledger import open_ledger, verify_ledger
from fedworth.recording.recorder import record_into
from tests.support.ledgers import model


@pytest.mark.parametrize("count", [1, 5, 10**12, 5.0, np.int64(5), np.uint8(5), np.float32(5), np.float64(5)])
def test_whole_numbers_of_any_kind_are_counts(count):
    found = checked_count(count, "samples", "here")
    assert (found, type(found)) == (int(count), int)


IMPLAUSIBLE = [0, -1, 0.5, 1e-18, 1e-300, 2.5, 10**12 + 1, 1e300, 10**400, float("nan"), float("inf"), True, "5", None]
IMPLAUSIBLE += [np.float64("nan"), np.int64(-3), np.bool_(True), Fraction(1, 2), np.array([5])]


@pytest.mark.parametrize("count", IMPLAUSIBLE)
def test_what_is_no_count_is_refused_with_what_was_found(count):
    with pytest.raises(ModelError, match=r"here: its number of samples is .*expected"):
        checked_count(count, "samples", "here")


def test_weights_may_be_any_number_in_float64s_reach():
    assert checked_count(0.25, "weights", "here") == 0.25
    for weight in (0, 1e-18, 1e18, float("nan")):
        with pytest.raises(ModelError, match="its number of samples is"):
            checked_count(weight, "weights", "here")
    assert checked_count(0, "any", "here") == 0


@pytest.mark.parametrize("count", [1e-18, 0.5, 2**60])
def test_a_client_that_reports_no_count_is_quarantined_alone(tmp_path, count):
    recorder = record_into(tmp_path / "l")
    recorder.start_round(model(1), asked=["a", "b"])
    recorder.client_model("a", model(2), np.int64(7))
    recorder.client_model("b", model(3), count)
    recorder.end_round()
    entry = verify_ledger(tmp_path / "l").entries[0]
    assert (entry.answered, entry.sample_counts, entry.quarantined) == ((0,), (7,), (1,))
    assert "expected a whole number from 1 to 10^12" in entry.quarantine_reasons[0]


def test_a_server_that_weighs_by_something_else_says_so_once(tmp_path):
    for is_resumed in (False, True):
        recorder = record_into(tmp_path / "l", real_weights=not is_resumed, resume=is_resumed)
        recorder.start_round(model(1), asked=["a"])
        recorder.client_model("a", model(2), 0.125)
        recorder.end_round()
        recorder.release()
    assert [entry.sample_counts for entry in open_ledger(tmp_path / "l").entries] == [(0.125,), (0.125,)]
