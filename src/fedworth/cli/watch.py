"""fedworth watch: value a federation while it still trains."""

import argparse
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from fedworth.cli.options import add_data_option, add_seed_option, command, is_auto, real
from fedworth.cli.show import show_findings, show_json, show_lines, show_table, warn
from fedworth.cli.valuing import add_valuing_options, add_without_option, valuing_settings
from fedworth.errors import UsageError

if TYPE_CHECKING:
    from fedworth.ledger.ledger import Ledger
    from fedworth.report.report import Report

LONGEST = 86_400.0  # seconds between two looks
CLEAR = "\x1b[2J\x1b[H"


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """The command and its options."""
    parser = command(
        subparsers,
        "watch",
        "Value a federation while it still trains: the table changes after each round, until the ledger is closed.",
        "fedworth watch my.ledger --task mytask.py:task",
        run,
    )
    parser.add_argument("ledger", type=Path, help="the ledger that a recorder is writing; it may not be there yet")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="where cells and values go (default: LEDGER.watch)")
    parser.add_argument("--task", metavar="FILE:NAME", help="model and test set, such as mytask.py:task")
    parser.add_argument("--every", type=real, default=1.0, metavar="SECONDS", help="how often to look (default 1)")
    parser.add_argument("--once", action="store_true", help="value what is there and stop")
    add_valuing_options(parser)
    add_without_option(parser)
    add_data_option(parser)
    add_seed_option(parser)


def run(args: argparse.Namespace) -> None:
    """Watch until the ledger is closed."""
    if is_auto(args):
        raise UsageError("--rank auto would choose anew after each round; give watch a rank")
    if not 0 <= args.every <= LONGEST:
        raise UsageError(f"--every {args.every}: expected from 0 to {LONGEST:g} seconds")
    settings, place = valuing_settings(args), args.ledger if args.ledger.name else args.ledger.resolve()
    if not place.name:
        raise UsageError(f"{args.ledger}: expected the folder of a ledger")
    from fedworth.pipeline.watch import update
    from fedworth.simulation.simulate import task_for

    folder = args.out or place.with_name(place.name + ".watch")
    task, n_checked = None, 0
    for ledger in _growing(args.ledger, args.every, once=args.once):
        if task is None:
            task = task_for(ledger, args.task, data_folder=args.data)
        _show(update(ledger, task, settings, folder, n_checked=n_checked), as_json=args.json)
        n_checked = ledger.n_rounds


def _growing(folder: Path, seconds: float, *, once: bool) -> Iterator["Ledger"]:
    """The ledger each time that it has grown, until it is closed; whether somebody still writes it is said."""
    from fedworth.ledger.ledger import open_ledger
    from fedworth.ledger.lock import recorder_gone
    from fedworth.ledger.manifest import is_ledger

    chain, gone = None, None
    while True:
        ledger = open_ledger(folder) if once or is_ledger(folder) else None
        if ledger is not None and ledger.chain != chain and (ledger.n_rounds or once):
            chain = ledger.chain
            yield ledger
        if once or (ledger is not None and ledger.is_closed):
            return
        if ledger is not None and recorder_gone(folder) != gone:
            gone = recorder_gone(folder)
            warn([f"{folder}: {_recorder_said(gone)}"])
        time.sleep(seconds)


def _recorder_said(gone: str | None) -> str:
    if gone is None:
        return "a recorder writes it again"
    return f"not closed, and nobody is writing it: {gone}; no round will come until one goes on with it (resume=True)"


def _show(report: "Report", *, as_json: bool) -> None:
    from fedworth.report.tables import values_table

    if as_json:
        show_json(report.document())
        return
    if sys.stdout.isatty():
        show_lines([CLEAR])
    show_lines([report.title])
    if report.valuations:
        show_table(values_table(report))
    show_findings(report.all_findings)
    warn(report.warnings())
