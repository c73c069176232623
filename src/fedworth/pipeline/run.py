"""All stages in one go: simulate, observe, complete, value, report; each left on disk, so a killed run can go on.

    settings.json  ledger/  truth.npz  utilities.npz  completion.npz  report.json  report.csv  report.md

A stage whose artefact is there is not run again. Every artefact is written whole or not at all, and depends on the
settings alone, so an interrupted and resumed run gives the same bytes as one that was not.
"""

from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from fedworth.arrays import stream
from fedworth.completion.complete import complete
from fedworth.completion.completion import FactorCompletion, load_completion, save_completion
from fedworth.completion.coverage import coverage
from fedworth.completion.crossvalidation import choose_factors
from fedworth.federation.simulation.settings import SimulationSettings
from fedworth.federation.simulation.simulate import simulate, task_of
from fedworth.ledger.findings import findings
from fedworth.ledger.ledger import Ledger
from fedworth.names import MethodName
from fedworth.pipeline.folder import claim
from fedworth.pipeline.stages import ValuingSettings, measure, value_by
from fedworth.report.files import write_report
from fedworth.report.report import Report
from fedworth.storage import Place, Progress, silent
from fedworth.utility.choices import device_named, oracle_named
from fedworth.utility.matrix import UtilityMatrix
from fedworth.utility.matrix_file import load_utilities, save_utilities

UNHEARD = (
    "no round hears everyone: coalitions of more clients than take part in a round are never seen, and ComFedSV has "
    "nothing to say of them (with zeros in their place its rank correlation with the truth was measured at 0.26 to "
    "0.56, against 0.90 to 0.96 with such a round)"
)


@dataclass(frozen=True)
class RunSettings:
    """Everything that decides the outcome of a run: the federation, and how it is valued."""

    simulation: SimulationSettings = field(default_factory=SimulationSettings)
    valuing: ValuingSettings = field(default_factory=ValuingSettings)
    auto_rank: bool = False
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
    """Run all stages into `folder`; with `resume`, only those that are not there yet."""
    folder = Path(folder)
    device_named(settings.device)
    otherwise = "was run with other settings; resume with the same ones, or name another folder"
    claim(folder, settings.document(), may_resume=resume, otherwise=otherwise)
    ledger = simulate(settings.simulation, folder / "ledger", data_folder=data_folder, resume=resume, progress=progress)
    utilities, truth = _observe(settings, ledger, folder, data_folder, progress)
    report = replace(_report(settings, utilities, truth, folder), findings=findings(ledger))
    write_report(report, folder)
    return report


def _observe(
    settings: RunSettings, ledger: Ledger, folder: Path, data_folder: Place | None, progress: Progress
) -> tuple[UtilityMatrix, UtilityMatrix | None]:
    """What the server could have seen, and the truth if it is wanted; the truth is measured once for both."""
    seen_path, truth_path = folder / "utilities.npz", folder / "truth.npz"
    with_truth = settings.simulation.with_truth
    first = truth_path if with_truth else seen_path
    if not first.is_file():
        task = task_of(ledger, data_folder=data_folder).to(settings.device)
        oracle = oracle_named(settings.valuing.oracle, task, settings.valuing.measure)
        found = measure(ledger, oracle, settings.valuing, with_truth=with_truth, progress=progress)
        save_utilities(found, first)
    if with_truth and not seen_path.is_file():
        save_utilities(load_utilities(truth_path).seen_part(), seen_path)
    return load_utilities(seen_path), load_utilities(truth_path) if with_truth else None


def _complete(settings: RunSettings, utilities: UtilityMatrix, folder: Path) -> FactorCompletion:
    path = folder / "completion.npz"
    if not path.is_file():
        factors = settings.valuing.completion
        if settings.auto_rank:
            rng = stream(settings.valuing.seed, "cross-validation")
            factors = choose_factors(utilities, penalty_kind=factors.penalty_kind, rng=rng).settings
        save_completion(complete(utilities, factors), path)
    return load_completion(path)


def _report(settings: RunSettings, utilities: UtilityMatrix, truth: UtilityMatrix | None, folder: Path) -> Report:
    known: tuple[MethodName, ...] = ("truth",) if truth else ()
    methods: tuple[MethodName, ...] = ("comfedsv", "fedsv", *known, "heard-round", "leave-one-out", "fedsv-later")
    completed = partial(_complete, settings, utilities, folder)
    valuations, refusals = value_by(methods, utilities, completed, settings.valuing, truth=truth)
    names, simulation = utilities.clients, settings.simulation
    return Report(
        title=f"{simulation.dataset}, {simulation.model}: {simulation.n_clients} clients, {simulation.n_rounds} rounds",
        clients=names,
        valuations=valuations,
        refusals=refusals,
        copies=tuple((names[copy], names[of]) for copy, of in simulation.copies),
        coverage=coverage(utilities).document(),
        notes=() if simulation.everyone_heard else (UNHEARD,),
    )
