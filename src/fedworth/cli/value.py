"""fedworth value: from utilities to what each client is worth."""

import argparse
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from fedworth.cli.options import (
    add_completion_options,
    add_seed_option,
    add_unseen_option,
    chosen_settings,
    command,
)
from fedworth.cli.report import show_report
from fedworth.cli.show import show_json, show_lines, show_table, warn
from fedworth.errors import UsageError
from fedworth.names import CHOICES, MethodName, checked_name

if TYPE_CHECKING:
    from typing import Any

    from fedworth.completion.completion import Completion
    from fedworth.games.matrix import UtilityMatrix
    from fedworth.valuation.valuation import Valuation


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """The command and its options."""
    parser = command(
        subparsers,
        "value",
        "Value the clients from utilities: measured by observe, or your own.",
        "fedworth value utilities.npz --method comfedsv,fedsv --out values",
        run,
    )
    parser.add_argument("utilities", type=Path, help="utilities from observe, or your own (.npz)")
    methods = f"{', '.join(CHOICES['method'])} (default comfedsv); several: a,b or repeated"
    parser.add_argument("--method", action="append", type=_methods, metavar="NAME", help=methods)
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="write a page, CSV, JSON and Markdown there")
    parser.add_argument(
        "--completion",
        default="factors",
        metavar="FILE",
        help="what ComFedSV rests on: a completion from complete, or factors (default), made now",
    )
    add_unseen_option(parser)
    parser.add_argument("--strict", action="store_true", help="refuse if a client was never heard")
    add_completion_options(parser)
    add_seed_option(parser)


def run(args: argparse.Namespace) -> None:
    """Value, write what is asked for, and show it."""
    from fedworth.completion.factors import FactorSettings
    from fedworth.games.matrix_file import load_utilities
    from fedworth.pipeline.compare import compare
    from fedworth.pipeline.stages import ValuingSettings, reported
    from fedworth.valuation.value import COMPLETED, value

    methods = list(dict.fromkeys(method for several in args.method or [["comfedsv"]] for method in several))
    matrix = load_utilities(args.utilities, is_truth="truth" in methods)
    completion, settings = None, FactorSettings()
    notes: tuple[str, ...] = ()
    if set(methods) & set(COMPLETED):
        is_made_now = args.completion == "factors"
        completion = None if is_made_now else _completion(args.completion)
        settings, notes = chosen_settings(args, _seen(matrix)) if is_made_now else (settings, ())
    if len(methods) == 1 and args.out is None:
        how = {"completion": completion, "settings": settings, "unseen": args.unseen, "strict": args.strict}
        _show_one(reported(value(matrix, methods[0], **how)), args, notes)
        return
    valuing = ValuingSettings(factors=settings, unseen=args.unseen, strict=args.strict)
    made = compare(matrix, methods, completion=completion, settings=valuing, title=args.utilities.name)
    report = replace(made, notes=(*made.notes, *notes))
    show_report(report, [] if args.out is None else report.write(args.out), as_json=args.json)


def _methods(text: str) -> list[MethodName]:
    """Methods with commas between them."""
    return [checked_name("method", method) for method in text.split(",") if method]


def _seen(matrix: "UtilityMatrix") -> "UtilityMatrix":
    """What the server could have seen: a completion is not chosen by the truth."""
    return matrix.seen_part() if matrix.is_truth else matrix


def _show_one(made: "Valuation", args: argparse.Namespace, notes: tuple[str, ...]) -> None:
    from fedworth.report.report import Report
    from fedworth.report.tables import values_table

    if args.json:
        show_json(_document(made, notes))
        return
    show_table(values_table(Report(str(args.utilities), made.clients, (made,))))
    show_lines([f"{made.method}: {made.description}"])
    if made.completion is not None:
        show_lines([f"completion: {made.completion.get('status', made.completion['kind'])}"])
    warn([*notes, *made.notes])


def _document(made: "Valuation", notes: tuple[str, ...]) -> "dict[str, Any]":
    """The valuation as JSON, with all that the table shows of it."""

    return {**made.document(), "notes": [*notes, *made.notes]}


def _completion(text: str) -> "Completion":
    """The completion of this name, or in the file of this name; one by models needs the ledger."""
    from fedworth.completion.completion_file import load_completion

    if text in CHOICES["completion"]:
        raise UsageError(
            f"--completion {text}: needs the ledger; make one with fedworth complete --ledger LEDGER --completion "
            f"{text}, and name its file here"
        )
    return load_completion(Path(text))
