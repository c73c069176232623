"""fedworth complete: fill the unseen cells."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from fedworth.cli.options import (
    add_as_average_option,
    add_completion_options,
    add_data_option,
    add_seed_option,
    check_factors,
    chosen_settings,
    command,
    name,
)
from fedworth.cli.show import progress_bars, show_json, show_lines, show_table, warn
from fedworth.cli.valuing import DEFAULT_WEIGHTING
from fedworth.errors import UsageError
from fedworth.names import CHOICES, DEFAULT_COMPLETION

if TYPE_CHECKING:
    from typing import Any

    from fedworth.completion.completion import Completion
    from fedworth.games.matrix import UtilityMatrix

HOLDS_OUT = "--held-out is for factors; a completion by models always holds something out"


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """The command and its options."""
    parser = command(
        subparsers,
        "complete",
        "Estimate the utilities that no round has shown, with evidence of fit.",
        "fedworth complete utilities.npz --ledger ledger --out completion.npz",
        run,
    )
    parser.add_argument("utilities", type=Path, help="utilities from observe, or your own (.npz)")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="the completion to write (.npz)")
    parser.add_argument("--ledger", type=Path, help="the ledger that the utilities are of, whose models say more")
    parser.add_argument("--task", metavar="FILE:NAME", help="model and test set, such as mytask.py:task")
    parser.add_argument(
        "--completion",
        type=name("completion"),
        metavar="KIND",
        help=f"{', '.join(CHOICES['completion'])} (default: {DEFAULT_COMPLETION} with --ledger, factors without)",
    )
    parser.add_argument(
        "--weighting",
        type=name("weighting"),
        help=f"uniform, samples, fixed, as in observe {DEFAULT_WEIGHTING}",
    )
    parser.add_argument("--measure", default="loss", help="loss (default) or accuracy, as in observe")
    parser.add_argument("--oracle", type=name("oracle"), default="fast", help="fast (default), or loop: plain and slow")
    add_as_average_option(parser)
    parser.add_argument("--held-out", action="store_true", help="also measure the error on seen cells that were hidden")
    add_data_option(parser)
    add_completion_options(parser)
    add_seed_option(parser)


def run(args: argparse.Namespace) -> None:
    """Complete, and say how good the completion is known to be."""
    kind = args.completion or ("factors" if args.ledger is None else DEFAULT_COMPLETION)
    if kind == "models" and args.ledger is None:
        raise UsageError(
            f"--completion {kind}: expected --ledger beside it; from utilities alone only factors can be made"
        )
    if args.held_out and kind != "factors":
        raise UsageError(HOLDS_OUT)
    if kind == "factors":
        check_factors(args)
    from fedworth.completion.completion_file import save_completion
    from fedworth.completion.coverage import coverage
    from fedworth.games.matrix_file import load_utilities
    from fedworth.report.tables import completion_table
    from fedworth.storage import refuse_no_place

    refuse_no_place(args.out, "a completion")
    matrix = load_utilities(args.utilities)
    made, summary, notes = {"factors": _by_factors, "models": _by_models}[kind](args, matrix)
    notes = (*notes, *map(str, made.doubts()))
    save_completion(made, args.out)
    seen = coverage(matrix)
    if args.json:
        show_json({"completion": str(args.out), **summary, "coverage": seen.document(), "notes": list(notes)})
        return
    warn(notes)
    show_table(completion_table(summary))
    share = seen.n_columns_seen_once / max(seen.n_columns, 1)
    once = ", whose estimates are that round rescaled" if kind == "factors" else ""
    show_lines(
        [
            f"{args.out}: {seen.share_seen:.1%} of {seen.n_columns:,} × {matrix.n_rounds} cells seen; {share:.0%} "
            f"of the coalitions in one round only{once}"
        ]
    )


def _by_factors(
    args: argparse.Namespace, matrix: "UtilityMatrix"
) -> "tuple[Completion, dict[str, Any], tuple[str, ...]]":
    from fedworth.arrays import stream
    from fedworth.completion.factors import complete, held_out_error, with_errors

    settings, notes = chosen_settings(args, matrix)
    made = with_errors(matrix, complete(matrix, settings))
    summary = made.summary()
    if args.held_out:
        summary["held_out_error"] = held_out_error(matrix, settings, rng=stream(args.seed, "cross-validation"))
    return made, summary, notes


def _by_models(
    args: argparse.Namespace, matrix: "UtilityMatrix"
) -> "tuple[Completion, dict[str, Any], tuple[str, ...]]":
    from fedworth.completion.models import complete_by_models
    from fedworth.ledger.ledger import open_ledger
    from fedworth.oracle.choices import oracle_named
    from fedworth.simulation.simulate import task_for

    ledger = open_ledger(args.ledger).without(matrix.left_out)
    oracle = oracle_named(args.oracle, task_for(ledger, args.task, data_folder=args.data), args.measure)
    with progress_bars() as progress:
        made = complete_by_models(
            ledger, oracle, matrix, weighting=args.weighting, as_average=args.as_average, progress=progress
        )
    return made, made.summary(), ()
