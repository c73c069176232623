import numpy as np
import pytest

from fedworth.errors import UsageError
from fedworth.games.observe import observe
from fedworth.names import COMPARED
from fedworth.oracle.fast import FastOracle
from fedworth.pipeline.measures import EVERYDAY, compare_measures
from fedworth.pipeline.stages import ValuingSettings
from fedworth.valuation.value import value


def test_every_measure_on_one_ledger_with_its_cost_and_its_distance_from_the_truth(tiny_ledger, tiny_task):
    rows = compare_measures(tiny_ledger, tiny_task, ValuingSettings(), COMPARED, copies=(("4", "0"),), with_truth=True)
    assert [row.name for row in rows] == list(COMPARED)
    for row in rows:
        assert row.refusal is None
        assert row.correlation is not None
        assert (row.error is None) == (row.name == "cosine")
        assert row.gap is not None
        assert row.gap >= 0
    by_name = {row.name: row for row in rows}
    assert by_name["fedsv"].n_evaluations == 31 + 3 + 3
    assert by_name["comfedsv"].n_evaluations > by_name["comfedsv-factors"].n_evaluations == 37
    assert by_name["comfedsv"].gap == pytest.approx(0, abs=1e-6)  # copies
    assert by_name["cosine"].n_evaluations == 0


def test_the_values_are_those_of_the_single_commands(tiny_ledger, tiny_task):
    (row,) = compare_measures(tiny_ledger, tiny_task, ValuingSettings(), ["fedsv"])
    expected = value(observe(tiny_ledger, FastOracle(tiny_task)), "fedsv").values
    assert row.valuation is not None
    assert row.valuation.values.tobytes() == expected.tobytes()
    assert row.error is None


def test_a_measure_that_is_refused_says_why_and_the_others_go_on(tiny_ledger, tiny_task, monkeypatch):
    monkeypatch.setattr("fedworth.valuation.rivals.rivals.MOST_RETRAINED", 4)
    refused, made = compare_measures(tiny_ledger, tiny_task, ValuingSettings(), ["retraining", "influence"])
    assert "at most 4 clients" in str(refused.refusal)
    assert refused.document()["values"] is None
    assert np.isfinite(made.document()["values"]).all()


def test_no_measure_and_an_unknown_one_are_errors(tiny_ledger, tiny_task):
    with pytest.raises(UsageError, match="no measure to compare"):
        compare_measures(tiny_ledger, tiny_task, ValuingSettings(), [])
    with pytest.raises(UsageError, match="gtg"):
        compare_measures(tiny_ledger, tiny_task, ValuingSettings(), ["gtx"])


def test_retraining_is_left_out_unless_asked_for():
    assert set(COMPARED) - set(EVERYDAY) == {"retraining"}
