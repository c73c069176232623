"""Valuations as Python users meet them: indexed, iterated, sorted, compared, shown."""

import numpy as np
import pytest

from fedworth.errors import UsageError
from fedworth.valuation.notebook import MOST_ROWS, digits_of, notebook_html, signed
from fedworth.valuation.uncertainty import Source, uncertainty
from fedworth.valuation.valuation import COLUMNS, ClientValue, Valuation

VALUES = np.array([0.5, -0.25, np.nan])


def made(**more) -> Valuation:
    return Valuation("comfedsv-models", ("a", "<b>", "c"), VALUES, completion={"kind": "models"}, **more)


KNOWN = made(uncertainty=uncertainty(VALUES, np.diag([0.01, 0.01, np.nan])))


def test_a_client_is_found_by_name():
    found = KNOWN["a"]
    assert (found.value, found.share, found.rank, found.ranks) == (0.5, 1.0, 1, (1, 1))
    assert [found.low, found.high] == pytest.approx([0.3355, 0.6645], abs=1e-4)
    assert KNOWN["c"] == ClientValue("c", None, None, None, None, None, None)
    with pytest.raises(UsageError, match="unknown client 'd'"):
        KNOWN["d"]


def test_iterating_gives_all_lines_and_sorting_orders_by_value():
    assert [line.client for line in KNOWN] == ["a", "<b>", "c"]
    assert [line.client for line in sorted(KNOWN)] == ["c", "<b>", "a"]
    assert len(KNOWN) == 3


def test_only_a_whole_interval_on_one_side_of_zero_says_that_a_client_helps():
    wide = made(uncertainty=uncertainty(VALUES, np.diag([1.0, 0.01, np.nan])))
    assert [line.helps for line in wide] == [None, False, None]


def test_equal_numbers_make_equal_valuations():
    assert Valuation.from_document(KNOWN.document()) == KNOWN
    assert made() != KNOWN
    assert made() != "comfedsv-models"


def test_the_text_is_short_and_names_the_best():
    assert repr(KNOWN) == "<Valuation by comfedsv-models of 3 clients; 'a': +0.5, '<b>': -0.25>"
    many = Valuation("fedsv", tuple(str(k) for k in range(1000)), np.arange(1000.0))
    assert len(repr(many)) < 120


def test_what_the_intervals_cover_is_said():
    variances = np.diag([0.01, 0.01, np.nan])
    assert KNOWN.covered == (Source.ESTIMATES,)
    drawn = made(uncertainty=uncertainty(VALUES, 0 * variances, sampling=variances, test_set=variances, degrees=31))
    assert drawn.covered == (Source.SAMPLING, Source.TEST_SET)
    assert drawn.sampling_errors == pytest.approx([0.1, 0.1, np.nan], nan_ok=True)
    assert drawn.standard_errors == pytest.approx([0.02**0.5, 0.02**0.5, np.nan], nan_ok=True)
    assert made().covered == ()
    assert made().intervals is None


def test_without_an_interval_nobody_is_said_to_help():
    assert [line.helps for line in made()] == [None, None, None]


def test_a_notebook_gets_a_table_without_a_script_and_with_names_as_text():
    html = KNOWN._repr_html_()
    assert "<script" not in html
    assert " id=" not in html
    assert "<b>" not in html.replace("<bdi>", "")
    assert "&lt;b&gt;" in html
    assert "+0.50" in html
    assert "+0.34 to +0.66" in html
    assert html.index("fedworth-text") < html.index("<table>")


def test_a_notebook_shows_the_best_of_many():
    many = Valuation("fedsv", tuple(f"c{k}" for k in range(100)), np.arange(100.0))
    html = many._repr_html_()
    assert html.count("<tr>") == 1 + MOST_ROWS
    assert "… 80 more" in html
    assert "c99" in html


def test_a_data_frame_has_the_columns_of_the_csv():
    pytest.importorskip("pandas")
    frame = KNOWN.to_dataframe()
    assert list(frame.columns) == list(COLUMNS)
    assert frame["client"].tolist() == ["a", "<b>", "c"]
    assert frame["value"][0] == 0.5
    assert frame["value"].isna().tolist() == [False, False, True]


def test_without_pandas_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "pandas", None)
    with pytest.raises(UsageError, match=r"fedworth\[pandas\]"):
        KNOWN.to_dataframe()


def test_numbers_have_a_true_minus_and_never_a_minus_zero():
    assert [signed(x) for x in (0.5, -0.25, -0.001, 0.0, None)] == ["+0.50", "−0.25", "+0.00", "+0.00", "–"]
    assert digits_of([ClientValue("a", 0.00123, None, None, None, None, None)]) == 4
    assert notebook_html("t", "t", []).count("<tr>") == 1
