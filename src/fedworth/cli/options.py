"""Options that several commands share, and what becomes of them."""

import argparse
import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from fedworth.cli.arguments import Wrapped
from fedworth.errors import UsageError
from fedworth.names import CHOICES, DEFAULT_COMPLETION, checked_name

if TYPE_CHECKING:
    from fedworth.completion.factors import FactorSettings
    from fedworth.games.matrix import UtilityMatrix
    from fedworth.games.planning.choose import PlanSettings

MOST_DIGITS = 18
"""Digits of a whole number on the command line: what a machine integer holds."""


def command(
    subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]",
    name: str,
    summary: str,
    example: str,
    action: Callable[[argparse.Namespace], None],
) -> argparse.ArgumentParser:
    """A subcommand with a sentence, an example, and `--json`."""
    parser = subparsers.add_parser(
        name,
        help=summary,
        description=summary,
        epilog=f"example:\n  {example}",
        formatter_class=Wrapped,
    )
    parser.add_argument("--json", action="store_true", help="print JSON on standard output")
    parser.set_defaults(action=action)
    return parser


def name(kind: str) -> Callable[[str], str]:
    """How an option reads a name of this kind; a slip is refused before anything else is looked at."""
    return partial(checked_name, kind)


def add_completion_options(parser: argparse.ArgumentParser) -> None:
    """How to complete by factors: rank, penalty, kind."""
    group = parser.add_argument_group("completion by factors")
    group.add_argument(
        "--rank",
        type=rank_or_auto,
        default="5",
        metavar="R|auto",
        help="rank of the factors, or auto: cross-validation (default 5)",
    )
    penalty = group.add_mutually_exclusive_group()
    penalty.add_argument("--penalty", type=real, metavar="λ", help="penalty, absolute")
    penalty.add_argument(
        "--relative-penalty",
        type=real,
        metavar="f",
        help="penalty as a fraction of the smallest that zeroes all (default 0.01)",
    )
    group.add_argument(
        "--penalty-kind",
        type=name("penalty kind"),
        default="counts",
        metavar="KIND",
        help="counts (default) or uniform, as the paper prints it",
    )
    group.add_argument("--max-sweeps", type=whole, metavar="N", help="most sweeps of the solver")


def add_kind_option(parser: argparse.ArgumentParser) -> None:
    """What ComFedSV rests on."""
    parser.add_argument(
        "--completion",
        type=name("completion"),
        default=DEFAULT_COMPLETION,
        metavar="KIND",
        help=f"what ComFedSV rests on: {', '.join(CHOICES['completion'])} (default {DEFAULT_COMPLETION}); "
        "factors, the paper's, stand beside it in every report",
    )


def factor_settings(args: argparse.Namespace) -> "FactorSettings":
    """The completion asked for; with `--rank auto` the rank is yet to be chosen."""
    check_factors(args)
    from fedworth.completion.factors import FactorSettings

    max_sweeps = FactorSettings().max_sweeps if args.max_sweeps is None else args.max_sweeps
    relative = 0.01 if args.relative_penalty is None else args.relative_penalty
    if is_auto(args):
        return FactorSettings(penalty_kind=args.penalty_kind, max_sweeps=max_sweeps)
    return FactorSettings(rank_of(args.rank), args.penalty, relative, args.penalty_kind, max_sweeps)


def check_factors(args: argparse.Namespace) -> None:
    """Refuse options of a completion by factors that contradict each other."""
    if is_auto(args) and (args.penalty is not None or args.relative_penalty is not None):
        raise UsageError("--rank auto chooses the penalty too; leave out --penalty and --relative-penalty")


def is_auto(args: argparse.Namespace) -> bool:
    """Whether rank and penalty are to be chosen by cross-validation."""
    return bool(args.rank == "auto")


def chosen_settings(args: argparse.Namespace, matrix: "UtilityMatrix") -> "tuple[FactorSettings, tuple[str, ...]]":
    """The completion asked for, chosen by cross-validation where so asked, and a note that says how."""
    from fedworth.arrays import stream
    from fedworth.completion.factors import choose_factors

    settings = factor_settings(args)
    if not is_auto(args):
        return settings, ()
    choice = choose_factors(matrix, penalty_kind=args.penalty_kind, rng=stream(args.seed, "cross-validation"))
    found = f"rank {choice.settings.rank}, relative penalty {choice.settings.relative_penalty:g}"
    return choice.settings, (
        f"cross-validation chose {found}: held-out error {choice.error:.3f} on {choice.n_hidden} cells",
    )


def rank_or_auto(text: str) -> str:
    """A rank from the command line, as text: it may be auto."""
    if text != "auto":
        rank_of(text)
    return text


def rank_of(text: str) -> int:
    """A rank from the command line."""
    return whole_number(text, "--rank", least=1, otherwise=", or auto")


def add_data_option(parser: argparse.ArgumentParser) -> None:
    """Where data sets lie."""
    parser.add_argument(
        "--data", type=data_folder, metavar="FOLDER", help="where data sets lie (default: $FEDWORTH_DATA)"
    )


def data_folder(text: str) -> Path:
    """A folder of data sets; the name of a data set, where no folder has that name, is a slip for `--dataset`."""
    if text in CHOICES["data set"] and not Path(text).is_dir():
        raise UsageError(
            f"--data {text}: expected the folder where data sets lie, found the name of a data set and no folder of "
            f"that name; choose a data set with --dataset {text}, an option of simulate and run"
        )
    return Path(text)


def add_as_average_option(parser: argparse.ArgumentParser) -> None:
    """Go on where the server did something else than the rule says."""
    parser.add_argument(
        "--as-average",
        action="store_true",
        help="take the server for one that averages, although its recorded models say otherwise; every report says so",
    )


def add_unseen_option(parser: argparse.ArgumentParser) -> None:
    """What becomes of coalitions that no round has shown."""
    parser.add_argument(
        "--unseen",
        type=name("treatment of unseen coalitions"),
        default="refuse",
        help="coalitions never seen: refuse (default), or count as zero",
    )


def add_seed_option(parser: argparse.ArgumentParser) -> None:
    """The seed of whatever is drawn."""
    parser.add_argument("--seed", type=whole, default=0, help="seed of whatever is drawn (default 0)")


def add_permutations_option(parser: argparse.ArgumentParser) -> None:
    """Exact, or Monte Carlo over permutations."""
    parser.add_argument(
        "--permutations",
        type=permutations_of,
        metavar="M|auto",
        help="Monte Carlo over M permutations; auto: N⌈ln N⌉ (default: all coalitions of rounds with up to 20 "
        "participants, an estimate of larger ones)",
    )
    parser.add_argument(
        "--sampler",
        type=name("sampler"),
        help="Monte Carlo of FedSV and the heard round: stratified (default) or permutations",
    )


def plan_settings(args: argparse.Namespace, *, with_fedsv: bool = True) -> "PlanSettings":
    """The plan asked for."""
    check_plan(args, with_fedsv=with_fedsv)
    from fedworth.games.planning.choose import PlanSettings
    from fedworth.games.planning.plan import DEFAULT_SAMPLER

    return PlanSettings(args.permutations, args.sampler or DEFAULT_SAMPLER, with_fedsv)


def check_plan(args: argparse.Namespace, *, with_fedsv: bool = True) -> None:
    """Refuse options of a plan without the one that they need."""
    if args.permutations is None and (args.sampler or not with_fedsv):
        raise UsageError("--sampler and --no-fedsv: expected --permutations beside them")


def permutations_of(text: str) -> int | Literal["auto"]:
    """How many permutations were asked for."""
    if text == "auto":
        return "auto"
    return whole_number(text, "--permutations", least=2, otherwise=", or auto")


def whole_number(text: str, option: str, *, least: int = 0, otherwise: str = "") -> int:
    """A whole number from the command line, from `least` on."""
    if not is_whole(text) or int(text) < least:
        raise UsageError(f"{option} {text[:40]}: expected a whole number from {least} on{otherwise}")
    return int(text)


def whole(text: str) -> int:
    """The type of every option that takes a whole number: from 0 on, and no longer than a machine's."""
    if not is_whole(text):
        raise argparse.ArgumentTypeError(f"found {text[:40]!r}, expected a whole number from 0 on")
    return int(text)


def real(text: str) -> float:
    """The type of every option that takes a number: a finite one."""
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise argparse.ArgumentTypeError(f"found {text[:40]!r}, expected a finite number")
    return number


def is_whole(text: str) -> bool:
    """Whether a text is a whole number that a machine's integer holds."""
    return text.isascii() and text.isdigit() and len(text) <= MOST_DIGITS


def numbers(text: str) -> tuple[float, ...]:
    """Finite numbers separated by commas."""
    try:
        return tuple(real(part) for part in text.split(",") if part)
    except argparse.ArgumentTypeError as error:
        raise UsageError(f"{text[:80]!r}: {error}; expected numbers separated by commas") from None
