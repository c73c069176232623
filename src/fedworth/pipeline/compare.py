"""Utilities to a report: several methods side by side, without a ledger or a task."""

from collections.abc import Sequence
from functools import cache

from fedworth.completion.completion import Completion
from fedworth.completion.coverage import coverage
from fedworth.games.matrix import UtilityMatrix
from fedworth.names import MethodName, checked_name
from fedworth.pipeline.stages import ValuingSettings, factors_of, rounds_of, value_by
from fedworth.report.report import Provenance, Report
from fedworth.valuation.value import COMPLETED


def compare(
    utilities: UtilityMatrix,
    methods: Sequence[MethodName] = ("comfedsv", "fedsv"),
    *,
    completion: Completion | None = None,
    settings: ValuingSettings | None = None,
    title: str = "",
) -> Report:
    """What each client is worth by several methods, side by side.

    Args:
        utilities: measured by `observe`, or your own; with the truth if that is one of the methods.
        methods: names of methods; one that must be refused is named in the report, with the reason.
        completion: what ComFedSV rests on; else factors are made.
        settings: how they are made, what is strict, and what becomes of coalitions never seen.
        title: of the report.

    Returns:
        The valuations side by side; `report.refusals` has the methods that could not be had, and why.

    Example:
        fedworth.compare(fedworth.load_utilities("mine.npz"), ["comfedsv", "fedsv"]).to_dataframe()
    """
    settings = settings or ValuingSettings()
    asked = [checked_name("method", method) for method in dict.fromkeys(methods)]
    seen = utilities.seen_part() if utilities.is_truth else utilities
    completed = cache(lambda: completion or factors_of(seen, settings))
    resting = {method: completed for method in COMPLETED if method in asked}
    valuations, refusals = value_by(asked, seen, resting, settings, truth=utilities)
    trail = seen.trail
    return Report(
        title or f"{len(seen.clients)} clients, {seen.n_rounds} rounds",
        seen.clients,
        valuations,
        refusals,
        coverage=coverage(seen).document() if seen.heard.any() else None,
        rounds=rounds_of(seen),
        provenance=None if trail is None else Provenance(trail.head, trail.n_rounds, trail.task, trail.software),
    )
