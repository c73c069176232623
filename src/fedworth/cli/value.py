"""fedworth value: from utilities to what each client is worth."""

import argparse
from pathlib import Path

from fedworth.cli.options import (
    add_completion_options,
    add_seed_option,
    add_unseen_option,
    chosen_settings,
    command,
    name,
)
from fedworth.cli.show import show_json, show_lines, show_table, warn
from fedworth.errors import UsageError
from fedworth.names import CHOICES


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """The command and its options."""
    parser = command(
        subparsers,
        "value",
        "Value the clients from utilities: measured by observe, or your own.",
        "fedworth value utilities.npz --method comfedsv --json",
        run,
    )
    parser.add_argument("utilities", type=Path, help="utilities from observe, or your own (.npz)")
    methods = f"{', '.join(CHOICES['method'])} (default comfedsv)"
    parser.add_argument("--method", type=name("method"), default="comfedsv", help=methods)
    parser.add_argument(
        "--completion",
        default="factors",
        metavar="FILE",
        help="what ComFedSV rests on: a completion from complete, or factors, made now (default)",
    )
    add_unseen_option(parser)
    parser.add_argument("--strict", action="store_true", help="refuse if a client was never heard")
    add_completion_options(parser)
    add_seed_option(parser)


def run(args: argparse.Namespace) -> None:
    """Value, and show it."""
    from fedworth.completion.complete import FactorSettings
    from fedworth.completion.completion_file import load_completion
    from fedworth.report.report import Report
    from fedworth.report.tables import values_table
    from fedworth.utility.matrix_file import load_utilities
    from fedworth.valuation.valuation import BASES
    from fedworth.valuation.value import COMPLETED, value

    matrix = load_utilities(args.utilities, is_truth=args.method == "truth")
    completion, settings = None, FactorSettings()
    notes: tuple[str, ...] = ()
    if args.method in COMPLETED and args.completion != "factors":
        completion = load_completion(_file(args.completion))
    elif args.method in COMPLETED:
        settings, notes = chosen_settings(args, matrix)
    made = value(matrix, args.method, completion=completion, settings=settings, unseen=args.unseen, strict=args.strict)
    if args.json:
        document = made.document()
        show_json({**document, "warnings": [*notes, *document["warnings"]]})
        return
    show_table(values_table(Report(str(args.utilities), made.clients, (made,))))
    show_lines([f"{made.method}: {BASES[made.method]}"])
    if made.completion is not None:
        show_lines([f"completion: {made.completion.get('status', made.completion['kind'])}"])
    if made.uncertainty is not None:
        show_lines([made.uncertainty.sentence])
    warn([*notes, *made.warnings])


def _file(text: str) -> Path:
    """The file of a completion; only factors are made here, without a ledger."""
    if text in CHOICES["completion"]:
        raise UsageError(
            f"--completion {text}: needs the ledger; make one with fedworth complete --ledger LEDGER --completion "
            f"{text}, and name its file here"
        )
    return Path(text)
