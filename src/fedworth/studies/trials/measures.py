"""What `measures` reads off a trial: every measure's values and cost on one ledger, and how near the truth they are."""

from fedworth.federation.simulation.simulate import task_of
from fedworth.ledger.ledger import Ledger
from fedworth.pipeline.measures import EVERYDAY, compare_measures
from fedworth.pipeline.stages import ValuingSettings
from fedworth.studies.trials.trial import Bench, Reading, Trial, with_ledger


def read_measures(trial: Trial, bench: Bench) -> Reading:
    """The rows of `fedworth compare LEDGER --methods all`."""
    return with_ledger(trial, bench, lambda ledger: _read(trial, ledger, bench))


def _read(trial: Trial, ledger: Ledger, bench: Bench) -> Reading:
    copies = [(ledger.clients[a], ledger.clients[b]) for a, b in trial.federation.copies]
    rows = compare_measures(
        ledger,
        task_of(ledger, data_folder=bench.data_folder),
        ValuingSettings(),
        EVERYDAY,
        copies=copies,
        with_truth=True,
        data_folder=bench.data_folder,
    )
    return {"measures": [row.document() for row in rows]}
