"""report.xlsx, read by another program: the numbers of the report, names as text, the same bytes twice."""

import sys

import openpyxl
import pytest

from fedworth.cli.main import main
from fedworth.errors import UsageError
from fedworth.report.report import Report
from fedworth.valuation.valuation import COLUMNS, GROUP_COLUMNS
from tests.support.reports import HOSTILE, hospitals


def sheets(path):
    return {sheet.title: digits(sheet.values) for sheet in openpyxl.load_workbook(path)}


def digits(rows):
    """Numbers with the sixteen digits that the file keeps."""
    return [tuple(float(f"{cell:.16G}") if isinstance(cell, float) else cell for cell in row) for row in rows]


def test_it_has_what_the_report_says(tmp_path):
    report = hospitals(n_groups=3)
    report.write(tmp_path, excel=True)
    found = sheets(tmp_path / "report.xlsx")
    assert list(found) == ["Values", "By group", "Findings", "What it rests on"]
    assert found["Values"] == digits([COLUMNS, *(row for made in report.valuations for row in made.rows())])
    assert found["By group"] == digits([GROUP_COLUMNS, *report.chosen.group_rows()])
    assert [row[-1] for row in found["Findings"][1:]] == [finding.sentence for finding in report.all_findings]
    basis = dict(found["What it rests on"][1:])
    assert report.fingerprint in basis["Fingerprint"]
    assert {"Measured in", "Ledger", "Task", "Software"} <= set(basis)


@pytest.mark.parametrize("name", [*HOSTILE, "=1+1", "{=1+1}", "@SUM(A1)", "\udc80"])
def test_a_name_is_text_and_never_a_formula(tmp_path, name):
    report = hospitals(names=(name, "other"))
    report.write(tmp_path, excel=True)
    sheet = openpyxl.load_workbook(tmp_path / "report.xlsx")["Values"]
    assert {cell.data_type for cell in sheet["A"]} == {"s"}
    assert str(sheet["A2"].value).strip()


def test_the_same_report_gives_the_same_bytes(tmp_path):
    first, second = (hospitals().write(tmp_path / name, excel=True) for name in ("one", "two"))
    assert first[-1].name == "report.xlsx"
    assert first[-1].read_bytes() == second[-1].read_bytes()


def test_the_command_writes_it_beside_the_others(tmp_path, capsys):
    hospitals().write(tmp_path)
    assert main(["report", str(tmp_path), "--excel"]) == 0
    assert "report.xlsx" in capsys.readouterr().out
    assert sheets(tmp_path / "report.xlsx")["Values"][1][0] == Report.read(tmp_path).clients[0]


def test_without_the_package_it_is_said_how_to_install_it(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "xlsxwriter", None)
    with pytest.raises(UsageError, match=r"fedworth\[excel\]"):
        hospitals().write(tmp_path, excel=True)
