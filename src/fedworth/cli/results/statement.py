"""fedworth statement: what a data owner can be sent."""

import argparse
from pathlib import Path

from fedworth.cli.options import command
from fedworth.cli.results.page_options import add_page_options, page_settings
from fedworth.cli.show import show_json, show_lines
from fedworth.errors import UsageError


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """The command and its options."""
    parser = command(
        subparsers,
        "statement",
        "Write a page that one client can be sent: its own value, and nothing of any other client.",
        "fedworth statement runs/demo --all --out statements",
        run,
    )
    parser.add_argument("run", type=Path, help="the folder of a run, or of a report")
    parser.add_argument("client", nargs="?", help="the client's name")
    parser.add_argument("--all", action="store_true", help="a statement for every client")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="where to write (default: RUN/statements)")
    add_page_options(parser)


def run(args: argparse.Namespace) -> None:
    """Write the statements, and say where they are."""
    if (args.client is None) != args.all:
        raise UsageError("name one client, or all of them with --all")
    from fedworth.report.report import Report
    from fedworth.report.rewards import Rewards

    report = Report.read(args.run / "report.json")
    rewards = Rewards.read(args.run) if args.rewards else None
    folder, settings = args.out or args.run / "statements", page_settings(args)
    wanted = report.clients if args.all else (args.client,)
    paths = {client: report.write_statement(client, folder, settings, rewards=rewards) for client in wanted}
    if args.json:
        show_json({client: str(path) for client, path in paths.items()})
        return
    show_lines([f"written: {path}" for path in paths.values()])
