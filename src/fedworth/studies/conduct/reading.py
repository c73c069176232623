"""What `findings` reads off a trial: whom the findings of a report name, as what, and how sure they are.

The federation trains with the client that misbehaves in it and is recorded. Clean federations and those with noisy data
are reported on as `fedworth report` does; of the others the answers are looked at, as `fedworth verify` does.
Clean federations have a truth, so that it is known whether a client that is said to harm does.
"""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from shutil import rmtree

from fedworth.federation.simulation.simulate import simulate, task_of
from fedworth.ledger.ledger import Ledger
from fedworth.ledger.oddities import findings
from fedworth.pipeline.report_on import report_on
from fedworth.pipeline.stages import ValuingSettings
from fedworth.report.report import Report
from fedworth.studies.conduct.misconduct import Memory, kinds
from fedworth.studies.trials.trial import Bench, Reader, Reading, Trial


def read_findings(kind_name: str, trial: Trial, bench: Bench) -> Reading:
    """The findings on one federation."""
    kind = next(kind for kind in kinds(trial.federation.n_clients) if kind.name == kind_name)
    folder = bench.folder / "work" / trial.key
    rmtree(folder, ignore_errors=True)  # a client that cheats cannot go on where it was killed
    ledger = simulate(
        trial.federation,
        folder / "ledger",
        data_folder=bench.data_folder,
        misconduct=None if kind.act is None else Memory(kind.act),
    )
    report = _report(ledger, trial, bench, folder / "report") if kind.is_valued else None
    truth = None if report is None else report.valuation("truth")
    said = findings(ledger) if report is None else report.all_findings
    rmtree(folder)
    return {
        "kind": kind.name,
        "planted": list(kind.planted),
        "findings": [{**found.document(), "clients": [int(k) for k in found.clients]} for found in said],
        "truth": None if truth is None else truth.values.tolist(),
    }


def _report(ledger: Ledger, trial: Trial, bench: Bench, folder: Path) -> Report:
    task = task_of(ledger, data_folder=bench.data_folder)
    return report_on(ledger, task, ValuingSettings(), folder, with_truth=trial.federation.with_truth)


PREFIX = "findings: "
FINDERS: Mapping[str, Reader] = {f"{PREFIX}{kind.name}": partial(read_findings, kind.name) for kind in kinds(10)}
"""One reader a kind, by the name that the trials go by."""
