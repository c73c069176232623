"""When to stop measuring: rules on an estimate, and how they combine.

In: an estimate. Out: the reasons to stop, none while a rule does not hold.

    precise_relative(share)     every standard error ≤ share × largest |value|; a value of 0 is no obstacle
    ranked(z, tie)              neighbours in the ranking differ by more than z standard errors of their difference,
                                or certainly by less than tie × largest |value|: equal clients never come apart
    all_of(…)                   every one of them

The budget is no rule but a limit that is always there. At each size the estimate is unbiased; stopping because of what
it shows biases the last one by a fraction of its standard error.
"""

from collections.abc import Callable
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from fedworth.arrays import Indices
from fedworth.errors import UsageError
from fedworth.games import Estimate


class StoppingReason(StrEnum):
    """Why measuring stopped."""

    PRECISE = "every standard error is within the tolerance"
    RANKED = "the ranking is settled"
    BUDGET = "stopped at the budget; raise it, or loosen the rule"


StoppingRule = Callable[[Estimate], tuple[StoppingReason, ...]]
"""Why to stop; none: go on."""


def precise_relative(share: float) -> StoppingRule:
    """Stop when every standard error is at most `share` of the largest absolute value."""
    _refuse_negative(share, "share")
    return lambda estimate: _if(
        bool((estimate.standard_errors <= share * _largest(estimate)).all()), StoppingReason.PRECISE
    )


def ranked(z: float = 2.0, *, tie: float = 0.01) -> StoppingRule:
    """Stop when any two neighbours in the ranking certainly differ, or are certainly tied."""
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


def all_of(*rules: StoppingRule) -> StoppingRule:
    """Stop when every rule holds."""

    def rule(estimate: Estimate) -> tuple[StoppingReason, ...]:
        found = [one(estimate) for one in rules]
        return tuple(reason for reasons in found for reason in reasons) if all(found) else ()

    return rule


def difference_errors(estimate: Estimate, some: Indices, others: Indices) -> NDArray[np.float64]:
    """The standard errors of differences of values: they vary together, so variances alone will not do."""
    variances = np.diag(estimate.covariance)
    found = variances[some] + variances[others] - 2 * estimate.covariance[some, others]
    return np.asarray(np.sqrt(np.maximum(found, 0)))


def _largest(estimate: Estimate) -> float:
    return float(np.abs(estimate.values).max(initial=0))


def _if(holds: bool, reason: StoppingReason) -> tuple[StoppingReason, ...]:
    return (reason,) if holds else ()


def _refuse_negative(number: float, name: str) -> None:
    if not number >= 0:
        raise UsageError(f"{name} {number}: expected 0 or more")
