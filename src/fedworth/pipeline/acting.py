"""Values for a server that acts on them while it trains: to weigh, to choose or to drop clients.

In: the ledger that its recorder is writing, a task, a method. Out: a value for each client's name, after the rounds so
far. What was measured is kept beside the ledger, so a round costs its own cells only; the oracle of a task is kept too.
"""

import math
from pathlib import Path

from fedworth.federation.task import Task
from fedworth.ledger.ledger import open_ledger
from fedworth.names import MethodName
from fedworth.pipeline.report_on import oracle_of
from fedworth.pipeline.stages import ValuingSettings, measure
from fedworth.valuation.value import value


def values_so_far(
    folder: Path, task: Task, *, method: MethodName = "fedsv", settings: ValuingSettings | None = None
) -> dict[str, float]:
    """What each client is worth by the rounds that are recorded; who cannot be valued yet is not in it."""
    settings = settings or ValuingSettings()
    ledger = open_ledger(folder)
    oracle = oracle_of(settings.oracle, task, settings.measure)
    matrix = measure(ledger, oracle, settings, n_checked=ledger.n_rounds)  # this very process wrote them
    valued = value(matrix, method, unseen=settings.unseen, strict=settings.strict)
    pairs = zip(valued.clients, valued.values.tolist(), strict=True)
    return {name: worth for name, worth in pairs if not math.isnan(worth)}
