"""Watch: value a federation while it still trains, after each round.

    valuing.json                               the task, measure and weighting that the values belong to
    utilities.npz completion.npz factors.npz   what the last values rest on
    report.html report.json and others         the last valuations

What was measured is kept beside the ledger, so only new cells cost anything, here and in a later `observe`. A new
round is completed from the rounds up to it, and stays so while the federation trains; when the ledger is closed all
rounds are completed once more, from nothing (`report_on`). So the last report depends on the ledger and the settings
alone, whatever was watched or killed before, and is what `observe`, `complete` and `value` give.
"""

from dataclasses import replace
from pathlib import Path

from fedworth.ledger.ledger import Ledger
from fedworth.pipeline.report_on import report_on
from fedworth.pipeline.stages import ValuingSettings
from fedworth.report.report import Report
from fedworth.task.task import Task

CLOSED = "the ledger is closed: every round was completed once more, from all rounds, and the values are final"


def update(ledger: Ledger, task: Task, settings: ValuingSettings, folder: Path, *, n_checked: int = 0) -> Report:
    """Value the rounds that are there; measures only what was not measured before, and does not read again the first
    `n_checked` rounds, which were found whole before."""
    title = f"{ledger.folder}, after {ledger.n_rounds} rounds" + (", closed" if ledger.is_closed else "")
    report = report_on(ledger, task, settings, folder, title=title, n_checked=n_checked)
    if ledger.is_closed:
        report = replace(report, notes=(*report.notes, CLOSED))
    report.write(folder)
    return report
