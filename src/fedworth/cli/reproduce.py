"""fedworth reproduce: the paper's studies, each with its numbers, its picture and a verdict."""

import argparse
from pathlib import Path

from fedworth.cli.options import add_data_option, command, whole
from fedworth.cli.show import progress_bars, show_json, show_lines, show_table
from fedworth.errors import UsageError
from fedworth.names import checked_name


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """The command and its options."""
    parser = command(
        subparsers,
        "reproduce",
        "Run a study of the paper, or one of fedworth's own: numbers, picture, what held; resumable by trial.",
        "fedworth reproduce fairness --dataset mnist --scale quick --seeds 0-9",
        run,
    )
    parser.add_argument(
        "study",
        help="regime, unfairness, fairness, noisy-data, noisy-labels, spectrum, rank, models, time, sensitivity, "
        "fidelity, measures, findings; all",
    )
    parser.add_argument(
        "--dataset", action="append", default=[], metavar="NAME", help="only this setup of the study (repeatable)"
    )
    parser.add_argument(
        "--scale", default="quick", help="quick (default: a quarter of an hour), page (as docs/results.md), paper"
    )
    parser.add_argument("--seeds", metavar="A-B|A,B", help="the seeds to run (default: those of the scale)")
    parser.add_argument(
        "--as-far-as-run", action="store_true", help="run nothing: write down what the folder has of the study"
    )
    parser.add_argument("--jobs", type=whole, metavar="N", help="trials side by side (default: one a processor)")
    parser.add_argument(
        "--device",
        default="cpu",
        help="where coalitions are evaluated: cpu (default), cuda, cuda:1 …; training stays on the CPU",
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("runs/studies"),
        metavar="FOLDER",
        help="default runs/studies; resumed if there",
    )
    add_data_option(parser)


def run(args: argparse.Namespace) -> None:
    """Run the studies, and show what they found."""
    if args.jobs is not None and args.jobs < 1:
        raise UsageError(f"--jobs {args.jobs}: expected 1 or more")
    from fedworth.oracle.choices import device_named
    from fedworth.oracle.fast import n_processors
    from fedworth.report.tables import Table
    from fedworth.studies.reproduce import PAGES, Request, reproduce, requests_for
    from fedworth.studies.trials.settings import seeds_from
    from fedworth.studies.trials.trial import Bench

    seeds = seeds_from(args.seeds) if args.seeds else ()
    device_named(args.device)
    request = Request(checked_name("scale", args.scale), tuple(args.dataset), seeds, args.as_far_as_run)
    outcomes = []
    with progress_bars() as progress:
        bench = Bench(args.out, args.data, progress, n_jobs=args.jobs or n_processors(), device=args.device)
        for name, asked in requests_for(args.study, request).items():
            outcomes.append(reproduce(name, asked, bench))
    if args.json:
        show_json([outcome.document() for outcome in outcomes])
        return
    for outcome in outcomes:
        show_table(Table(outcome.title, outcome.shown, outcome.lines))
        show_lines([outcome.sentence(), ""])
    pages = dict.fromkeys(PAGES.get(outcome.study, "results.md") for outcome in outcomes)
    show_lines([f"written: {args.out / page}" for page in pages])
