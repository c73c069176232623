"""fedworth check: are the values of this federation sound?"""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from fedworth.cli.options import add_data_option, add_seed_option, command
from fedworth.cli.show import progress_bars, show_json, show_lines
from fedworth.cli.valuing import add_valuing_options, valuing_settings

if TYPE_CHECKING:
    from fedworth.pipeline.checking import Check


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """The command and its options."""
    parser = command(
        subparsers,
        "check",
        "Try on a federation of up to 11 clients what must hold of its values: copies, idle clients, hidden answers.",
        "fedworth check my.ledger --task mytask.py:task",
        run,
    )
    parser.add_argument("ledger", type=Path, help="a ledger, or the folder of a run")
    parser.add_argument("--task", metavar="FILE:NAME", help="model and test set, such as mytask.py:task")
    add_valuing_options(parser)
    parser.set_defaults(without=[])  # a check is of the whole federation
    add_data_option(parser)
    add_seed_option(parser)


def run(args: argparse.Namespace) -> None:
    """Check, and show one page."""
    settings = valuing_settings(args)
    from fedworth.ledger.ledger import open_ledger
    from fedworth.pipeline.checking import check_values
    from fedworth.simulation.simulate import task_for

    folder = args.ledger / "ledger"
    ledger = open_ledger(folder if folder.is_dir() else args.ledger)
    task = task_for(ledger, args.task, data_folder=args.data)
    with progress_bars() as progress:
        made = check_values(ledger, task, settings, progress=progress)
    if args.json:
        show_json(made.document())
    else:
        show_lines(page_of(made))


def page_of(check: "Check") -> list[str]:
    """The check as a page of text."""
    lines = [check.title, "", check.sentence]
    lines += [] if check.trust is None else [check.trust.sentence]
    for test in check.tests:
        lines += ["", f"{test.name}: {test.verdict}", f"    {test.found}."]
    lines += ["", "findings:" if check.findings else "findings: none"]
    return [*lines, *(f"    {found.sentence}" for found in check.findings)]
