"""report.xlsx: the report as a workbook; needs XlsxWriter, `pip install 'fedworth[excel]'`.

Names are written as text, never as formulas. The same report gives the same bytes.
"""

import io
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from importlib import import_module
from typing import Any

from fedworth.errors import UsageError
from fedworth.report.report import Report
from fedworth.valuation.valuation import COLUMNS, GROUP_COLUMNS

FINDING_COLUMNS = ("level", "finding", "clients", "rounds", "confidence", "in words")
FORMATS = {"share": "0.0%", "confidence": "0.0%"}
NUMBER = "0.0000"
WIDEST = 100  # characters
LONGEST = 32_000  # characters in a cell; Excel takes 32,767


def xlsxwriter() -> Any:
    """The library, or an error that says how to install it."""
    try:
        return import_module("xlsxwriter")
    except ImportError:
        raise UsageError("report.xlsx needs XlsxWriter: install it with  pip install 'fedworth[excel]'") from None


def excel_bytes(report: Report) -> bytes:
    """The workbook: values by every method, by group, findings, and what the values rest on."""
    file = io.BytesIO()
    with xlsxwriter().Workbook(file, {"in_memory": True}) as book:
        book.set_properties({"title": report.title, "created": datetime(2000, 1, 1)})
        for name, headings, rows in _sheets(report):
            _fill(book, book.add_worksheet(name), headings, rows)
    return file.getvalue()


def _sheets(report: Report) -> Iterator[tuple[str, Sequence[str], Iterable[Sequence[Any]]]]:
    yield "Values", COLUMNS, [row for valuation in report.valuations for row in valuation.rows()]
    if report.valuations and report.chosen.groups is not None:
        yield "By group", GROUP_COLUMNS, report.chosen.group_rows()
    yield "Findings", FINDING_COLUMNS, [_finding_row(found.document()) for found in report.all_findings]
    yield "What it rests on", ("what", "is"), _basis(report)


def _finding_row(found: dict[str, Any]) -> tuple[Any, ...]:
    rounds = ", ".join(map(str, found["rounds"]))
    clients = ", ".join(found["clients"])
    return found["level"], found["kind"], clients, rounds, found["confidence"], found["sentence"]


def _basis(report: Report) -> Iterator[tuple[str, Any]]:
    """What a reader must know about the values, a line each."""
    yield "report", report.title
    yield "sha256 of report.json", report.fingerprint
    for valuation in report.valuations:
        yield f"method {valuation.method}", f"{valuation.label}: {valuation.description}"
    if report.valuations and report.chosen.uncertainty is not None:
        yield f"how sure, by {report.chosen.method}", report.chosen.uncertainty.sentence
    provenance = report.provenance
    if provenance is not None:
        yield "measured by", f"{provenance.judged_by}, in {provenance.unit}"
        yield "test samples", provenance.n_test_samples
        yield "rounds", provenance.n_rounds
        yield "ledger's head", provenance.head
        yield "task", provenance.task
    for note in report.all_notes:
        yield "note", note


def _fill(book: Any, sheet: Any, headings: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """A heading that stays in sight, a column as wide as its longest text, numbers as numbers."""
    bold, plain = book.add_format({"bold": True}), book.add_format({"valign": "top", "text_wrap": True})
    numbers = [book.add_format({"valign": "top", "num_format": FORMATS.get(name, NUMBER)}) for name in headings]
    whole = book.add_format({"valign": "top", "num_format": "0"})
    widths = [len(name) for name in headings]
    n_rows = 0
    for column, name in enumerate(headings):
        sheet.write_string(0, column, name, bold)
    for n_rows, row in enumerate(rows, start=1):
        for column, cell in enumerate(row):
            if isinstance(cell, int | float):
                sheet.write_number(n_rows, column, cell, whole if isinstance(cell, int) else numbers[column])
            elif cell is not None:
                sheet.write_string(n_rows, column, cell.encode(errors="backslashreplace").decode()[:LONGEST], plain)
            widths[column] = max(widths[column], min(len(str(cell)), WIDEST) if isinstance(cell, str) else 10)
    for column, width in enumerate(widths):
        sheet.set_column(column, column, width + 2)
    sheet.freeze_panes(1, 1)
    if n_rows:
        sheet.autofilter(0, 0, n_rows, len(headings) - 1)
