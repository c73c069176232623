"""fedworth report: from a ledger, or from a run, to a page and tables."""

import argparse
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from fedworth.cli.options import add_data_option, add_seed_option, command
from fedworth.cli.results.page_options import add_page_options, page_settings
from fedworth.cli.show import progress_bars, show_findings, show_json, show_lines, show_table, warn
from fedworth.cli.valuing import add_valuing_options, add_without_option, check_valuing, valuing_settings
from fedworth.errors import ArtefactError, UsageError

if TYPE_CHECKING:
    from fedworth.report.report import Report


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """The command and its options."""
    parser = command(
        subparsers,
        "report",
        "Value a ledger and write a page, CSV, JSON and Markdown; of a run, write them again.",
        "fedworth report my.ledger --task mytask.py:task",
        run,
    )
    parser.add_argument("of", type=Path, metavar="LEDGER|RUN", help="a ledger, or the folder of a run or a report")
    parser.add_argument("--task", metavar="FILE:NAME", help="of a ledger: model and test set, such as mytask.py:task")
    parser.add_argument(
        "--out", type=Path, metavar="FOLDER", help="where to write (default: LEDGER.report, or the run's folder)"
    )
    add_page_options(parser)
    add_valuing_options(parser)
    add_without_option(parser)
    add_data_option(parser)
    add_seed_option(parser)


def run(args: argparse.Namespace) -> None:
    """Make or read the report, write its files, show it."""
    check_valuing(args)
    from fedworth.ledger.manifest import is_ledger
    from fedworth.report.files import read_rewards, write_report

    is_new = is_ledger(args.of)
    folder = args.out or (args.of.with_name(args.of.name + ".report") if is_new else args.of)
    report = _of_ledger(args, folder) if is_new else _of_run(args)
    rewards = read_rewards(folder if is_new else args.of) if args.rewards else None
    line = shlex.join(["fedworth", *args.line]) if is_new else ""
    paths = write_report(report, folder, page_settings(args, command=line), rewards=rewards)
    show_report(report, paths, as_json=args.json)


def _of_ledger(args: argparse.Namespace, folder: Path) -> "Report":
    from fedworth.ledger.ledger import open_ledger
    from fedworth.pipeline.report_on import report_on
    from fedworth.simulation.simulate import task_for

    ledger = open_ledger(args.of)
    settings, task = valuing_settings(args), task_for(ledger, args.task, data_folder=args.data)
    with progress_bars() as progress:
        return report_on(ledger, task, settings, folder, progress=progress)


def _of_run(args: argparse.Namespace) -> "Report":
    from fedworth.pipeline.stages import ValuingSettings
    from fedworth.report.files import read_report

    path = args.of / "report.json"
    if not path.is_file():
        raise ArtefactError(f"{args.of}: neither a ledger nor the folder of a run: no report.json is in it")
    if args.task is not None:
        raise UsageError(f"--task: {args.of} is the folder of a run, whose values are made; name its ledger instead")
    if valuing_settings(args) != ValuingSettings():
        raise UsageError(
            f"{args.of}: the folder of a run, whose values are made; to value its federation otherwise name its ledger "
            f"(of a simulated run {args.of / 'ledger'})"
        )
    return read_report(path)


def show_report(report: "Report", paths: list[Path], *, as_json: bool) -> None:
    """A report on the screen, and where its files are."""
    from fedworth.report.tables import headlines, tables

    if as_json:
        show_json({**report.document(), "files": [str(path) for path in paths]})
        return
    for table in tables(report):
        show_table(table)
    show_lines([*headlines(report), ""] if report.copies else [])
    show_findings(report.all_findings)
    show_lines(["written: " + ", ".join(str(path) for path in paths)] if paths else [])
    warn(report.warnings())
