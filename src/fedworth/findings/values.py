"""Low and negative values, and harm: clients whose value is far below the others', and that made the model worse.

    low value   far below the others' values, given their spread and its own standard error (`confidence_above`)
    negative    the value is below zero, with a confidence of 1 − n P(it is not) among n clients
    harm        the same, and the client makes coalitions of at least half of the others worse, too (`Marginals.large`)

The chance of an error is counted for all clients, as for all findings: of eight clients whose true values are zero,
one has an interval below zero in a third of the federations.

A negative value that large coalitions do not confirm is no harm: often a few coalitions decide it, such as the client
alone in the first round. The finding then names them.

Where clients differ by nature, as with two classes each, the spread is large and a low value is ordinary. With fewer
than five clients no value is called low. A client whose interval is known to be too narrow is never reported.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from fedworth.arrays import Floats, Indices
from fedworth.findings.finding import FEWEST, LEAST_CONFIDENCE, Finding, Kind, Level, confidence_above, confidence_of
from fedworth.findings.groups import group_findings, looked_for, whom_it_harms
from fedworth.valuation.marginals import Cell
from fedworth.valuation.uncertainty import HALF_WIDTH
from fedworth.valuation.valuation import Valuation

MOST_SEPARATE = 8
"""More clients that harm than this are reported together."""

MOST_OTHERS = 4
"""Members of a coalition that are named."""

FEW_GROUPS = "Each client has data of few groups of test samples here, so a low value says nothing about noise."
"""Said of a low value where labels are skewed."""

LOW_VALUE = Kind(
    "low value",
    Level.NOTE,
    sentence="{clients} has a value of {value}{interval}, far below the others, whose median is {middle}",
    basis="spread of the other values, and its own interval",
    title="is worth far less than the others",
    why="The value does not say why. Where all {nouns} have data of the same kind, noise, wrong labels and other units "
    "of measurement look like this. Where their classes or devices differ, good data unlike the test data do.",
    action="Ask how its data differ from the test data. If they should not, have its labels and units checked.",
    client_title="Your data are worth far less than most",
    client_action="If your data should resemble the coordinator’s test data, check how your labels are coded, in which "
    "units you measure and how your inputs are made. Good data that differ from the test data look like this, too.",
    needs="five {nouns} with values whose errors are known",
    is_of_values=True,
)
HARM = Kind(
    "harm",
    Level.ACT,
    sentence="{clients} made the model worse: its value is {value}{interval}, and it adds {large} to coalitions of at "
    "least half of the others",
    several="{clients} made the model worse: their values are {value} on average, and all lie below zero{interval}; "
    "they add {large} on average to coalitions of at least half of the others",
    basis="its interval, and how many were looked at",
    title="made the model worse",
    why="On balance the model does worse with it than without it. Wrong labels and other units of measurement are "
    "common causes; data unlike the test data is another.",
    action="Have its labels and units checked. To value the others alone, make the report again without it (option "
    "--without).",
    client_title="Your data made the model worse",
    client_action="Check how your labels are coded and in which units you measure. Data unlike the coordinator’s test "
    "data can also look like this.",
    needs="Shapley values whose errors are known",
    is_of_values=True,
)
NEGATIVE = Kind(
    "negative value",
    Level.NOTE,
    sentence="{clients} has a negative value, {value}{interval}, but does not harm coalitions of at least half of the "
    "others, to which it adds {large}",
    several="{clients} have negative values, {value} on average{interval}, but do not harm coalitions of at least half "
    "of the others, to which they add {large} on average",
    basis="its interval, and how many were looked at",
    title="has a negative value, but does not harm large coalitions",
    why="A value averages over coalitions of all sizes, and small ones decided this one. In the model that everyone "
    "trains together it does no harm.",
    action="Do not exclude it for this value. Compare with leave-one-out, and look at the coalitions that the finding "
    "names.",
    client_title="Your value is negative, but you do not harm the common model",
    client_action="Nothing is wrong with your part in the common model. Your model alone, or with few others, did "
    "badly on the coordinator’s test data.",
    needs="Shapley values whose errors are known",
    is_of_values=True,
)


def value_findings(valuation: Valuation) -> tuple[Finding, ...]:
    """What the values show; nothing if their errors are unknown."""
    uncertainty, ends = valuation.uncertainty, valuation.intervals
    if uncertainty is None or ends is None:
        return ()
    named = {client for caveat in uncertainty.caveats for client in caveat.clients or valuation.clients}
    is_reliable = np.array([client not in named for client in valuation.clients], dtype=bool)
    low = (finding for k, finding in _low(valuation, ends) if is_reliable[k])
    harming: tuple[Finding, ...] = ()
    if valuation.marginals is not None:
        large, n = valuation.marginals.large, int((~np.isnan(valuation.values)).sum())
        chances = n * (1 - uncertainty.chances_below_zero(valuation.values))  # of an error, for all clients
        below = (1 - chances >= LEAST_CONFIDENCE) & is_reliable
        harming = (
            *_negative(HARM, valuation, ends, np.flatnonzero(below & (large < 0)), chances),
            *_negative(NEGATIVE, valuation, ends, np.flatnonzero(below & (large >= 0)), chances),
        )
    return (*low, *harming, *group_findings(valuation))


def _low(valuation: Valuation, intervals: Floats) -> Iterator[tuple[int, Finding]]:
    known = np.flatnonzero(~np.isnan(valuation.values))
    for client in known.tolist() if len(known) >= FEWEST else []:
        others = valuation.values[known[known != client]]
        own = float(intervals[client, 1] - intervals[client, 0]) / (2 * HALF_WIDTH)
        confidence = confidence_above(-float(valuation.values[client]), -others, own)
        if confidence >= LEAST_CONFIDENCE:
            middle = float(np.median(others))
            finding = _finding(LOW_VALUE, valuation, client, intervals, confidence, middle=middle)
            yield client, replace(finding, detail=FEW_GROUPS if looked_for(valuation) else "")


def _negative(
    kind: Kind, valuation: Valuation, intervals: Floats, below: Indices, chances: Floats
) -> Iterator[Finding]:
    """One finding for each client, or one for all if there are many; `chances` are those of an error."""
    marginals = valuation.marginals
    if marginals is None or len(below) == 0:
        return
    confidences = [confidence_of(chance) for chance in chances[below].tolist()]
    if len(below) <= MOST_SEPARATE:
        for client, confidence in zip(below.tolist(), confidences, strict=True):
            finding = _finding(kind, valuation, client, intervals, confidence, large=float(marginals.large[client]))
            details = (_decided(marginals.deciding[client]), whom_it_harms(valuation, client))
            yield replace(finding, detail=" ".join(filter(None, details)))
        return
    ends = {"low": float(intervals[below, 0].min()), "high": float(intervals[below, 1].max())}
    means = {"value": float(valuation.values[below].mean()), "large": float(marginals.large[below].mean())}
    yield Finding(kind, tuple(valuation.clients[k] for k in below), (), 0, {**means, **ends}, min(confidences))


def _decided(cells: Sequence[Cell]) -> str:
    """Which few coalitions decide a value, in words; nothing if it takes many."""
    if not cells:
        return ""
    texts = [
        f"{_beside(cell.others)} in round {cell.round_number} ({100 * cell.part:.0f} % of the value)" for cell in cells
    ]
    subject = "One coalition decides" if len(cells) == 1 else "A few coalitions decide"
    return f"{subject} the value: {', '.join(texts)}."


def _beside(others: Sequence[str]) -> str:
    """The client alone, or with others."""
    if not others:
        return "its model alone"
    more = f" and {len(others) - MOST_OTHERS} more" if len(others) > MOST_OTHERS else ""
    return f"with {', '.join(map(repr, others[:MOST_OTHERS]))}{more}"


def _finding(
    kind: Kind, valuation: Valuation, client: int, intervals: Floats, confidence: float, **more: float
) -> Finding:
    low, high = intervals[client].tolist()
    evidence = {"value": float(valuation.values[client]), "low": low, "high": high, **more}
    return Finding(kind, (valuation.clients[client],), (), 0, evidence, confidence)
