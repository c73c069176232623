"""Methods side by side on one ledger: their values, their costs, and how far from the truth they are."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fedworth.arrays import Floats
from fedworth.errors import CompletionError, UsageError, ValuationError
from fedworth.ledger.ledger import Ledger
from fedworth.storage import Progress, silent
from fedworth.task.task import Task
from fedworth.valuation.federation import Federation
from fedworth.valuation.methods import method_named, methods, unfit
from fedworth.valuation.ranking import rank_correlation
from fedworth.valuation.settings import ValuationSettings, WorkSettings
from fedworth.valuation.valuation import Valuation


@dataclass(frozen=True)
class ComparedMethod:
    """One method: its values or why it gave none, its cost, and how far from the truth it is."""

    method: str
    valuation: Valuation | None
    refusal: str | None
    n_evaluations: int
    seconds: float  # of processor time
    error: float | None = None
    rank_correlation: float | None = None
    copies_gap: float | None = None  # largest difference of two copies, over the spread of the values

    def document(self) -> dict[str, Any]:
        values = None if self.valuation is None else self.valuation.document()["values"]
        return {
            "method": self.method,
            "values": values,
            "refusal": self.refusal,
            "evaluations": self.n_evaluations,
            "cpu_seconds": self.seconds,
            "error": self.error,
            "rank_correlation": self.rank_correlation,
            "copies_gap": self.copies_gap,
        }


def everyday_methods() -> list[str]:
    """The methods that `compare` takes unless asked otherwise."""
    return [name for name, method in methods().items() if not (method.is_slow or method.needs_truth)]


def compare(
    ledger: Ledger,
    task: Task,
    settings: ValuationSettings | None = None,
    names: Sequence[str] | None = None,
    *,
    copies: Sequence[tuple[str, str]] = (),
    work: WorkSettings | None = None,
    progress: Progress = silent,
) -> tuple[ComparedMethod, ...]:
    """Value a ledger by several methods, each without results of the others, so that costs can be compared.

    Args:
        ledger: The recorded federation.
        task: What its models are judged by.
        settings: How it is valued.
        names: The methods (default: all that take seconds).
        copies: Pairs of clients that hold the same data, if any are known.
        work: Where coalitions are measured.
        progress: Called with what is being done, how many parts are done and how many there are.

    Returns:
        A row for each method: its values, its distance from the truth if known, its cost, or why it was refused.

    Example:
        fedworth.compare(ledger, task, names=["comfedsv-models", "banzhaf"])
    """
    is_vertical = ledger.form is not None
    if names is None:
        names = [name for name in everyday_methods() if not unfit(name, is_vertical=is_vertical)]
    if not names:
        raise UsageError("no method to compare; name one or more of " + ", ".join(methods()))
    for name in names:
        method_named(name)
    work = replace(work or WorkSettings(), cache=False)
    federation = Federation(ledger, task, settings, work=work)
    truth = federation.value("truth") if federation.recorded.has_truth else None
    rows = []
    for n_done, name in enumerate(names):
        progress("comparing methods", n_done, len(names))
        fresh, start = Federation(ledger, task, settings, work=work), time.process_time()
        try:
            valuation = fresh.value(name)
            row = ComparedMethod(name, valuation, None, valuation.n_evaluations, time.process_time() - start)
        except (CompletionError, ValuationError) as error:
            row = ComparedMethod(name, None, str(error), 0, time.process_time() - start)
        rows.append(_against(row, truth, copies))
    progress("comparing methods", len(names), len(names))
    return tuple(rows)


def _against(row: ComparedMethod, truth: Valuation | None, copies: Sequence[tuple[str, str]]) -> ComparedMethod:
    if row.valuation is None:
        return row
    values, place = row.valuation.values, row.valuation.clients.index
    spread = float(np.nanstd(values)) or 1.0
    gap = max((abs(float(values[place(a)] - values[place(b)])) / spread for a, b in copies), default=None)
    if truth is None:
        return replace(row, copies_gap=gap)
    ranked = rank_correlation(values.tolist(), truth.values.tolist())
    has_unit = row.method != "cosine"  # a similarity is in no unit of utility
    error = centred_error(values, truth.values) if has_unit else None
    return replace(row, copies_gap=gap, rank_correlation=ranked, error=error)


def centred_error(values: Floats, truth: Floats) -> float | None:
    """‖v − v*‖ / ‖v*‖, both centred: 1 is no better than calling all clients equal."""
    known = ~np.isnan(values) & ~np.isnan(truth)
    if not known.any():
        return None
    ours, theirs = (side[known] - side[known].mean() for side in (values, truth))
    scale = float(np.linalg.norm(theirs))
    return float(np.linalg.norm(ours - theirs)) / scale if scale > 0 else None
