"""Findings: what the clients' answers and values show that a reader should know.

A new kind of finding is a module with its `Kind` and a `detect` function, and a row in `DETECTORS`. Detectors run in
this order, and each gets the evidence of those before it.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace

import numpy as np

from fedworth.arrays import Floats
from fedworth.findings import copies, followers, groups, nodes, norms, similarity
from fedworth.findings.copies import ECHO, LATE_COPY, REPLAY, SAME_MODEL, SCALED_COPY, STALE_MODEL
from fedworth.findings.finding import FEWEST, Detected, Evidence, Finding, Kind, Level, gathered
from fedworth.findings.followers import FOLLOWER
from fedworth.findings.groups import MANY_GROUPS
from fedworth.findings.lengths import AS_SENT, EQUAL, LONG, length_evidence
from fedworth.findings.nodes import CONTESTED_NAME, SHARED_NODE
from fedworth.findings.norms import LARGE_UPDATE, MANY_SAMPLES, NO_UPDATE
from fedworth.findings.similarity import SIMILAR
from fedworth.findings.traces import RoundTrace, trace_of
from fedworth.findings.values import HARM, LOW_VALUE, NEGATIVE, value_findings
from fedworth.ledger.ledger import Ledger
from fedworth.valuation.valuation import Valuation

Detect = Callable[[Ledger, list[RoundTrace], list[Evidence]], Detected]

DETECTORS: tuple[tuple[Detect, tuple[Kind, ...]], ...] = (
    (norms.detect, (LARGE_UPDATE, MANY_SAMPLES, NO_UPDATE)),
    (copies.detect, copies.REPEATS),
    (similarity.detect, (SIMILAR,)),
    (followers.detect, (FOLLOWER,)),
    (nodes.detect, (CONTESTED_NAME, SHARED_NODE)),
)
OF_ANSWERS = tuple(kind for _, kinds in DETECTORS for kind in kinds)
"""Kinds that are found in the clients' answers."""

MODELS = "models, and clients of a vertical federation send embeddings"

OF_VALUES = (LOW_VALUE, HARM, NEGATIVE, MANY_GROUPS)
"""Kinds that are found in the values."""

KINDS = {kind.name: kind for kind in (*OF_ANSWERS, LONG, *OF_VALUES)}

__all__ = [
    "CONTESTED_NAME", "DETECTORS", "ECHO", "FOLLOWER", "HARM", "KINDS", "LARGE_UPDATE", "LATE_COPY", "LONG",
    "LOW_VALUE", "MANY_GROUPS", "MANY_SAMPLES", "NEGATIVE", "NO_UPDATE", "OF_ANSWERS", "OF_VALUES", "REPLAY",
    "SAME_MODEL", "SCALED_COPY", "SHARED_NODE", "SIMILAR", "STALE_MODEL", "Finding", "Kind", "Level", "kinds_without",
    "look", "look_at_lengths", "looked_for_in_values", "value_findings",
]  # fmt: skip


def kinds_without(looked_for: Iterable[Kind], kinds: Iterable[Kind], *, is_vertical: bool) -> tuple[Kind, ...]:
    """Those of some kinds that were not looked for; of embeddings, since all kinds in answers compare models."""
    made, of_answers = {kind.name for kind in looked_for}, {kind.name for kind in OF_ANSWERS}
    missing = (kind for kind in kinds if kind.name not in made)
    return tuple(replace(kind, needs=MODELS) if is_vertical and kind.name in of_answers else kind for kind in missing)


def look(ledger: Ledger) -> tuple[tuple[Finding, ...], tuple[Kind, ...]]:
    """The findings in a ledger's answers, and the kinds that its data allow to look for."""
    if ledger.form is not None:  # embeddings of different features cannot be compared as models are
        return (), ()
    traces = [trace_of(ledger.open_round(round_index)) for round_index in range(ledger.n_rounds)]
    evidence: list[Evidence] = []
    looked_for: list[Kind] = []
    for detect, _ in DETECTORS:
        found, kinds = detect(ledger, traces, evidence)
        evidence += found
        looked_for += kinds
    return tuple(gathered(ledger, OF_ANSWERS, evidence)), tuple(kind for kind in OF_ANSWERS if kind in looked_for)


def look_at_lengths(
    ledger: Ledger, valuations: Iterable[Valuation], lengths: Callable[[], Floats]
) -> tuple[tuple[Finding, ...], tuple[Kind, ...]]:
    """Who gains by longer updates, and whether that was looked for; `lengths` are relative to the round's median."""
    by_method = {valuation.method: valuation for valuation in valuations}
    if AS_SENT not in by_method or EQUAL not in by_method:
        return (), ()
    return tuple(gathered(ledger, (LONG,), [*length_evidence(by_method[AS_SENT], by_method[EQUAL], lengths())])), (
        LONG,
    )


def looked_for_in_values(valuation: Valuation) -> tuple[Kind, ...]:
    """The kinds that can be found in these values: none without known errors, low values only among enough clients."""
    if valuation.uncertainty is None:
        return ()
    low = (LOW_VALUE,) if np.isfinite(valuation.values).sum() >= FEWEST else ()
    negative = () if valuation.marginals is None else (HARM, NEGATIVE)
    return (*low, *negative, *((MANY_GROUPS,) if groups.looked_for(valuation) else ()))
