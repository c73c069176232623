"""A rule from what the ledger's header says of it, and the rule that a ledger's values rest on.

    mean   momentum   adaptive   median   trimmed-mean   krum   private

The header's `settings.rule` is written by the recorder when it can see the strategy. A task may say another, which then
holds; where neither says anything, the rule is the weighted mean, and the check shows whether that is so.
"""

from collections.abc import Callable
from typing import Any

from fedworth.errors import LedgerError, UsageError
from fedworth.ledger.ledger import Ledger
from fedworth.task.rules.optimizers import Adaptive, ServerMomentum
from fedworth.task.rules.private import Private
from fedworth.task.rules.robust import Krum, Median, TrimmedMean
from fedworth.task.rules.rule import LinearRule, Rule, WeightedMean

MAKERS: dict[str, Callable[..., Rule]] = {
    "mean": WeightedMean,
    "momentum": ServerMomentum,
    "adaptive": Adaptive,
    "median": Median,
    "trimmed-mean": TrimmedMean,
    "krum": Krum,
}


def rule_from(document: Any) -> Rule:
    """The rule that a document describes."""
    try:
        settings = dict(document)
        name = settings.pop("name")
        if name == "private":
            return Private(_linear(settings.pop("inner")), **settings)
        return MAKERS[name](**settings)
    except (KeyError, TypeError, ValueError, UsageError) as error:
        known = ", ".join([*MAKERS, "private"])
        raise LedgerError(f"rule {str(document)[:80]}: not understood ({error}); known are {known}") from error


def rule_of(ledger: Ledger) -> Rule:
    """The rule that the recorder saw, or the weighted mean."""
    document = ledger.settings.get("rule")
    return WeightedMean() if document is None else rule_from(document)


def rule_name(rule: Rule) -> str:
    """The rule in words."""
    settings = rule.document()
    name = "weighted mean" if settings.pop("name") == "mean" else rule.document()["name"]
    told = ", ".join(f"{key} {value}" for key, value in settings.items())
    return f"{name} ({told})" if told else str(name)


def _linear(document: Any) -> LinearRule:
    rule = rule_from(document)
    if not isinstance(rule, LinearRule):
        raise UsageError(f"rule {rule_name(rule)} cannot stand inside a private one")
    return rule
