"""fedworth run: all stages in one go."""

import argparse
from pathlib import Path

from fedworth.cli.options import command
from fedworth.cli.report import show_report
from fedworth.cli.show import progress_bars
from fedworth.cli.simulate import add_simulation_options, simulation_settings
from fedworth.cli.valuing import add_valuing_options, add_without_option, valuing_settings


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
    parser.add_argument(
        "--device",
        default="cpu",
        help="where coalitions are evaluated: cpu (default), cuda, cuda:1 …; training stays on the CPU",
    )
    add_valuing_options(parser)
    add_without_option(parser)
    add_simulation_options(parser)


def run(args: argparse.Namespace) -> None:
    """Run all stages, and show the report."""
    simulation, valuing = simulation_settings(args), valuing_settings(args)
    from fedworth.pipeline.run import RunSettings, run

    settings = RunSettings(simulation, valuing, args.device)
    with progress_bars() as progress:
        report = run(settings, args.out, data_folder=args.data, resume=args.resume, progress=progress)
    show_report(report, sorted(path for path in args.out.iterdir()), as_json=args.json)
