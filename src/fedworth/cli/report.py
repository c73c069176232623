"""fedworth report: numbers to tables, on the screen and on disk."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from fedworth.cli.options import command
from fedworth.cli.results.page_options import add_page_options, page_settings
from fedworth.cli.show import show_findings, show_json, show_lines, show_table, warn

if TYPE_CHECKING:
    from fedworth.report.report import Report


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """The command and its options."""
    parser = command(
        subparsers,
        "report",
        "Print a run's tables and write them as a page, CSV, JSON and Markdown.",
        "fedworth report runs/demo --out reports",
        run,
    )
    parser.add_argument("run", type=Path, help="the folder of a run")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="where to write (default: the run's folder)")
    add_page_options(parser)


def run(args: argparse.Namespace) -> None:
    """Read a run's report, write its files, show it."""
    from fedworth.report.files import read_report, read_rewards, write_report

    report = read_report(args.run / "report.json")
    rewards = read_rewards(args.run) if args.rewards else None
    paths = write_report(report, args.out or args.run, page_settings(args), rewards=rewards)
    show_report(report, paths, as_json=args.json)


def show_report(report: "Report", paths: list[Path], *, as_json: bool) -> None:
    """A report on the screen, and where its files are."""
    from fedworth.report.tables import headlines, tables

    if as_json:
        show_json({**report.document(), "files": [str(path) for path in paths]})
        return
    for table in tables(report):
        show_table(table)
    show_lines([*headlines(report), ""] if report.copies else [])
    show_findings(report.findings)
    show_lines(["written: " + ", ".join(str(path) for path in paths)])
    warn(report.warnings())
