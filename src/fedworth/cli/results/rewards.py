"""fedworth rewards: a pool of money, split by value."""

import argparse
from pathlib import Path

from fedworth.cli.options import command, name, real
from fedworth.cli.show import show_json, show_lines, show_table, warn
from fedworth.names import CHOICES


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """The command and its options."""
    parser = command(
        subparsers,
        "rewards",
        "Split a pool of money by value, exact to the cent.",
        "fedworth rewards runs/demo --pool 100000 --rule floor --floor 0.1 --unit EUR",
        run,
    )
    parser.add_argument("run", type=Path, help="the folder of a run, or of a report")
    parser.add_argument("--pool", required=True, metavar="AMOUNT", help="what is to be split, at most two decimals")
    parser.add_argument(
        "--rule",
        type=name("rule"),
        default="positive",
        help=f"{', '.join(CHOICES['rule'])} (default positive); see docs/rewards.md",
    )
    parser.add_argument("--floor", type=real, default=0.2, metavar="PART", help="floor: for taking part (default 0.2)")
    parser.add_argument(
        "--temperature", type=real, default=1.0, metavar="τ", help="softmax: the larger, the more equal (default 1)"
    )
    parser.add_argument("--unit", default="", metavar="TEXT", help="what stands behind an amount, such as EUR")
    parser.add_argument("--method", help="the values to pay by (default: those that the page shows)")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="where to write (default: the run's folder)")


def run(args: argparse.Namespace) -> None:
    """Split, write, show."""
    from fedworth.report.report import Report
    from fedworth.report.rewards import RewardSettings, rewards
    from fedworth.report.tables import Table

    report = Report.read(args.run / "report.json")
    settings = RewardSettings(args.rule, args.floor, args.temperature)
    made = rewards(
        report.chosen if args.method is None else report.valued_by(args.method), args.pool, settings, unit=args.unit
    )
    paths = made.write(args.out or args.run)
    if args.json:
        show_json({**made.document(), "files": [str(path) for path in paths]})
        return
    rows = tuple((client, made.amount(client)) for client in made.clients)
    words = f"reward: {made.sentence} (rule {made.rule})"
    show_table(Table(f"Rewards from {made.pool}, by {made.method}", ("client", "reward"), rows, words=words))
    show_lines(["written: " + ", ".join(str(path) for path in paths)])
    warn(made.notes)
