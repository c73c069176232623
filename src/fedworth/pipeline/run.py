"""Simulate, value and report in one go; and value a federation while it trains.

    run       settings.json  ledger/  report.json, .html, .csv, .md
    watch     report.json, .html, .csv, .md, written again after each round

Measured utilities are kept in the user's cache folder, so a killed run continues where it stopped, with the same
report. `watch` and `live_values` give the values of `fedworth report`.
"""

import math
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from fedworth.errors import ArtefactError
from fedworth.ledger.ledger import Ledger
from fedworth.oracle.store import Session
from fedworth.pipeline.report_on import refuse_other_report, report_on
from fedworth.records import differing
from fedworth.report.report import Report
from fedworth.simulation.settings import SimulationSettings
from fedworth.simulation.simulate import simulate, task_of
from fedworth.storage import PARTIAL, Place, Progress, make_folder, read_json, silent, write_json
from fedworth.task.task import Task
from fedworth.valuation.federation import Federation
from fedworth.valuation.settings import ValuationSettings, WorkSettings

SETTINGS = "settings.json"


@dataclass(frozen=True)
class RunSettings:
    """Everything that decides the outcome of a run: the federation, and how it is valued.

    Args:
        simulation: The federation.
        valuation: How it is valued.

    Example:
        settings = fedworth.RunSettings(fedworth.SimulationSettings(seed=7))
    """

    simulation: SimulationSettings = field(default_factory=SimulationSettings)
    valuation: ValuationSettings = field(default_factory=ValuationSettings)


def run(
    settings: RunSettings,
    folder: Place,
    *,
    data_folder: Place | None = None,
    resume: bool = False,
    work: WorkSettings | None = None,
    progress: Progress = silent,
) -> Report:
    """Simulate a federation, value it and write the report.

    Args:
        settings: The federation to simulate, and how it is valued.
        folder: Where everything is written.
        data_folder: Folder of the data sets; `$FEDWORTH_DATA` if not given.
        resume: Continue a run that was killed.
        work: Where coalitions are measured.
        progress: Called with what is being done, how many parts are done and how many there are.

    Returns:
        The report that was written.

    Example:
        small = fedworth.SimulationSettings(n_clients=4, n_rounds=3, train_limit=120, test_limit=60)
        report = fedworth.run(fedworth.RunSettings(small), "runs/small")
    """
    folder, simulation = Path(folder), settings.simulation
    _claim(folder, asdict(settings), may_resume=resume)
    ledger = simulate(simulation, folder / "ledger", data_folder=data_folder, resume=resume, progress=progress)
    report = report_on(
        ledger,
        task_of(ledger, data_folder=data_folder),
        settings.valuation,
        work=work,
        title=f"{simulation.dataset}, {simulation.model}: {simulation.n_clients} clients, {ledger.n_rounds} rounds",
        copies=tuple((ledger.clients[copy], ledger.clients[of]) for copy, of in simulation.copies),
        progress=progress,
    )
    report.write(folder)
    return report


def _claim(folder: Path, document: dict[str, Any], *, may_resume: bool) -> None:
    """Reserve the folder for these settings, or refuse it; partial files of a killed run do not count."""
    path = folder / SETTINGS
    if not folder.exists() or all(found.name.endswith(PARTIAL) for found in folder.iterdir()):
        make_folder(folder)
        write_json(path, document)
    elif not may_resume:
        raise ArtefactError(f"{folder}: exists already; resume it with --resume, or name another folder")
    elif not path.is_file():
        raise ArtefactError(f"{folder}: not a run, since it has no {SETTINGS}; name another folder")
    elif found := differing(read_json(path), document):
        raise ArtefactError(
            f"{folder}: was run with other settings ({found}); resume with the same ones, or name another folder"
        )


def update(
    ledger: Ledger,
    task: Task,
    settings: ValuationSettings,
    folder: Path,
    *,
    work: WorkSettings | None = None,
    session: Session | None = None,
) -> Report:
    """Value the rounds recorded so far, and write the report."""
    title = f"{ledger.folder}, after {ledger.n_rounds} rounds" + (", closed" if ledger.is_closed else "")
    refuse_other_report(folder, ledger, task, settings)
    report = report_on(ledger, task, settings, work=work, title=title, session=session)
    report.write(folder)
    return report


_SESSIONS: dict[Path, Session] = {}
"""What `live_values` remembers of the ledger that it valued last."""


def live_values(
    folder: Path, task: Task, *, method: str | None = None, settings: ValuationSettings | None = None
) -> dict[str, float]:
    """What each client is worth by the rounds recorded so far; a client without a value is left out.

    The method is FedSV if none is named, and VerFedSV in a vertical federation.

    For a server that weighs, chooses or drops clients while it trains: what was read and measured for the same task
    object is remembered, so FedSV costs the new round's coalitions; a method that completes measures all rounds so far.
    """
    place = Path(folder).absolute()
    session = _SESSIONS.get(place)
    if session is None or session.task is not task:
        _SESSIONS.clear()
        session = _SESSIONS[place] = Session(task)
    federation = Federation(session.remember(Ledger.open(folder)), task, settings, session=session)
    valuation = federation.value(method or ("verfedsv" if federation.is_vertical else "fedsv"))
    pairs = zip(valuation.clients, valuation.values.tolist(), strict=True)
    return {name: value for name, value in pairs if not math.isnan(value)}
