"""fedworth interactions: who is redundant with whom, and who complements whom."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fedworth.cli.options import command
from fedworth.cli.show import show_json, show_table
from fedworth.errors import ArtefactError

if TYPE_CHECKING:
    from fedworth.pipeline.interactions import Interaction
    from fedworth.report.tables import Table

SHOWN = 10
LEGEND = (
    "index: what two clients add together beyond what they add apart; below 0 they are redundant, as copies are; "
    "above 0 each is worth more with the other there"
)


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """The command and its options."""
    parser = command(
        subparsers,
        "interactions",
        "Pairs of clients: who is redundant with whom, and who complements whom.",
        "fedworth interactions runs/demo",
        run,
    )
    parser.add_argument("run", type=Path, help="the folder of a run, or a completion (.npz)")


def run(args: argparse.Namespace) -> None:
    """Show the pairs that stand out, or all of them as JSON."""
    from fedworth.completion.completion_file import load_completion
    from fedworth.pipeline.interactions import interactions_of

    pairs = interactions_of(load_completion(_completion_in(args.run)))
    if args.json:
        show_json({"pairs": [pair.document() for pair in pairs]})
        return
    show_table(pairs_table(pairs))


def pairs_table(pairs: "Sequence[Interaction]") -> "Table":
    """The most redundant pairs and the most complementary ones."""
    from fedworth.report.tables import Table

    shown = pairs if len(pairs) <= 2 * SHOWN else (*pairs[:SHOWN], *pairs[-SHOWN:])
    rows = tuple((pair.first, pair.second, f"{pair.index:+.4f}") for pair in shown)
    return Table("Pairs of clients, the most redundant first", ("client", "client", "index"), rows, words=LEGEND)


def _completion_in(place: Path) -> Path:
    if not place.is_dir():
        return place
    found = [place / name for name in ("completion.npz", "factors.npz") if (place / name).is_file()]
    if not found:
        raise ArtefactError(
            f"{place}: neither completion.npz nor factors.npz in it; make one with fedworth run or report"
        )
    return found[0]
