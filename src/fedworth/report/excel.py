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
from fedworth.report.tables import facts_of
from fedworth.valuation.valuation import COLUMNS, GROUP_COLUMNS

FINDING_COLUMNS = ("level", "finding", "clients", "rounds", "confidence", "in words")
FORMATS = {"share": "0.0%", "confidence": "0.0%"} | dict.fromkeys(("value", "standard_error", "low", "high"), "0.0000")
WIDTHS = {"in words": 100, "is": 100}  # in characters, of long texts
OPTIONS = {"in_memory": True}
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
    with xlsxwriter().Workbook(file, OPTIONS) as book:
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


def _basis(report: Report) -> Iterator[tuple[str, str]]:
    """What a reader must know about the values, a line each."""
    yield "Report", report.title
    for valuation in report.valuations:
        yield f"Method {valuation.method}", f"{valuation.label}: {valuation.description}"
    if report.valuations and report.chosen.uncertainty is not None:
        yield f"How sure, by {report.chosen.method}", report.chosen.uncertainty.sentence
    yield from facts_of(report)
    yield from (("Note", note) for note in report.all_notes)


def _fill(book: Any, sheet: Any, headings: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """A heading that stays in sight, numbers as numbers and names as text."""
    sheet.write_row(0, 0, headings, book.add_format({"bold": True}))
    n_rows = 0
    for n_rows, row in enumerate(rows, start=1):
        for column, cell in enumerate(row):
            if isinstance(cell, str):  # always as text: a client may call itself =1+1
                sheet.write_string(n_rows, column, _text(cell))
            else:
                sheet.write(n_rows, column, cell)
    for column, name in enumerate(headings):
        look = {"num_format": FORMATS[name]} if name in FORMATS else {"text_wrap": True}
        sheet.set_column(column, column, WIDTHS.get(name, 16), book.add_format({"valign": "top", **look}))
    sheet.freeze_panes(1, 1)
    if n_rows:
        sheet.autofilter(0, 0, n_rows, len(headings) - 1)


def _text(cell: str) -> str:
    """A text that Excel takes: one that is too long would be left out."""
    return cell.encode(errors="backslashreplace").decode()[:LONGEST]
