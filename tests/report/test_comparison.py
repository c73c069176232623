"""Comparing reports: agreement of rankings, and differences that are clear or not."""

import csv
import io
import math
from dataclasses import replace

import numpy as np
import pytest

from fedworth.errors import UsageError
from fedworth.provenance import Provenance
from fedworth.report.comparison import Comparison
from fedworth.report.report import Report
from fedworth.valuation.uncertainty import uncertainty
from fedworth.valuation.valuation import Valuation
from tests.support.reports import hospitals


def report(*values: float, error: float | None = 0.1, clients=("a", "=b", "c"), method="comfedsv-models") -> Report:
    known = None if error is None else uncertainty(np.array(values), np.eye(len(values)) * error**2)
    made = Valuation(method, clients, np.array(values), completion={"kind": "models"}, uncertainty=known)
    return Report("t", clients, (made,))


def test_a_difference_is_clear_if_its_own_range_leaves_out_zero():
    made = Comparison.of([report(1.0, 2.0, 3.0), report(1.0, 2.2, 3.5)], ["x", "y"])
    half = 1.6448536269514722 * 0.1 * math.sqrt(2)
    assert made.rows[2].largest == pytest.approx((0.5, half))
    assert made.rows[2].sentence.endswith(": clear")
    assert made.rows[1].sentence.endswith(": not clear")
    assert (made.pairs[0].n_clear, made.pairs[0].n_known) == (1, 3)
    assert made.pairs[0].correlation == pytest.approx(1)


def test_without_ranges_nothing_is_called_clear():
    made = Comparison.of([report(1.0, 2.0, 3.0, error=None), report(9.0, 2.0, 3.0)], ["x", "y"])
    assert made.rows[0].sentence == "8.000, range not known"
    assert made.pairs[0].sentence == "not known: no ranges"


def test_clients_may_come_in_another_order_but_must_be_the_same():
    turned = report(3.0, 2.0, 1.0, clients=("c", "=b", "a"))
    made = Comparison.of([report(1.0, 2.0, 3.0), turned], ["x", "y"])
    assert made.rows[0].largest is not None
    assert made.rows[0].largest[0] == 0
    with pytest.raises(UsageError, match="other clients"):
        Comparison.of([report(1.0, 2.0, 3.0), report(1.0, 2.0, 3.0, clients=("a", "b", "d"))], ["x", "y"])


def test_methods_of_one_report_compare():
    made = Comparison.of([hospitals()], ["run"], methods=["comfedsv-models", "fedsv"])
    assert made.names == ("run, comfedsv-models", "run, fedsv")
    with pytest.raises(UsageError, match="has no values by truth"):
        Comparison.of([hospitals()], ["run"], methods=["truth"])
    with pytest.raises(UsageError, match="only one column"):
        Comparison.of([hospitals()], ["run"])


def test_other_methods_and_settings_are_named():
    def given(*names, seed=0):
        settings = {"given": list(names), "seed": seed}
        return replace(report(1.0, 2.0, 3.0), provenance=Provenance("h", 1, "t", settings=settings))

    same = Comparison.of([given(seed=1), given(seed=2)], ["x", "y"])
    assert not same.differing
    made = Comparison.of([given(), report(1.0, 2.0, 3.0, method="fedsv"), given("c")], ["x", "y", "z"])
    assert len(made.differing) == 2
    assert "y is valued differently from x (method fedsv instead of comfedsv-models" in made.sentence
    assert 'z is valued differently from x (given ["c"] instead of [])' in made.page_html().replace("&#34;", '"')


def test_a_client_without_a_value_is_not_compared():
    made = Comparison.of([report(1.0, np.nan, 3.0), report(1.0, 2.0, 3.0)], ["x", "y"])
    assert made.rows[1].sentence == "–"
    assert made.pairs[0].n_known == 2


def test_the_table_the_csv_and_the_json_have_every_report():
    made = Comparison.of([report(1.0, 2.0, 3.0), report(1.0, 2.2, 3.5), report(1.0, 2.0, 3.0)], ["x", "=y", "z"])
    assert made.table().headings == ("client", "(1)", "(2)", "(3)", "largest difference")
    rows = list(csv.DictReader(io.StringIO(made.csv_text())))
    assert len(rows) == 9
    assert {row["client"] for row in rows} == {"a", "'=b", "c"}
    assert "'=y" in {row["report"] for row in rows}
    assert len(made.document()["pairs"]) == 3
    assert made.document()["clients"][2]["largest_difference"] == pytest.approx(0.5)


def test_the_sentence_says_the_worst_agreement():
    other = replace(report(3.0, 2.0, 1.0))
    assert "correlation of -1.00 or more" in Comparison.of([report(1.0, 2.0, 3.0), other], ["x", "y"]).sentence
