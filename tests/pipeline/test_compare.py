"""Methods side by side on one ledger."""

import numpy as np
import pytest

import fedworth
from fedworth.errors import UsageError, ValuationError
from fedworth.pipeline.compare import everyday_methods
from fedworth.valuation.methods import METHODS, OF_EMBEDDINGS, Method


def test_every_method_on_one_ledger_with_its_cost_and_its_distance_from_the_truth(tiny_ledger, tiny_task):
    names = [name for name in METHODS if name not in {"truth", *OF_EMBEDDINGS}]
    rows = fedworth.compare(tiny_ledger, tiny_task, names=names, copies=(("4", "0"),))
    assert [row.method for row in rows] == names
    for row in rows:
        assert row.refusal is None
        assert row.rank_correlation is not None
        assert (row.error is None) == (row.method == "cosine")
        assert row.copies_gap is not None
        assert row.copies_gap >= 0
    by_name = {row.method: row for row in rows}
    assert by_name["fedsv"].n_evaluations == by_name["comfedsv"].n_evaluations == 31 + 3 + 3
    assert by_name["comfedsv-models"].n_evaluations > 37
    assert by_name["comfedsv-models"].copies_gap == pytest.approx(0, abs=1e-6)
    assert by_name["cosine"].n_evaluations == 0


def test_the_values_are_those_of_a_federation(tiny_ledger, tiny_task):
    (row,) = fedworth.compare(tiny_ledger, tiny_task, names=["fedsv"])
    work = fedworth.WorkSettings(cache=False)
    expected = fedworth.Federation(tiny_ledger, tiny_task, work=work).value("fedsv").values
    assert row.valuation is not None
    assert row.valuation.values.tobytes() == expected.tobytes()


def test_a_method_that_is_refused_says_why_and_the_others_go_on(tiny_ledger, tiny_task, monkeypatch):
    def fail(_):
        raise ValuationError("not today")

    monkeypatch.setitem(METHODS, "moody", Method("Moody", "refuses", fail))
    fedworth.valuation.methods.methods.cache_clear()
    refused, made = fedworth.compare(tiny_ledger, tiny_task, names=["moody", "influence"])
    assert refused.refusal == "not today"
    assert refused.document()["values"] is None
    assert np.isfinite(made.document()["values"]).all()
    monkeypatch.undo()
    fedworth.valuation.methods.methods.cache_clear()


def test_no_method_and_an_unknown_one_are_errors(tiny_ledger, tiny_task):
    with pytest.raises(UsageError, match="no method to compare"):
        fedworth.compare(tiny_ledger, tiny_task, names=[])
    with pytest.raises(UsageError, match="gtg"):
        fedworth.compare(tiny_ledger, tiny_task, names=["gtx"])


def test_retraining_and_the_truth_are_left_out_unless_asked_for():
    assert set(METHODS) - set(everyday_methods()) == {"retraining", "truth"}
