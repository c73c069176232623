"""Findings: what the clients' answers and values show that a reader should know.

A new kind of finding is a module with its `Kind` and a `detect` function, and a row in `DETECTORS`. Detectors run in
this order, and each gets the evidence of those before it; findings are reported in the order of their kinds.
"""

from collections.abc import Callable, Iterable

from fedworth.findings import copies, nodes, norms, similarity
from fedworth.findings.copies import ECHO, LATE_COPY, REPLAY, SAME_MODEL, SCALED_COPY, STALE_MODEL
from fedworth.findings.finding import Evidence, Finding, Kind, Level, gathered
from fedworth.findings.nodes import CONTESTED_NAME, SHARED_NODE
from fedworth.findings.norms import LARGE_UPDATE, MANY_SAMPLES, NO_UPDATE
from fedworth.findings.similarity import SIMILAR
from fedworth.findings.traces import RoundTrace, trace_of
from fedworth.findings.values import HARM, LOW_VALUE, value_findings
from fedworth.ledger.ledger import Ledger

Detector = Callable[[Ledger, list[RoundTrace], list[Evidence]], Iterable[Evidence]]

DETECTORS: tuple[tuple[Detector, tuple[Kind, ...]], ...] = (
    (norms.detect, (LARGE_UPDATE, MANY_SAMPLES, NO_UPDATE)),
    (copies.detect, copies.REPEATS),
    (similarity.detect, (SIMILAR,)),
    (nodes.detect, (CONTESTED_NAME, SHARED_NODE)),
)
OF_ANSWERS = tuple(kind for _, kinds in DETECTORS for kind in kinds)
"""Kinds that are found in the clients' answers."""

OF_VALUES = (LOW_VALUE, HARM)
"""Kinds that are found in the values."""

KINDS = {kind.name: kind for kind in (*OF_ANSWERS, *OF_VALUES)}

__all__ = [
    "CONTESTED_NAME", "DETECTORS", "ECHO", "HARM", "KINDS", "LARGE_UPDATE", "LATE_COPY", "LOW_VALUE", "MANY_SAMPLES",
    "NO_UPDATE", "OF_ANSWERS", "OF_VALUES", "REPLAY", "SAME_MODEL", "SCALED_COPY", "SHARED_NODE", "SIMILAR",
    "STALE_MODEL", "Finding", "Kind", "Level", "findings", "value_findings",
]  # fmt: skip


def findings(ledger: Ledger, *, is_kept: bool = True) -> tuple[Finding, ...]:
    """What the answers in a ledger show; `is_kept` uses the traces beside the ledger, and adds missing ones."""
    traces = [trace_of(ledger, round_index, is_kept=is_kept) for round_index in range(ledger.n_rounds)]
    evidence: list[Evidence] = []
    for detect, _ in DETECTORS:
        evidence += detect(ledger, traces, evidence)
    return tuple(gathered(ledger, OF_ANSWERS, evidence))
