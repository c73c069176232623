"""What a report says beside its values, made again from the ledger and the utilities; and where it says otherwise.

In: a report as read, and what stands beside it. Out: the report as it would be made now, and the first place where
the document on disk differs from that in meaning: a share, a rank, a chance, a round, a finding, a sentence.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from fedworth.findings import OF_ANSWERS, findings
from fedworth.games.matrix import UtilityMatrix
from fedworth.ledger.ledger import Ledger
from fedworth.pipeline.report_on import coverage_of, notes_of
from fedworth.pipeline.stages import rounds_of
from fedworth.report.report import Report
from fedworth.valuation.valuation import Valuation

ROUGHLY = 1e-5
"""Numbers may differ by so much of the largest beside them: other processors, and other numbers of threads, add in
other orders, and what follows from a solved system (intervals, chances) has that many times over. Whole numbers may
not."""


def of_utilities(
    report: Report,
    valuations: tuple[Valuation, ...],
    matrix: UtilityMatrix,
    ledger: Ledger,
) -> Report:
    """The report with what its utilities give: valuations, coverage, rounds."""
    numbers = tuple(entry.number for entry in ledger.entries[: matrix.n_rounds])
    rounds = rounds_of(matrix, numbers)
    return replace(report, valuations=valuations, coverage=coverage_of(matrix), rounds=rounds)


def of_ledger(report: Report, matrix: UtilityMatrix, ledger: Ledger) -> Report:
    """The report with what its ledger gives: notes, findings."""
    notes = notes_of(ledger, matrix, is_valued=bool(report.valuations))
    return replace(report, notes=notes, findings=findings(ledger, is_kept=False), looked_for=OF_ANSWERS)


def difference(found: Any, expected: Any, where: str = "") -> str:
    """The first place where two documents say different things, and what each says; nothing if they say the same."""
    if isinstance(found, dict) and isinstance(expected, Mapping) and found.keys() == expected.keys():
        parts = ((f"{where}.{key}".lstrip("."), found[key], expected[key]) for key in expected)
    elif isinstance(found, list) and isinstance(expected, list | tuple) and len(found) == len(expected):
        if _are_close(found, expected):
            return ""
        parts = ((f"{where}[{k}]", *pair) for k, pair in enumerate(zip(found, expected, strict=True)))
    elif _are_close([found], [expected]) or (type(found) is type(expected) and found == expected):
        return ""
    else:
        return f"{where} is {_short(found)}, expected {_short(expected)}"
    return next((text for at, one, other in parts if (text := difference(one, other, at))), "")


def _are_close(found: Sequence[Any], expected: Sequence[Any]) -> bool:
    """Whether these are numbers, or nothing in the same places, and the same but for rounding."""
    pairs = [pair for pair in zip(found, expected, strict=True) if pair != (None, None)]
    numbers = [number for pair in pairs for number in pair]
    if not numbers or any(isinstance(x, bool) or not isinstance(x, int | float) for x in numbers):
        return False
    if all(isinstance(x, int) for x in numbers):
        return all(one == other for one, other in pairs)
    scale = max(abs(other) for _, other in pairs)
    return math.isfinite(scale) and all(abs(one - other) <= ROUGHLY * scale for one, other in pairs)


def _short(value: Any) -> str:
    return str(value) if len(str(value)) <= 60 else f"{str(value)[:60]}…"
