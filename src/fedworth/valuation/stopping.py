"""When to stop measuring: rules on an estimate that combine, and a game valued until one of them holds.

A rule says which reasons it stops for, none while it does not hold:

    precise(tolerance)          every standard error ≤ tolerance
    precise_relative(share)     every standard error ≤ share × largest |value|; a value of 0 is no obstacle
    ranked(z, tie)              neighbours in the ranking differ by more than z standard errors of their difference,
                                or certainly by less than tie × largest |value|: equal clients never come apart
    all_of(…), any_of(…)        both, either

The budget is no rule but a limit that is always there. At each size the estimate is unbiased; that one stops because
of what it shows makes the last one lean, by a part of its standard error.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from fedworth.arrays import Indices, Memberships, Utilities
from fedworth.errors import UsageError
from fedworth.utility.coalitions import locate
from fedworth.utility.planning.design import grow_design, least_budget
from fedworth.valuation.estimate import Estimate
from fedworth.valuation.strata import strata_values


class StoppingReason(StrEnum):
    """Why measuring stopped."""

    PRECISE = "every standard error is within the tolerance"
    RANKED = "the ranking is settled"
    EXACT = "every coalition was measured"
    BUDGET = "stopped at the budget; raise it, or loosen the rule"


Rule = Callable[[Estimate], tuple[StoppingReason, ...]]
"""Why to stop; none: go on."""

Game = Callable[[Memberships], Utilities]
"""Measures coalitions of n members, (n_coalitions, n), none of them empty."""


@dataclass(frozen=True)
class Stopped:
    """The last estimate, why it is the last, and the coalitions it rests on."""

    estimate: Estimate
    reasons: tuple[StoppingReason, ...]
    design: Memberships  # (n_coalitions, n)


def precise(tolerance: float) -> Rule:
    """Stop when every standard error is at most `tolerance`."""
    _refuse_negative(tolerance, "tolerance")
    return lambda estimate: _if(bool((estimate.standard_errors <= tolerance).all()), StoppingReason.PRECISE)


def precise_relative(share: float) -> Rule:
    """Stop when every standard error is at most `share` of the largest absolute value."""
    _refuse_negative(share, "share")
    return lambda estimate: _if(
        bool((estimate.standard_errors <= share * _largest(estimate)).all()), StoppingReason.PRECISE
    )


def ranked(z: float = 2.0, *, tie: float = 0.01) -> Rule:
    """Stop when every two neighbours in the ranking are apart, or certainly tied."""
    _refuse_negative(z, "z")
    _refuse_negative(tie, "tie")

    def rule(estimate: Estimate) -> tuple[StoppingReason, ...]:
        order = np.argsort(-estimate.values, kind="stable")
        upper, lower = order[:-1], order[1:]
        gaps = estimate.values[upper] - estimate.values[lower]  # (n−1,), ≥ 0
        doubts = z * difference_errors(estimate, upper, lower)  # (n−1,)
        is_settled = (gaps > doubts) | (gaps + doubts <= tie * _largest(estimate))
        return _if(bool(is_settled.all()), StoppingReason.RANKED)

    return rule


def all_of(*rules: Rule) -> Rule:
    """Stop when every rule holds."""

    def rule(estimate: Estimate) -> tuple[StoppingReason, ...]:
        found = [one(estimate) for one in rules]
        return tuple(reason for reasons in found for reason in reasons) if all(found) else ()

    return rule


def any_of(*rules: Rule) -> Rule:
    """Stop when one of the rules holds."""
    return lambda estimate: tuple(reason for one in rules for reason in one(estimate))


def value_until(
    game: Game,
    n_members: int,
    rule: Rule,
    *,
    budget: int,
    first: int | None = None,
    growth: float = 1.5,
    rng: np.random.Generator,
) -> Stopped:
    """The values of a game, measured with `first` coalitions (default: the least design and half as many again), then
    `growth` times as many, …, until the rule holds, the budget is spent, or nothing is left to measure."""
    if growth <= 1:
        raise UsageError(f"growth {growth}: expected more than 1")
    most = min(budget, 2**n_members - 1)
    goal = min(most, max(least_budget(n_members), first or least_budget(n_members) * 3 // 2))
    design = np.zeros((0, n_members), dtype=bool)
    utilities = np.zeros(0)
    while True:
        grown = grow_design(design, np.arange(n_members), goal, rng=rng)
        utilities = _measured(game, grown, design, utilities)
        design, estimate = grown, strata_values(grown, utilities)
        reasons = _ended(rule, estimate, n_members, budget)
        if reasons:
            return Stopped(estimate, reasons, design)
        goal = min(most, max(goal + 1, int(goal * growth)))


def difference_errors(estimate: Estimate, some: Indices, others: Indices) -> NDArray[np.float64]:
    """The standard errors of differences of values: they vary together, so variances alone will not do."""
    variances = np.diag(estimate.covariance)
    found = variances[some] + variances[others] - 2 * estimate.covariance[some, others]
    return np.asarray(np.sqrt(np.maximum(found, 0)))


def _measured(game: Game, grown: Memberships, design: Memberships, utilities: Utilities) -> Utilities:
    """The utilities of the grown design; only what is new is measured."""
    known = locate(grown, design)
    found = np.empty(len(grown))
    found[known >= 0] = utilities[known[known >= 0]]
    found[known < 0] = game(grown[known < 0])
    return found


def _ended(rule: Rule, estimate: Estimate, n_members: int, budget: int) -> tuple[StoppingReason, ...]:
    if estimate.n_evaluations == 2**n_members - 1:
        return (StoppingReason.EXACT,)
    return rule(estimate) or _if(estimate.n_evaluations >= budget, StoppingReason.BUDGET)


def _largest(estimate: Estimate) -> float:
    return float(np.abs(estimate.values).max(initial=0))


def _if(holds: bool, reason: StoppingReason) -> tuple[StoppingReason, ...]:
    return (reason,) if holds else ()


def _refuse_negative(number: float, name: str) -> None:
    if not number >= 0:
        raise UsageError(f"{name} {number}: expected 0 or more")
