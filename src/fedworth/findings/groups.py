"""What values by group of test samples show: clients that help unusually many groups, and whom a harmful client harms.

Where every client has few classes, its update helps these and harms the others. Wrong labels change that: they show
the model classes that the client does not have, so it harms fewer. With P and N the sums of a client's positive and
negative values by group,

    z_i = log(P_i / N_i),    t = (z_i − m) / √(s² + sd_i²)

m is the others' median, s their robust spread, and sd_i the standard error of z_i (`confidence_above`). It is looked
for only where clients have few groups: half of the others clearly harm at least 60 % of the groups. A client that
really has more classes than the others looks the same, and the finding says so.
"""

from collections.abc import Iterator

import numpy as np

from fedworth.arrays import Floats, Indices
from fedworth.findings.finding import FEWEST, LEAST_CONFIDENCE, Finding, Kind, Level, confidence_above
from fedworth.valuation.groups import GroupValues
from fedworth.valuation.valuation import Valuation

HARMED = 0.6
"""Part of the groups that half of the others must clearly harm."""

LEAST_PART = 1e-3
"""P and N count as at least this part of P + N, so that z is finite."""

MANY_GROUPS = Kind(
    "many groups",
    Level.NOTE,
    sentence="{clients} harms few groups of test samples where the others harm most: {own} % of its effects on groups "
    "are positive, of the others {usual} %",
    basis="spread of the others, and its own standard error",
    title="helps unusually many groups of test samples",
    why="Each of the others helps few groups and harms the rest. Wrong labels look like this, because they show the "
    "model groups that it does not have. So do data that are really of more kinds than the others’.",
    action="Ask which kinds of data it has. If they are as few as the others’, have its labels checked.",
    client_title="Your data help unusually many groups",
    client_action="If you have as few kinds of data as the others, check how your labels are coded.",
    needs="five {nouns} with values by group whose errors are known, most of which harm most groups",
    is_of_values=True,
)


def looked_for(valuation: Valuation) -> bool:
    """Whether there are enough clients, and most of them have data of few groups."""
    if valuation.groups is None or len(_known(valuation.groups)) < FEWEST:
        return False
    harmed = (valuation.groups.signs[_known(valuation.groups)] < 0).mean(axis=1)  # part of the groups, by client
    return float(np.median(harmed)) >= HARMED


def group_findings(valuation: Valuation) -> Iterator[Finding]:
    """Clients that help far more groups than the others."""
    if valuation.groups is None or not looked_for(valuation):
        return
    groups, known = valuation.groups, _known(valuation.groups)
    shares, ratios, errors = _ratios(groups)
    for client in known.tolist():
        others = known[known != client]
        confidence = confidence_above(float(ratios[client]), ratios[others], float(errors[client]))
        if confidence >= LEAST_CONFIDENCE:
            evidence = {"own": 100 * float(shares[client]), "usual": 100 * float(np.median(shares[others]))}
            yield Finding(MANY_GROUPS, (valuation.clients[client],), (), 0, evidence, confidence)


def whom_it_harms(valuation: Valuation, client: int) -> str:
    """Which groups a client clearly harms and helps, in a sentence; empty without groups."""
    groups = valuation.groups
    if groups is None or np.isnan(groups.half_widths[client]).any():
        return ""
    own, n_helping = groups.signs[client], (groups.signs > 0).sum(axis=0)
    n_harmed, n, helped = int((own < 0).sum()), len(own), np.flatnonzero(own > 0).tolist()
    if not helped:
        harmed = f"every {groups.by}" if n_harmed == n else f"{n_harmed} of {n} by {groups.by}, and helps none"
        return f"It clearly harms {harmed}."
    alone = [groups.names[k] for k in helped if n_helping[k] == 1]
    only = f" (it alone helps {', '.join(alone)})" if alone else ""
    named = ", ".join(groups.names[k] for k in helped)
    return (
        f"It clearly helps {groups.by} {named}{only} and harms {n_harmed} of {n}: its data are unlike the test data as "
        "a whole, not bad for all of them."
    )


def _known(groups: GroupValues) -> Indices:
    """The clients whose values by group have known errors."""
    return np.flatnonzero(np.isfinite(groups.standard_deviations).all(axis=1) & np.isfinite(groups.values).all(axis=1))


def _ratios(groups: GroupValues) -> tuple[Floats, Floats, Floats]:
    """P / (P + N), its log odds z, and the standard error of z, (n_clients,) each."""
    sizes = np.maximum(np.abs(groups.values).sum(axis=1), 1e-300)  # P + N
    shares = np.maximum(groups.values, 0).sum(axis=1) / sizes
    slopes = ((groups.values > 0) - np.sign(groups.values) * shares[:, None]) / sizes[:, None]  # of the share, by group
    errors = np.sqrt(((slopes * groups.standard_deviations) ** 2).sum(axis=1))
    bounded = np.clip(shares, LEAST_PART, 1 - LEAST_PART)
    return shares, np.log(bounded / (1 - bounded)), errors / (bounded * (1 - bounded))
