"""Options that say how a page calls things."""

import argparse
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fedworth.report.page import PageSettings


def add_page_options(parser: argparse.ArgumentParser, *, with_rewards: bool = True) -> None:
    """Title, nouns, date, and whether rewards are shown."""
    group = parser.add_argument_group("page")
    group.add_argument("--title", metavar="TEXT", help="the title of the page (default: the report's)")
    group.add_argument(
        "--noun",
        nargs=2,
        default=("client", "clients"),
        metavar=("ONE", "MANY"),
        help="what a client is called, as in  --noun hospital hospitals",
    )
    group.add_argument("--date", default="", metavar="TEXT", help="a date to print; none is taken from the clock")
    if with_rewards:
        group.add_argument(
            "--rewards", action="store_true", help="show what `fedworth rewards` left in the run's folder"
        )


def page_settings(args: argparse.Namespace, *, command: str = "") -> "PageSettings":
    """The settings that the options ask for."""
    from fedworth.report.page import PageSettings

    return PageSettings(args.title, args.noun[0], args.noun[1], args.date, command)
