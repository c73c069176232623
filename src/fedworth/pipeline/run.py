"""All stages in one go: simulate, observe, complete, value, report; each left on disk, so a killed run can go on.

    settings.json  ledger/  valuing.json  truth.npz  utilities.npz  completion.npz  factors.npz  report.json and others

A stage whose artefact is there is not run again. Every artefact is written whole or not at all, and depends on the
settings alone, so an interrupted and resumed run gives the same bytes as one that was not.
"""

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from fedworth.oracle.choices import device_named
from fedworth.pipeline.folder import claim
from fedworth.pipeline.report_on import report_on
from fedworth.pipeline.stages import ValuingSettings
from fedworth.report.report import Report
from fedworth.simulation.settings import SimulationSettings
from fedworth.simulation.simulate import simulate, task_of
from fedworth.storage import Place, Progress, silent


@dataclass(frozen=True)
class RunSettings:
    """Everything that decides the outcome of a run: the federation, and how it is valued.

    Args:
        simulation: The federation.
        valuing: How it is valued.
        device: Where coalitions are evaluated: `cpu`, `cuda`, …

    Example:
        settings = fedworth.RunSettings(fedworth.SimulationSettings(seed=7))
    """

    simulation: SimulationSettings = field(default_factory=SimulationSettings)
    valuing: ValuingSettings = field(default_factory=ValuingSettings)
    device: str = "cpu"

    def document(self) -> dict[str, Any]:
        """The settings as JSON; a device is named only if it is not the CPU."""
        return {name: value for name, value in asdict(self).items() if (name, value) != ("device", "cpu")}


def run(
    settings: RunSettings,
    folder: Place,
    *,
    data_folder: Place | None = None,
    resume: bool = False,
    progress: Progress = silent,
) -> Report:
    """Simulate, observe, complete, value and report.

    Args:
        settings: The federation to simulate, and how it is valued.
        folder: Where everything is written.
        data_folder: Where data sets lie; `$FEDWORTH_DATA` if it is not given.
        resume: Do only the stages that are not there yet.
        progress: Called with what is being done, how many parts are done and how many there are.

    Returns:
        The report that was written.

    Example:
        small = fedworth.SimulationSettings(n_clients=4, n_rounds=3, train_limit=120, test_limit=60)
        report = fedworth.run(fedworth.RunSettings(small), "runs/small")
    """
    folder, simulation = Path(folder), settings.simulation
    device_named(settings.device)
    otherwise = "was run with other settings; resume with the same ones, or name another folder"
    claim(folder, settings.document(), may_resume=resume, otherwise=otherwise)
    ledger = simulate(simulation, folder / "ledger", data_folder=data_folder, resume=resume, progress=progress)
    report = report_on(
        ledger,
        task_of(ledger, data_folder=data_folder).to(settings.device),
        settings.valuing,
        folder,
        title=f"{simulation.dataset}, {simulation.model}: {simulation.n_clients} clients, {simulation.n_rounds} rounds",
        with_truth=simulation.with_truth,
        copies=tuple((ledger.clients[copy], ledger.clients[of]) for copy, of in simulation.copies),
        progress=progress,
    )
    report.write(folder)
    return report
