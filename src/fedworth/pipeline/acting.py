"""Values for a server that acts on them while it trains: to weigh, to choose or to drop clients.

In: the ledger that its recorder is writing, a task, a method. Out: a value for each client's name, after the rounds so
far: to the bit those of `fedworth report` on the ledger as it is. What was measured is kept beside the ledger, so a
round of FedSV, the default, costs its own cells only; the oracle of a task is kept too. ComFedSV is completed from
nothing each time, since a completion that grew with the rounds is not the one of a report: it costs all rounds so far.
"""

import math
from pathlib import Path

from fedworth.completion.completion import Completion
from fedworth.completion.models import complete_by_models
from fedworth.games.matrix import UtilityMatrix
from fedworth.ledger.ledger import Ledger, open_ledger
from fedworth.names import MethodName
from fedworth.pipeline.report_on import oracle_of
from fedworth.pipeline.stages import ValuingSettings, factors_of, measure
from fedworth.task.task import Task
from fedworth.valuation.value import value


def values_so_far(
    folder: Path, task: Task, *, method: MethodName = "fedsv", settings: ValuingSettings | None = None
) -> dict[str, float]:
    """What each client is worth by the rounds that are recorded; who cannot be valued yet is not in it."""
    settings = settings or ValuingSettings()
    ledger = open_ledger(folder).without(settings.without)
    oracle = oracle_of(settings.oracle, task, settings.measure)
    matrix = measure(ledger, oracle, settings, n_checked=ledger.n_rounds)  # this very process wrote them
    completion = _completion(method, ledger, task, matrix, settings)
    valued = value(matrix, method, completion=completion, unseen=settings.unseen, strict=settings.strict)
    pairs = zip(valued.clients, valued.values.tolist(), strict=True)
    return {name: worth for name, worth in pairs if not math.isnan(worth)}


def _completion(
    method: MethodName, ledger: Ledger, task: Task, matrix: UtilityMatrix, settings: ValuingSettings
) -> Completion | None:
    """What a method rests on, the same as in a report; None of a method that rests on utilities alone."""
    if method == "comfedsv" and settings.completion == "models":
        oracle = oracle_of(settings.oracle, task, settings.measure)
        return complete_by_models(ledger, oracle, matrix, weighting=settings.weighting, as_average=settings.as_average)
    return factors_of(matrix, settings) if method in ("comfedsv", "comfedsv-factors") else None
