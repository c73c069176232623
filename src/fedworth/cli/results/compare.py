"""fedworth compare: several reports on the same clients side by side, or every measure on one ledger."""

import argparse
from pathlib import Path

from fedworth.cli.options import add_data_option, add_seed_option, command
from fedworth.cli.results.page_options import add_page_options, page_settings
from fedworth.cli.show import show_json, show_lines, show_table
from fedworth.cli.valuing import add_measuring_options, add_without_option
from fedworth.names import COMPARED


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """The command and its options."""
    parser = command(
        subparsers,
        "compare",
        "Compare reports on the same clients: across seeds, methods or weeks; or measures on one ledger.",
        "fedworth compare runs/monday runs/friday --out compared",
        run,
    )
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUN", help="folders of runs, or of reports")
    parser.add_argument("--method", action="append", default=[], help="compare these values (repeatable)")
    parser.add_argument(
        "--methods",
        metavar="NAMES",
        help="value one RUN or ledger by several measures, and show what each costs and how far from the truth it is: "
        f"{', '.join(COMPARED)} (commas between); or all, which leaves out retraining",
    )
    parser.add_argument("--task", metavar="FILE:NAME", help="with --methods: model and test set of a recorded ledger")
    add_data_option(parser)
    add_measuring_options(parser)
    add_without_option(parser)
    add_seed_option(parser)
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="write compare.html, .json and .csv there")
    add_page_options(parser, with_rewards=False)


def run(args: argparse.Namespace) -> None:
    """Compare, write, show."""
    if args.methods is not None:
        from fedworth.cli.results.measures import compare_on_ledger

        compare_on_ledger(args)
        return
    from fedworth.report.comparison import Comparison
    from fedworth.report.report import Report

    reports = [Report.read(folder / "report.json") for folder in args.runs]
    made = Comparison.of(reports, [str(folder) for folder in args.runs], methods=args.method)
    paths = [] if args.out is None else made.write(args.out, page_settings(args))
    if args.json:
        show_json({**made.document(), "files": [str(path) for path in paths]})
        return
    show_table(made.table())
    show_lines(["", *(f"({number}) {name}" for number, name in enumerate(made.names, start=1)), ""])
    for pair in made.pairs:
        correlation = "–" if pair.correlation is None else f"{pair.correlation:.2f}"
        show_lines(
            [f"{pair.first} and {pair.second}: rank correlation {correlation}, clear differences: {pair.sentence}"]
        )
    show_lines([f"written: {path}" for path in paths])
