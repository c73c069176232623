"""What values show that a reader should know: clients far below the others, and clients that made the model worse.

In: a valuation. Out: findings, each with its interval and how sure it is.

    low value   v_i lies far below the others' median m: as noisy data or labels do, and data unlike the test data.
                t = (m − v_i) / √(s² + sd_i²), with s the others' robust spread (1.48 times the median distance from m)
                and sd_i the client's own standard error; held against Student's t with .4 (n − 1) degrees of freedom
                (what is known of a robust spread), and counted for all n clients
    harm        the whole 90 % interval lies below zero; sure is the chance that the value does

Where clients differ by nature, as with two classes each, s is large and a low value is nothing odd. Of fewer than five
clients nothing is called low. And a client whose interval is known to be too narrow is not accused by it.
"""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, stdtr

from fedworth.arrays import Floats
from fedworth.findings import LEAST_SURE, Finding, FindingKind, sure_of
from fedworth.valuation.uncertainty import HALF_WIDTH
from fedworth.valuation.valuation import Valuation
from fedworth.valuation.worth import Covered

FEWEST = 5
MOST_NAMED = 8
"""Of clients that harm; more are one finding."""

ROBUST = 1.4826
FREEDOM = 0.4
"""Degrees of freedom a client: a robust spread is as good as an ordinary one of so many fewer."""


def value_findings(valuation: Valuation) -> tuple[Finding, ...]:
    """What the values show; nothing where it is not known how far off they may be."""
    if valuation.covered is Covered.UNKNOWN:
        return ()
    ends, doubted = valuation.intervals, _doubted(valuation)
    intervals = np.stack([valuation.values] * 2, axis=1) if ends is None else ends
    return (*_low(valuation, intervals, doubted), *_harming(valuation, intervals, doubted))


def _doubted(valuation: Valuation) -> NDArray[np.bool_]:
    """(n_clients,): whose interval is too narrow to say how sure anything is."""
    told = () if valuation.uncertainty is None else valuation.uncertainty.doubts
    named = {doubt.client for doubt in told}
    return np.array([None in named or client in named for client in valuation.clients], dtype=bool)


def _low(valuation: Valuation, intervals: Floats, doubted: NDArray[np.bool_]) -> Iterator[Finding]:
    known = np.flatnonzero(~np.isnan(valuation.values))
    for client in known.tolist() if len(known) >= FEWEST else []:
        others = valuation.values[known[known != client]]
        middle = float(np.median(others))
        spread = ROBUST * float(np.median(np.abs(others - middle)))
        own = float(intervals[client, 1] - intervals[client, 0]) / (2 * HALF_WIDTH)
        far = np.hypot(spread, own)
        if far > 0:
            chance = float(stdtr(FREEDOM * len(others), (valuation.values[client] - middle) / far))
            sure = sure_of(len(known) * chance)
            if sure >= LEAST_SURE and not doubted[client]:
                yield _finding(FindingKind.LOW_VALUE, valuation, client, intervals, sure, middle=middle)


def _harming(valuation: Valuation, intervals: Floats, doubted: NDArray[np.bool_]) -> Iterator[Finding]:
    """One finding a client; one for all where there are many."""
    below = np.flatnonzero((intervals[:, 1] < 0) & ~doubted)
    deviations = (intervals[below, 1] - intervals[below, 0]) / (2 * HALF_WIDTH)
    with np.errstate(divide="ignore"):
        chances = ndtr(valuation.values[below] / deviations)
    sure = [sure_of(chance) if width > 0 else 1.0 for chance, width in zip(chances.tolist(), deviations, strict=True)]
    if len(below) <= MOST_NAMED:
        harms = zip(below.tolist(), sure, strict=True)
        yield from (_finding(FindingKind.HARM, valuation, client, intervals, chance) for client, chance in harms)
        return
    ends = {"low": float(intervals[below, 0].min()), "high": float(intervals[below, 1].max())}
    evidence = {"value": float(valuation.values[below].mean()), **ends}
    yield Finding(FindingKind.HARM, tuple(valuation.clients[k] for k in below), (), 0, evidence, min(sure))


def _finding(
    kind: FindingKind, valuation: Valuation, client: int, intervals: Floats, sure: float, **more: float
) -> Finding:
    low, high = intervals[client].tolist()
    evidence = {"value": float(valuation.values[client]), "low": low, "high": high, **more}
    return Finding(kind, (valuation.clients[client],), (), 0, evidence, sure)
