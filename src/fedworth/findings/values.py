"""Low values and harm: clients whose value is far below the others', and clients that made the model worse.

    low value   far below the others' values, given their spread and its own standard error (`outliers.py`)
    harm        the whole 90 % interval lies below zero; the confidence is the probability that the value does

Where clients differ by nature, as with two classes each, the spread is large and a low value is ordinary. With fewer
than five clients no value is called low. A client whose interval is known to be too narrow is never reported.
"""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from scipy.special import ndtr

from fedworth.arrays import Floats, Indices
from fedworth.findings.finding import LEAST_CONFIDENCE, Finding, Kind, Level, confidence_of
from fedworth.findings.groups import group_findings, whom_it_harms
from fedworth.findings.outliers import FEWEST, confidence_above
from fedworth.valuation.uncertainty import HALF_WIDTH
from fedworth.valuation.valuation import Valuation

MOST_SEPARATE = 8
"""More clients that harm than this are reported together."""

LOW_VALUE = Kind(
    "low value",
    Level.ACT,
    sentence="{clients} has a value of {value}{interval}, far below the others, whose median is {middle}",
    basis="spread of the other values, and its own interval",
    tag="Low value",
    title="is worth far less than the others",
    why="Noisy data, wrong labels and other units of measurement look like this. So do data unlike the test data.",
    action="Have its labels, its units and the way its inputs are made checked.",
    client_title="Your data are worth far less than most",
    client_action="Check how your labels are coded, in which units you measure and how your inputs are made.",
    passed="No {noun}’s value lies far below the others’.",
    needs="five {nouns} with values whose errors are known",
    is_of_values=True,
)
HARM = Kind(
    "harm",
    Level.ACT,
    sentence="{clients} made the model worse: its value is {value}{interval}",
    several="{clients} made the model worse: their values are {value} on average, and all lie below zero{interval}",
    basis="its interval",
    tag="Harms",
    title="made the model worse",
    why="On balance the model does worse with it than without it. Wrong labels and other units of measurement are "
    "common causes; data unlike the test data is another.",
    action="Have its labels and units checked. To value the others alone, make the report again without it (option "
    "--without).",
    client_title="Your data made the model worse",
    client_action="Check how your labels are coded and in which units you measure. Data unlike the coordinator’s test "
    "data can also look like this.",
    passed="No {noun}’s value lies clearly below zero.",
    needs="values whose errors are known",
    is_of_values=True,
)


def value_findings(valuation: Valuation) -> tuple[Finding, ...]:
    """What the values show; nothing if their errors are unknown."""
    known, ends = valuation.uncertainty, valuation.intervals
    if known is None or ends is None:
        return ()
    named = {caveat.client for caveat in known.caveats}
    is_reliable = np.array([None not in named and client not in named for client in valuation.clients], dtype=bool)
    low = (found for k, found in _low(valuation, ends) if is_reliable[k])
    harming = _harming(valuation, ends, np.flatnonzero((ends[:, 1] < 0) & is_reliable))
    return (*low, *harming, *group_findings(valuation))


def _low(valuation: Valuation, intervals: Floats) -> Iterator[tuple[int, Finding]]:
    known = np.flatnonzero(~np.isnan(valuation.values))
    for client in known.tolist() if len(known) >= FEWEST else []:
        others = valuation.values[known[known != client]]
        own = float(intervals[client, 1] - intervals[client, 0]) / (2 * HALF_WIDTH)
        confidence = confidence_above(-float(valuation.values[client]), -others, own)
        if confidence >= LEAST_CONFIDENCE:
            middle = float(np.median(others))
            yield client, _finding(LOW_VALUE, valuation, client, intervals, confidence, middle=middle)


def _harming(valuation: Valuation, intervals: Floats, below: Indices) -> Iterator[Finding]:
    """One finding for each client, or one for all if there are many."""
    deviations = (intervals[below, 1] - intervals[below, 0]) / (2 * HALF_WIDTH)
    with np.errstate(divide="ignore"):
        chances = ndtr(valuation.values[below] / deviations)
    found = [confidence_of(chance) for chance in chances.tolist()]
    if len(below) <= MOST_SEPARATE:
        for client, confidence in zip(below.tolist(), found, strict=True):
            yield replace(
                _finding(HARM, valuation, client, intervals, confidence), detail=whom_it_harms(valuation, client)
            )
        return
    ends = {"low": float(intervals[below, 0].min()), "high": float(intervals[below, 1].max())}
    evidence = {"value": float(valuation.values[below].mean()), **ends}
    yield Finding(HARM, tuple(valuation.clients[k] for k in below), (), 0, evidence, min(found))


def _finding(
    kind: Kind, valuation: Valuation, client: int, intervals: Floats, confidence: float, **more: float
) -> Finding:
    low, high = intervals[client].tolist()
    evidence = {"value": float(valuation.values[client]), "low": low, "high": high, **more}
    return Finding(kind, (valuation.clients[client],), (), 0, evidence, confidence)
