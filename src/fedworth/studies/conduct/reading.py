"""What `findings` reads off a trial: whom the findings of a report name, as what, and how sure they are.

The federation trains with the client that misbehaves in it and is recorded. Clean federations and those with noisy data
are reported on as `fedworth report` does; of the others the answers are looked at, as `fedworth verify` does.
Clean federations have a truth, so that it is known whether a client that is said to harm does. Of a copy that has its
source's very batches the interactions of all pairs are kept too, with fixed weights and with those of a mean.
"""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from shutil import rmtree

from fedworth.completion.models import complete_by_models
from fedworth.findings import findings
from fedworth.games.observe import observe
from fedworth.ledger.ledger import Ledger
from fedworth.names import Weighting
from fedworth.oracle.fast import FastOracle
from fedworth.pipeline.interactions import interactions_of
from fedworth.pipeline.report_on import report_on
from fedworth.pipeline.stages import ValuingSettings
from fedworth.report.report import Report
from fedworth.simulation.simulate import simulate, task_of
from fedworth.studies.conduct.misconduct import COPIED, Memory, kinds
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
    pairs = _interactions(ledger, bench) if kind.name == COPIED else {}
    rmtree(folder)
    return {
        "kind": kind.name,
        "planted": list(kind.planted),
        "findings": [
            {**found.document(), "sure": found.confidence, "clients": [int(k) for k in found.clients]} for found in said
        ],
        "truth": None if truth is None else truth.values.tolist(),
        **({"interactions": pairs} if pairs else {}),
    }


def _interactions(ledger: Ledger, bench: Bench) -> dict[str, list[list[float]]]:
    """By weighting: of every pair the two clients and their index."""
    oracle, found = FastOracle(task_of(ledger, data_folder=bench.data_folder), n_threads=bench.n_threads), {}
    for weighting in WEIGHTINGS:
        seen = observe(ledger, oracle, weighting=weighting)
        pairs = interactions_of(complete_by_models(ledger, oracle, seen, weighting=weighting))
        found[str(weighting)] = [[int(pair.first), int(pair.second), pair.index] for pair in pairs]
    return found


def _report(ledger: Ledger, trial: Trial, bench: Bench, folder: Path) -> Report:
    task = task_of(ledger, data_folder=bench.data_folder)
    return report_on(ledger, task, ValuingSettings(), folder, with_truth=trial.federation.with_truth)


PREFIX = "findings: "
WEIGHTINGS: tuple[Weighting, ...] = ("fixed", "uniform")
FINDERS: Mapping[str, Reader] = {f"{PREFIX}{kind.name}": partial(read_findings, kind.name) for kind in kinds(10)}
"""One reader a kind, by the name that the trials go by."""
