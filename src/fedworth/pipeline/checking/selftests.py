"""Self-tests: what must hold of values whatever the data, tried on the user's own rounds.

    copy         a client is added that answers as another does: both are worth the same
    idle         a client is added that sends back the global model: it is worth 0 where coalitions have fixed weights
    order        the clients in the opposite order: everyone is worth the same
    held out     one answer of each round is hidden and its utilities are estimated: how far off are they?
    heard round  the rounds that heard everyone hear only a few: do the values stay within their intervals?

Each gives a verdict, the number it rests on, and a sentence for a coordinator.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import ndtri

from fedworth.arrays import Floats, stream
from fedworth.coalitions import coalitions_of
from fedworth.completion.completion import Completion
from fedworth.completion.completion_file import load_completion
from fedworth.games.matrix import UtilityMatrix
from fedworth.ledger.ledger import Ledger
from fedworth.names import Weighting
from fedworth.pipeline.checking.altered import in_reverse, with_clone, with_fewer_heard, with_idle
from fedworth.pipeline.stages import ValuingSettings
from fedworth.report.report import Report
from fedworth.valuation.ranking import rank_correlation
from fedworth.valuation.uncertainty import LEVEL
from fedworth.valuation.valuation import Valuation

Reporter = Callable[[Ledger, ValuingSettings, Path], Report]
"""Values a ledger into a folder: `report_on`, with a task."""

EQUAL = 1e-4
"""Values this close, as a part of their spread, are the same: utilities are measured in float32."""

LEAST_INSIDE = 0.75
"""Below this part of hidden utilities within their 90 % ranges, the ranges are called too narrow."""

AGREES = 0.8
"""From this rank correlation on, values with and without the heard round are called alike."""


class CheckVerdict(StrEnum):
    """What a self-test says."""

    HOLDS = "holds"
    FAILS = "does not hold"
    WARNS = "take care"
    SKIPPED = "not tried"


@dataclass(frozen=True)
class SelfTest:
    """One self-test: what was tried, what it found, and what that means."""

    name: str
    verdict: CheckVerdict
    found: str
    number: float | None = None

    def document(self) -> dict[str, Any]:
        """The self-test as JSON."""
        return {"name": self.name, "verdict": self.verdict.name.lower(), "found": self.found, "number": self.number}


@dataclass(frozen=True)
class ValuedFederation:
    """What is tested: a ledger, its utilities, how it is valued, and its values."""

    ledger: Ledger
    utilities: UtilityMatrix
    settings: ValuingSettings
    valuation: Valuation
    report: Reporter
    scratch: Path  # an empty folder

    @property
    def spread(self) -> float:
        """The standard deviation of the values; 1 if all are the same."""
        return float(np.nanstd(self.valuation.values)) or 1.0

    def values_of(self, ledger: Ledger, folder: Path, weighting: Weighting | None = None) -> dict[str, float]:
        """The values of an altered ledger, by name; nobody trained it, so it is taken for one that averages."""
        settings = replace(self.settings, as_average=True, without=(), weighting=weighting or self._weighting)
        made = self.report(ledger, settings, folder).valuations[0]
        return dict(zip(made.clients, made.values.tolist(), strict=True))

    def completed(self, ledger: Ledger, folder: Path) -> Completion:
        """The completion that an altered ledger's values rest on."""
        self.values_of(ledger, folder)
        found = folder / "completion.npz"
        return load_completion(found if found.is_file() else folder / "factors.npz")

    @property
    def _weighting(self) -> Weighting:
        return self.settings.weighting or self.ledger.default_weighting


def copy_test(federation: ValuedFederation) -> SelfTest:
    """A copy of the client that was heard most is worth as much as the client itself."""
    ledger = federation.ledger
    chosen = ledger.clients[int(np.argmax(federation.utilities.participants.sum(axis=0)))]
    altered, name = with_clone(ledger, chosen, federation.scratch / "copy" / "ledger")
    values = federation.values_of(altered, federation.scratch / "copy")
    apart = abs(values[chosen] - values[name]) / federation.spread
    held = apart <= EQUAL
    found = f"a client that answers as {chosen!r} does is worth {values[name]:+.4g}, {chosen!r} {values[chosen]:+.4g}"
    return SelfTest("copy", CheckVerdict.HOLDS if held else CheckVerdict.FAILS, found, apart)


def idle_test(federation: ValuedFederation) -> SelfTest:
    """Whoever sends back the global model adds nothing, if absent members count as no update."""
    altered, name = with_idle(federation.ledger, federation.scratch / "idle" / "ledger")
    worth = federation.values_of(altered, federation.scratch / "idle", weighting="fixed")[name]
    part = abs(worth) / federation.spread
    found = f"a client that sends back the global model is worth {worth:+.4g} with fixed weights, where 0 is right"
    return SelfTest("idle", CheckVerdict.HOLDS if part <= EQUAL else CheckVerdict.FAILS, found, part)


def order_test(federation: ValuedFederation) -> SelfTest:
    """Names carry no worth."""
    valuation, folder = federation.valuation, federation.scratch / "order"
    before = dict(zip(valuation.clients, valuation.values.tolist(), strict=True))
    after = federation.values_of(in_reverse(federation.ledger, folder / "ledger"), folder)
    apart = max(abs(after[name] - value) for name, value in before.items() if not math.isnan(value)) / federation.spread
    found = f"with the clients in the opposite order no value changes by more than {apart:.1g} of their spread"
    return SelfTest("order", CheckVerdict.HOLDS if apart <= EQUAL else CheckVerdict.FAILS, found, apart)


def held_out_test(federation: ValuedFederation) -> SelfTest:
    """One answer of every round that somebody missed is hidden, and what it was worth there is estimated."""
    hidden = _hidden(federation)
    if not hidden:
        found = "every round heard everyone, or too few clients to hide one: nothing has to be estimated, or checked"
        return SelfTest("held out", CheckVerdict.SKIPPED, found)
    unheard = {t: [federation.ledger.clients[k]] for t, k in hidden.items()}
    folder = federation.scratch / "held-out"
    altered = with_fewer_heard(federation.ledger, unheard, folder / "ledger")
    completion = federation.completed(altered, folder)
    seen, errors, deviations = _estimated(federation, completion, hidden)
    off = float(np.sqrt((errors**2).mean() / (seen**2).mean()))
    found = (
        f"{len(hidden)} answers were hidden, one a round; the {len(seen)} utilities with them were estimated with an "
        f"error of {off:.0%} of their size"
    )
    if deviations is None:
        return SelfTest("held out", CheckVerdict.HOLDS if off < 1 else CheckVerdict.WARNS, found, off)
    inside = float((np.abs(errors) <= float(ndtri((1 + LEVEL) / 2)) * deviations).mean())
    found += f", {inside:.0%} of them within their {LEVEL:.0%} range"
    return SelfTest(
        "held out",
        CheckVerdict.HOLDS if inside >= LEAST_INSIDE and off < 1 else CheckVerdict.WARNS,
        found,
        inside,
    )


def _hidden(federation: ValuedFederation) -> dict[int, int]:
    """A client to hide in each round that somebody missed and that two or more answered; each in turn."""
    present = federation.utilities.participants
    missed = ~present[:, present.any(axis=0)].all(axis=1)
    chosen: dict[int, int] = {}
    for t in np.flatnonzero(missed & (present.sum(axis=1) >= 2)).tolist():
        members = np.flatnonzero(present[t])
        elsewhere = [k for k in members.tolist() if present[:, k].sum() >= 2]
        if elsewhere:
            chosen[t] = elsewhere[len(chosen) % len(elsewhere)]
    return chosen


def _estimated(
    federation: ValuedFederation, completion: Completion, hidden: dict[int, int]
) -> tuple[Floats, Floats, Floats | None]:
    """The utilities seen with each hidden answer, how far the estimates are off, and how far they may be."""
    seen, errors, deviations = list[Floats](), list[Floats](), list[Floats]()
    utilities = federation.utilities
    places = np.cumsum(utilities.participants.any(axis=1)) - 1  # rounds that nobody answered are not in the copy
    for t, client in hidden.items():
        coalitions = coalitions_of(np.flatnonzero(utilities.participants[t]), utilities.n_clients)
        coalitions = coalitions[coalitions[:, client]]
        known = utilities.row(t, coalitions)
        coalitions, known = coalitions[~np.isnan(known)], known[~np.isnan(known)]
        seen.append(known)
        errors.append(completion.estimates(coalitions)[places[t]] - known)
        variances = completion.variances(coalitions)
        if variances is not None:
            deviations.append(np.sqrt(variances[places[t]]))
    return np.concatenate(seen), np.concatenate(errors), np.concatenate(deviations) if deviations else None


def heard_round_test(federation: ValuedFederation) -> SelfTest:
    """What is left of the values if no round had heard everyone."""
    present = federation.utilities.participants
    heard = present[:, present.any(axis=0)]
    whole = np.flatnonzero(heard.all(axis=1))
    if len(whole) == 0:
        return SelfTest("heard round", CheckVerdict.SKIPPED, "no round heard everyone, so there is none to leave out")
    if len(whole) == len(present):
        return SelfTest("heard round", CheckVerdict.SKIPPED, "every round heard everyone: nothing has to be estimated")
    unheard = _not_in_few(federation, whole.tolist())
    altered = with_fewer_heard(federation.ledger, unheard, federation.scratch / "heard-round" / "ledger")
    values = federation.values_of(altered, federation.scratch / "heard-round")
    return _compared(federation, np.array([values.get(name, math.nan) for name in federation.valuation.clients]))


def _not_in_few(federation: ValuedFederation, whole: list[int]) -> dict[int, list[str]]:
    """Who is not heard in the rounds that heard everyone, if these hear as many as the others do."""
    present, names = federation.utilities.participants, federation.ledger.clients
    n_typical = int(np.median(np.delete(present, whole, axis=0).sum(axis=1)))
    unheard = {}
    for t in whole:
        members = stream(0, "heard round", t).permutation(np.flatnonzero(present[t]))
        unheard[t] = [names[k] for k in members[max(n_typical, 1) :].tolist()]
    return unheard


def _compared(federation: ValuedFederation, values: Floats) -> SelfTest:
    """Values without a round that hears everyone, held against the intervals with it."""
    valuation = federation.valuation
    agreed = rank_correlation(valuation.values.tolist(), values.tolist())
    said = "" if agreed is None else f"; the two rankings correlate by {agreed:.2f}"
    never = [name for name, value in zip(valuation.clients, values, strict=True) if math.isnan(value)]
    said += f"; {', '.join(never)} would never have been heard" if never else ""
    if valuation.uncertainty is None:
        return SelfTest(
            "heard round", CheckVerdict.SKIPPED, f"the values have no intervals to be held against{said}", agreed
        )
    low, high = valuation.uncertainty.intervals(valuation.values).T
    n_in, n = int(((values >= low) & (values <= high)).sum()), int((~np.isnan(values)).sum())
    found = f"had no round heard everyone, {n_in} of {n} values would lie within the {LEVEL:.0%} intervals{said}"
    is_stable = not never and (agreed is None or agreed >= AGREES)
    return SelfTest("heard round", CheckVerdict.HOLDS if is_stable else CheckVerdict.WARNS, found, agreed)
