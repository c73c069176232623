"""fedworth complete: fill the unseen cells."""

import argparse
from pathlib import Path

from fedworth.arrays import stream
from fedworth.cli.options import add_completion_options, add_seed_option, chosen_settings, command
from fedworth.cli.show import show_json, show_lines, show_table, warn
from fedworth.completion.complete import complete
from fedworth.completion.completion import save_completion
from fedworth.completion.coverage import coverage
from fedworth.completion.crossvalidation import held_out_error
from fedworth.report.tables import completion_table
from fedworth.storage import refuse_existing
from fedworth.utility.matrix_file import load_utilities


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """The command and its options."""
    parser = command(
        subparsers,
        "complete",
        "Estimate the utilities that no round has shown, with evidence of fit.",
        "fedworth complete utilities.npz --out completion.npz --rank 5 --relative-penalty 0.01",
        run,
    )
    parser.add_argument("utilities", type=Path, help="utilities from observe, or your own (.npz)")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="the completion to write (.npz)")
    parser.add_argument("--held-out", action="store_true", help="also measure the error on seen cells that were hidden")
    add_completion_options(parser)
    add_seed_option(parser)


def run(args: argparse.Namespace) -> None:
    """Complete, and say how good the completion is known to be."""
    refuse_existing(args.out, "a completion")
    matrix = load_utilities(args.utilities)
    settings, notes = chosen_settings(args, matrix)
    completion = complete(matrix, settings)
    save_completion(completion, args.out)
    seen = coverage(matrix)
    summary = completion.summary()
    if args.held_out:
        summary["held_out_error"] = held_out_error(matrix, settings, rng=stream(args.seed, "cross-validation"))
    if args.json:
        show_json({"completion": str(args.out), **summary, "coverage": seen.document(), "notes": list(notes)})
        return
    warn(notes)
    show_table(completion_table(summary))
    share = seen.n_columns_seen_once / max(seen.n_columns, 1)
    show_lines(
        [
            f"{args.out}: {seen.share_seen:.1%} of {seen.n_columns:,} × {matrix.n_rounds} cells seen; {share:.0%} "
            "of the coalitions in one round only, whose estimates are that round rescaled"
        ]
    )
