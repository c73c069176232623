"""A report on disk: CSV for spreadsheets, JSON for programs, Markdown for people."""

from pathlib import Path

from fedworth.report.report import Report, report_from
from fedworth.report.tables import csv_text, markdown
from fedworth.storage import Place, make_folder, read_json, write_json, write_whole


def write_report(report: Report, folder: Place) -> list[Path]:
    """Write `report.csv`, `report.json` and `report.md`; the same report gives the same bytes."""
    folder = Path(folder)
    make_folder(folder)
    paths = [folder / f"report.{ending}" for ending in ("csv", "json", "md")]
    write_whole(paths[0], csv_text(report).encode())
    write_json(paths[1], report.document())
    write_whole(paths[2], markdown(report).encode())
    return paths


def read_report(path: Place) -> Report:
    """The report at `path` (`report.json`)."""
    return report_from(read_json(path))
