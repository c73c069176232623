"""Options that say how a ledger is valued, for the commands that go all the way from a ledger to values."""

import argparse
from typing import TYPE_CHECKING

from fedworth.cli.options import (
    add_as_average_option,
    add_completion_options,
    add_kind_option,
    add_permutations_option,
    add_unseen_option,
    check_factors,
    check_plan,
    factor_settings,
    is_auto,
    name,
    plan_settings,
)

if TYPE_CHECKING:
    from fedworth.pipeline.stages import ValuingSettings


DEFAULT_WEIGHTING = "(default: uniform if simulated, else as the server averaged)"


def add_valuing_options(parser: argparse.ArgumentParser) -> None:
    """How coalitions are measured, completed and valued."""
    add_measuring_options(parser)
    add_unseen_option(parser)
    parser.add_argument("--strict", action="store_true", help="stop at the first method that must be refused")
    add_kind_option(parser)
    add_completion_options(parser)


def add_measuring_options(parser: argparse.ArgumentParser) -> None:
    """How coalitions are measured, and which."""
    parser.add_argument("--weighting", type=name("weighting"), help=f"uniform, samples, fixed {DEFAULT_WEIGHTING}")
    parser.add_argument("--measure", default="loss", help="loss (default), accuracy, or another measure of the task")
    parser.add_argument("--oracle", type=name("oracle"), default="fast", help="fast (default), or loop: plain and slow")
    add_as_average_option(parser)
    add_permutations_option(parser)


def add_without_option(parser: argparse.ArgumentParser) -> None:
    """Whose answers are left out."""
    parser.add_argument(
        "--without",
        action="append",
        default=[],
        metavar="CLIENT",
        help="value the federation as if this client had never answered (repeatable)",
    )


def check_valuing(args: argparse.Namespace) -> None:
    """Refuse options that contradict each other, before anything heavy is imported."""
    check_plan(args)
    check_factors(args)


def valuing_settings(args: argparse.Namespace) -> "ValuingSettings":
    """The settings that the options ask for."""
    check_valuing(args)
    from fedworth.pipeline.stages import ValuingSettings

    return ValuingSettings(
        weighting=args.weighting,
        measure=args.measure,
        oracle=args.oracle,
        as_average=args.as_average,
        plan=plan_settings(args),
        completion=args.completion,
        factors=factor_settings(args),
        auto_rank=is_auto(args),
        unseen=args.unseen,
        strict=args.strict,
        without=tuple(args.without),
        seed=args.seed,
    )
