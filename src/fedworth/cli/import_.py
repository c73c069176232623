"""fedworth import: make a ledger of models that were kept in files."""

import argparse
from pathlib import Path

from fedworth.cli.options import command, name
from fedworth.cli.show import progress_bars, show_json, show_lines, warn


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """The command and its options."""
    parser = command(
        subparsers,
        "import",
        "Make a ledger of a folder of models (safetensors, .pt, .npz), a subfolder a round.",
        "fedworth import models --out my.ledger",
        run,
    )
    parser.add_argument("folder", type=Path, help="subfolders a round, with global.safetensors and one file a client")
    parser.add_argument("--out", type=Path, required=True, metavar="LEDGER", help="the ledger to write")
    parser.add_argument(
        "--aggregation",
        type=name("aggregation"),
        default="samples",
        help="how the server averaged: samples (default), uniform",
    )


def run(args: argparse.Namespace) -> None:
    """Import, and say what was found."""
    from fedworth.recording.importing import import_folder

    with progress_bars() as progress:
        ledger = import_folder(args.folder, args.out, aggregation=args.aggregation, progress=progress)
    if args.json:
        warnings = list(ledger.warnings())
        found = {"n_rounds": ledger.n_rounds, "clients": list(ledger.clients), "warnings": warnings}
        show_json({"ledger": str(args.out), **found})
        return
    show_lines(
        [
            f"{args.out}: {ledger.n_rounds} rounds of {len(ledger.clients)} clients",
            f"next: fedworth observe {args.out} --task mytask.py:task --out utilities.npz",
        ]
    )
    warn(ledger.warnings())
