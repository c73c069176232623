"""fedworth run: all stages in one go."""

import argparse
from pathlib import Path

from fedworth.cli.options import (
    add_completion_options,
    add_permutations_option,
    command,
    factor_settings,
    is_auto,
    permutations_of,
)
from fedworth.cli.report import show_report
from fedworth.cli.show import progress_bars
from fedworth.cli.simulate import add_simulation_options, simulation_settings


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """The command and its options."""
    parser = command(
        subparsers,
        "run",
        "Simulate a federation, observe, complete, value and report; resumable by stage.",
        "fedworth run --out runs/demo",
        run,
    )
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER", help="the folder of the run")
    parser.add_argument(
        "--resume", action="store_true", help="go on with a run that was killed, or show a finished one"
    )
    parser.add_argument("--weighting", default="uniform", help="uniform (default), samples, fixed")
    parser.add_argument("--measure", default="loss", help="loss (default) or accuracy")
    parser.add_argument("--oracle", default="fast", help="fast (default), or loop: plain and slow")
    parser.add_argument(
        "--device",
        default="cpu",
        help="where coalitions are evaluated: cpu (default), cuda, cuda:1 …; training stays on the CPU",
    )
    parser.add_argument("--unseen", default="refuse", help="coalitions never seen: refuse (default), or count as zero")
    parser.add_argument("--strict", action="store_true", help="stop at the first method that must be refused")
    add_permutations_option(parser)
    add_completion_options(parser)
    add_simulation_options(parser)


def run(args: argparse.Namespace) -> None:
    """Run all stages, and show the report."""
    from fedworth.pipeline.run import RunSettings, run

    monte_carlo, count = permutations_of(args)
    settings = RunSettings(
        simulation=simulation_settings(args),
        weighting=args.weighting,
        measure=args.measure,
        oracle=args.oracle,
        n_permutations=count,
        monte_carlo=monte_carlo,
        sampler=args.sampler,
        completion=factor_settings(args),
        auto_rank=is_auto(args),
        unseen=args.unseen,
        strict=args.strict,
        device=args.device,
    )
    with progress_bars() as progress:
        report = run(settings, args.out, data_folder=args.data, resume=args.resume, progress=progress)
    show_report(report, sorted(path for path in args.out.iterdir()), as_json=args.json)
