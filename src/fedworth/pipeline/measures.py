"""Measures side by side: every way to value clients, on one ledger and one oracle, and what each cost.

In: a ledger, a task, names of measures. Out: for each its values, how many utilities it measured, the processor time it
took; where the truth is known, how far from it the values are.

Every measure starts from nothing, without what others have measured, so that its cost is its own.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, get_args

import numpy as np

from fedworth.completion.completion import Completion
from fedworth.completion.models import complete_by_models, predicted_game
from fedworth.errors import CompletionError, TooManyError, UsageError, ValuationError
from fedworth.games.matrix import UtilityMatrix
from fedworth.games.observe import observe, observe_and_count
from fedworth.games.planning.choose import choose_plan
from fedworth.ledger.ledger import Ledger
from fedworth.names import COMPARED, ConceptName, RivalName, ValuedBy, checked_name
from fedworth.oracle.choices import oracle_named
from fedworth.oracle.oracle import TaskOracle
from fedworth.oracle.weighting import participation
from fedworth.pipeline.stages import ValuingSettings, factors_of
from fedworth.storage import Place, Progress, silent
from fedworth.task.task import Task
from fedworth.valuation.ranking import rank_correlation
from fedworth.valuation.rivals import CountedGame, draw_concept, recorded, value_by_concept, value_by_rival
from fedworth.valuation.valuation import Valuation
from fedworth.valuation.value import value

EVERYDAY: tuple[ValuedBy, ...] = tuple(name for name in COMPARED if name != "retraining")
"""What is compared unless asked otherwise: retraining takes a training for every coalition."""


@dataclass(frozen=True)
class MeasureRow:
    """One measure: what it says, or why it says nothing; what it cost; how far from the truth it is."""

    name: ValuedBy
    valuation: Valuation | None
    refusal: str | None
    n_evaluations: int
    seconds: float
    error: float | None = None
    correlation: float | None = None
    gap: float | None = None  # largest difference of two copies, as a part of the spread

    def document(self) -> dict[str, Any]:
        """The row as JSON."""
        return {
            "measure": self.name,
            "values": None if self.valuation is None else self.valuation.document()["values"],
            "refusal": self.refusal,
            "evaluations": self.n_evaluations,
            "cpu_seconds": self.seconds,
            "error": self.error,
            "rank_correlation": self.correlation,
            "copies_gap": self.gap,
        }


def compare_measures(
    ledger: Ledger,
    task: Task,
    settings: ValuingSettings,
    names: Sequence[str] = EVERYDAY,
    *,
    copies: Sequence[tuple[str, str]] = (),
    with_truth: bool = False,
    data_folder: Place | None = None,
    progress: Progress = silent,
) -> tuple[MeasureRow, ...]:
    """Value the ledger by each of these measures.

    Args:
        ledger: The recorded federation.
        task: What its models are judged by.
        settings: How it is valued.
        names: The measures; all that take seconds, unless named.
        copies: Pairs of clients that hold the same data, if any are known.
        with_truth: Measure the truth too, where the ledger has kept the absent clients' models.
        data_folder: Where data sets lie; `$FEDWORTH_DATA` if it is not given.
        progress: Called with what is being done, how many parts are done and how many there are.

    Returns:
        A row a measure: its values, its distance from the truth, its cost, or why it was refused.

    Example:
        fedworth.compare_measures(ledger, task, fedworth.ValuingSettings(), ["comfedsv", "banzhaf"])
    """
    if not names:
        raise UsageError("no measure to compare; name one or more of " + ", ".join(COMPARED))
    wanted: list[ValuedBy] = [checked_name("measure of worth", name) for name in names]
    oracle = oracle_named(settings.oracle, task, settings.measure)
    work = _Work(ledger.without(settings.without), oracle, settings, data_folder)
    truth = work.truth() if with_truth else None
    rows = []
    for n_done, name in enumerate(wanted):
        progress("comparing measures", n_done, len(wanted))
        rows.append(_against(work.row(name), truth, copies))
    progress("comparing measures", len(wanted), len(wanted))
    return tuple(rows)


@dataclass(frozen=True)
class _Work:
    """One ledger, and what measures it."""

    ledger: Ledger
    oracle: TaskOracle
    settings: ValuingSettings
    data_folder: Place | None

    def truth(self) -> Valuation:
        plan = choose_plan(participation(self.ledger), self.settings.plan, with_truth=True, seed=self.settings.seed)
        return value(observe(self.ledger, self.oracle, plan, weighting=self.settings.weighting), "truth")

    def row(self, name: ValuedBy) -> MeasureRow:
        """The measure's values and cost, or its refusal."""
        start = time.process_time()
        try:
            valuation, n_evaluations = self._rival(name) if name in get_args(RivalName) else self._own(name)
        except (CompletionError, ValuationError, TooManyError) as error:
            return MeasureRow(name, None, str(error), 0, time.process_time() - start)
        return MeasureRow(name, valuation, None, n_evaluations, time.process_time() - start)

    def _rival(self, name: Any) -> tuple[Valuation, int]:
        settings = self.settings
        federation = recorded(
            self.ledger,
            self.oracle,
            weighting=settings.weighting,
            as_average=settings.as_average,
            data_folder=self.data_folder,
        )
        made = value_by_rival(federation, name, seed=settings.seed)
        return made.valuation, made.n_evaluations

    def _own(self, name: Any) -> tuple[Valuation, int]:
        """A measure of the seen utilities, or of their completion."""
        settings = self.settings
        plan = choose_plan(participation(self.ledger), settings.plan, seed=settings.seed)
        seen = observe_and_count(
            self.ledger, self.oracle, plan, weighting=settings.weighting, as_average=settings.as_average
        )
        if name in ("fedsv", "heard-round", "leave-one-out"):
            return value(seen.matrix, name), seen.n_evaluations
        if name in get_args(ConceptName) and settings.completion == "models":
            made = self._drawn(name, seen.matrix)
            if made is not None:
                return made[0], seen.n_evaluations + made[1]
        if name == "comfedsv-factors" or settings.completion == "factors":
            completion: Completion = factors_of(seen.matrix, settings)
            n_more = 0
        else:
            completion = complete_by_models(
                self.ledger, self.oracle, seen.matrix, weighting=settings.weighting, as_average=settings.as_average
            )
            n_more = int(completion.summary()["n_evaluations"])
        if name in get_args(ConceptName):
            return value_by_concept(seen.matrix, completion, name), seen.n_evaluations + n_more
        return value(seen.matrix, name, completion=completion), seen.n_evaluations + n_more

    def _drawn(self, name: ConceptName, seen: UtilityMatrix) -> tuple[Valuation, int] | None:
        """A concept of many clients' completed game, from drawn coalitions; None of few clients."""
        settings = self.settings
        made = predicted_game(
            self.ledger, self.oracle, seen, weighting=settings.weighting, as_average=settings.as_average
        )
        if made is None:
            return None
        game = CountedGame(len(made.heard), made)
        return draw_concept(seen, game, name, seed=settings.seed), game.n_evaluations * made.n_rounds


def _against(row: MeasureRow, truth: Valuation | None, copies: Sequence[tuple[str, str]]) -> MeasureRow:
    """The row with what the truth and the copies say of it."""
    if row.valuation is None:
        return row
    values = row.valuation.values
    spread = float(np.nanstd(values)) or 1.0
    place = row.valuation.clients.index
    gaps = [abs(float(values[place(a)] - values[place(b)])) / spread for a, b in copies]
    gap = max(gaps, default=None)
    if truth is None:
        return replace(row, gap=gap)
    ranked = rank_correlation(values.tolist(), truth.values.tolist())
    return replace(row, gap=gap, correlation=ranked, error=None if row.name == "cosine" else _error(values, truth))


def _error(values: Any, truth: Valuation) -> float | None:
    """‖v − v* ‖ / ‖v*‖, both centred: 1 is as good as to say that all are worth the same."""
    known = ~np.isnan(values) & ~np.isnan(truth.values)
    ours, theirs = (side[known] - side[known].mean() for side in (values, truth.values)) if known.any() else ((), ())
    scale = float(np.linalg.norm(theirs))
    return float(np.linalg.norm(np.subtract(ours, theirs))) / scale if scale > 0 else None
