"""Reports: what they say, what they hide from nobody, and what hostile names cannot do to them."""

import csv
import io
import json
from dataclasses import replace

import numpy as np
import pytest

from fedworth.errors import ArtefactError
from fedworth.findings import LARGE_UPDATE, SAME_MODEL, Finding
from fedworth.report.report import Report
from fedworth.report.tables import csv_text, findings_lines, markdown, tables, values_table
from fedworth.valuation.uncertainty import uncertainty
from fedworth.valuation.valuation import Valuation

CLIENTS = ("a", "b", "c")


def valuation(method: str, *values: float, clients=CLIENTS, errors=None) -> Valuation:
    known, found = None, np.array(values)
    if errors is not None:
        known = uncertainty(found, np.zeros((len(found),) * 2), sampling=np.diag(np.array(errors) ** 2))
    return Valuation(method, clients, found, notes=("mind this",) if method == "fedsv" else (), uncertainty=known)


def report(**changes) -> Report:
    valuations = (
        valuation("comfedsv-models", 1.0, 2.0, 1.1),
        valuation("fedsv", 3.0, -1.0, 0.5),
        valuation("truth", 1.0, 2.0, 1.0),
    )
    return Report(**{"title": "t", "clients": CLIENTS, "valuations": valuations, "copies": (("c", "a"),), **changes})


def test_values_shares_and_ranks_stand_side_by_side():
    table = values_table(report())
    assert table.headings == (
        "client", "ComFedSV by models", "share", "rank", "FedSV", "share", "rank", "Truth", "share", "rank",
    )  # fmt: skip
    assert table.rows[1] == ("b", "+2.0000", "48.8%", "1", "-1.0000", "0.0%", "3", "+2.0000", "50.0%", "1")


def test_agreement_is_with_the_truth_and_between_copies():
    rows = {row["method"]: row for row in report().agreement}
    assert rows["truth"]["rank_correlation"] == pytest.approx(1)
    assert rows["truth"]["relative_error"] == 0
    assert rows["truth"]["largest_difference_of_copies"] == 0
    assert rows["fedsv"]["largest_difference_of_copies"] == pytest.approx(2.5 / 3)


def test_without_truth_and_copies_there_is_no_agreement_to_show():
    plain = report(valuations=(valuation("fedsv", 1.0, 2.0, 3.0),), copies=())
    assert [table.title for table in tables(plain)] == ["What each client is worth"]


def test_a_client_without_a_value_is_shown_as_absent_not_as_zero():
    shown = values_table(report(valuations=(valuation("comfedsv-models", 1.0, np.nan, 2.0),), copies=()))
    assert shown.rows[1] == ("b", "–", "–", "–")
    line = csv_text(report(valuations=(valuation("comfedsv-models", 1.0, np.nan, 2.0),))).splitlines()[2]
    assert line == "b,comfedsv-models,,,,,,,,"


def test_standard_errors_stand_beside_the_values():
    shown = values_table(report(valuations=(valuation("comfedsv-models", 1.0, 2.0, 3.0, errors=[0.1, 0.2, np.nan]),)))
    assert shown.rows[0][1] == "+1.0000 ± 0.1000"
    assert shown.rows[2][1] == "+3.0000"


def test_warnings_and_refusals_reach_the_reader():
    said = report(refusals=(("all-clients-round", "nobody was heard"),), notes=("a note",)).all_notes
    assert said == ["a note", "all-clients-round: refused; nobody was heard", "fedsv: mind this"]
    assert "nobody was heard" in markdown(report(refusals=(("all-clients-round", "nobody was heard"),)))


def test_written_and_read_back_is_the_same_report(tmp_path):
    paths = report(coverage={"n_columns_by_size": [3], "share_seen_by_size": [0.5]}).write(tmp_path)
    assert [path.name for path in paths] == ["report.csv", "report.json", "report.md", "report.html"]
    assert Report.read(tmp_path).document() == json.loads(paths[1].read_text())
    again = Report.read(tmp_path / "report.json").write(tmp_path / "again")
    assert [path.read_bytes() for path in again] == [path.read_bytes() for path in paths]


def test_csv_has_full_precision():
    rows = list(csv.DictReader(io.StringIO(csv_text(report(valuations=(valuation("truth", 1 / 3, 2.0, 3.0),))))))
    assert float(rows[0]["value"]) == 1 / 3


@pytest.mark.parametrize("name", ["<script>alert(1)</script>", "=1+1", "a|b", "two\nlines", "*bold*", "@sum", "`code`"])
def test_hostile_names_are_shown_as_text(name):
    hostile = (name, "b", "c")
    made = (valuation("comfedsv-models", 1.0, 2.0, 3.0, clients=hostile),)
    shown = Report("t", hostile, made)
    text = markdown(shown)
    assert "<script>" not in text
    row = next(line for line in text.splitlines() if "+1.0000" in line)
    assert row.count("|") == 5
    first = next(iter(csv.reader(io.StringIO(csv_text(shown).split("\n", 1)[1]))))[0]
    assert first[:1] not in ("=", "+", "-", "@")


def test_valuations_of_other_clients_are_refused():
    with pytest.raises(ArtefactError, match="expected"):
        report(valuations=(valuation("truth", 1.0, 2.0, 3.0, clients=("x", "y", "z")),))


def test_a_document_that_is_no_report_is_refused():
    with pytest.raises(ArtefactError, match="not a report"):
        Report.from_document({"title": "t"})


FOUND = (
    Finding(LARGE_UPDATE, ("a",), (1, 2), 4, {"ratio": 12.5}),
    Finding(SAME_MODEL, ("b", "c|*x*"), (1,), 1),
)


def test_findings_are_read_back_and_say_the_same_in_text_and_json(tmp_path):
    written = report(findings=FOUND)
    written.write(tmp_path)
    assert Report.read(tmp_path).findings == FOUND
    sentences = [finding["sentence"] for finding in json.loads((tmp_path / "report.json").read_text())["findings"]]
    assert findings_lines(FOUND)[1:-1] == [f"- {sentence}" for sentence in sentences]
    assert f"- {sentences[0]}\n" in (tmp_path / "report.md").read_text()


def test_a_hostile_name_in_a_finding_is_text_in_markdown():
    assert "'c&#124;\\*x\\*'" in markdown(report(findings=FOUND))


def test_a_report_with_a_broken_finding_is_refused():
    with pytest.raises(ArtefactError, match="not a report"):
        Report.from_document({**report().document(), "findings": [{"kind": "large update"}]})


def test_a_report_is_indexed_iterated_sorted_and_compared():
    made = report()
    assert made["b"].value == 2.0
    assert [line.client for line in made] == ["a", "b", "c"]
    assert max(made).client == "b"
    assert len(made) == 3
    assert Report.from_document(made.document()) == made
    assert made != report(title="another")
    assert made != 1


def test_a_report_chooses_comfedsv_by_models_and_else_its_first():
    assert report().chosen.method == "comfedsv-models"
    assert report(valuations=(valuation("fedsv", 1.0, 2.0, 3.0), valuation("truth", 1.0, 2.0, 3.0))).chosen.method == (
        "fedsv"
    )
    assert repr(report()) == "<Report 't': 3 clients by comfedsv-models, fedsv, truth; findings: 0>"
    with pytest.raises(ArtefactError, match="no method gave values"):
        _ = report(valuations=()).chosen


def test_a_report_shows_itself_in_a_notebook_and_as_a_data_frame():
    pytest.importorskip("pandas")
    assert "t — ComFedSV by models: potential" in report()._repr_html_()
    frame = report().to_dataframe()
    assert len(frame) == 9
    assert frame["method"].tolist()[::3] == ["comfedsv-models", "fedsv", "truth"]
    listed = list(csv.reader(io.StringIO(csv_text(report()))))
    assert list(frame.columns) == listed[0]


def test_the_words_of_headings_are_explained_below_their_table():
    values, agreed = (table for table in tables(report()) if table.legend)
    assert [text.split(":")[0] for text in values.legend.split("; ")] == ["value", "measured in", "share", "rank"]
    assert [text.split(":")[0] for text in agreed.legend.split("; ")] == ["rank correlation", "error / spread", "d"]
    for table in (values, agreed):
        assert table.legend in markdown(report())
    (without_copies,) = (t for t in tables(report(copies=())) if t.title == agreed.title)
    assert "; d:" not in without_copies.legend


def test_a_truth_that_is_drawn_is_said_to_be_beside_what_is_held_against_it():
    drawn = report(valuations=(valuation("fedsv", 3.0, -1.0, 0.5), valuation("truth", 1.0, 2.0, 3.0, errors=[0.4] * 3)))
    exact = report(valuations=(valuation("fedsv", 3.0, -1.0, 0.5), valuation("truth", 1.0, 2.0, 3.0)))
    notes = [next(t.note for t in tables(made) if t.title == "How far to trust them") for made in (drawn, exact)]
    assert "(0.49 of its spread)" in notes[0]
    assert notes[1] == ""


def test_an_interval_is_shown_with_as_many_digits_as_it_takes():
    shown = []
    for deviation in (0.5, 0.001):
        known = uncertainty(np.array([1.0, 2.0, 1.1]), deviation**2 * np.eye(3))
        made = replace(valuation("comfedsv-models", 1.0, 2.0, 1.1), uncertainty=known, completion={"kind": "factors"})
        table = values_table(report(valuations=(made,)))
        shown.append(table.rows[0][2])
    assert shown == ["+0.18 to +1.82", "+0.9984 to +1.0016"]
