"""What `measures` reads off a trial: every measure's values and cost on one ledger, and how near the truth they are."""

from fedworth.ledger.ledger import Ledger
from fedworth.pipeline.measures import EVERYDAY, compare_measures
from fedworth.pipeline.stages import ValuingSettings
from fedworth.simulation.simulate import task_of
from fedworth.studies.trials.trial import Bench, Reading, Trial, with_ledger

SAMPLED = ("tmc", "gtg", "mr", "or")
MOST_SAMPLED = 12
"""Clients up to which measures are compared that evaluate orders of a whole round until their values have settled: of a
hundred clients that takes long."""


def read_measures(trial: Trial, bench: Bench) -> Reading:
    """The rows of `fedworth compare LEDGER --methods all`, of many clients without those that take long."""
    return with_ledger(trial, bench, lambda ledger: _read(trial, ledger, bench))


def _read(trial: Trial, ledger: Ledger, bench: Bench) -> Reading:
    copies = [(ledger.clients[a], ledger.clients[b]) for a, b in trial.federation.copies]
    rows = compare_measures(
        ledger,
        task_of(ledger, data_folder=bench.data_folder),
        ValuingSettings(),
        [name for name in EVERYDAY if len(ledger.clients) <= MOST_SAMPLED or name not in SAMPLED],
        copies=copies,
        with_truth=True,
        data_folder=bench.data_folder,
    )
    return {"measures": [row.document() for row in rows]}
