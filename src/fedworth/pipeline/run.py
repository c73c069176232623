"""All stages in one go: simulate, observe, complete, value, report; each left on disk, so a killed run can go on.

    settings.json  ledger/  truth.npz  utilities.npz  completion.npz  report.json  report.csv  report.md

A stage whose artefact is there is not run again. Every artefact is written whole or not at all, and depends on the
settings alone, so an interrupted and resumed run gives the same bytes as one that was not.
"""

from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from fedworth.arrays import stream
from fedworth.completion.complete import FactorSettings, complete
from fedworth.completion.completion import FactorCompletion, load_completion, save_completion
from fedworth.completion.coverage import coverage
from fedworth.completion.crossvalidation import choose
from fedworth.errors import ArtefactError, CompletionError, ValuationError
from fedworth.federation.simulation.settings import SimulationSettings
from fedworth.federation.simulation.simulate import simulate, task_of
from fedworth.ledger.findings import findings
from fedworth.ledger.ledger import Ledger
from fedworth.report.files import write_report
from fedworth.report.report import Report
from fedworth.storage import PARTIAL, Progress, json_bytes, make_folder, read_json, silent, write_json
from fedworth.utility.cache import utility_cache
from fedworth.utility.choices import device_named, oracle_named
from fedworth.utility.matrix import UtilityMatrix
from fedworth.utility.matrix_file import load_utilities, save_utilities
from fedworth.utility.observe import observe, participation
from fedworth.utility.planning.plan import Plan, plan_exact, plan_prefixes
from fedworth.valuation.valuation import Valuation
from fedworth.valuation.value import value

UNHEARD = (
    "no round hears everyone: coalitions of more clients than take part in a round are never seen, and ComFedSV has "
    "nothing to say of them (with zeros in their place its rank correlation with the truth was measured at 0.26 to "
    "0.56, against 0.90 to 0.96 with such a round)"
)


@dataclass(frozen=True)
class RunSettings:
    """Everything that decides the outcome of a run."""

    simulation: SimulationSettings = field(default_factory=SimulationSettings)
    weighting: str = "uniform"
    measure: str = "loss"
    oracle: str = "fast"
    n_permutations: int | None = None
    monte_carlo: bool = False
    sampler: str = "stratified"
    completion: FactorSettings = field(default_factory=FactorSettings)
    auto_rank: bool = False
    unseen: str = "refuse"
    strict: bool = False
    device: str = "cpu"

    def document(self) -> dict[str, Any]:
        """The settings as JSON; a device is named only if it is not the CPU."""
        return {name: value for name, value in asdict(self).items() if (name, value) != ("device", "cpu")}


def run(
    settings: RunSettings,
    folder: Path,
    *,
    data_folder: Path | None = None,
    resume: bool = False,
    progress: Progress = silent,
) -> Report:
    """Run all stages into `folder`; with `resume`, only those that are not there yet."""
    device_named(settings.device)
    _claim(folder, settings, resume)
    ledger = simulate(settings.simulation, folder / "ledger", data_folder=data_folder, resume=resume, progress=progress)
    utilities, truth = _observe(settings, ledger, folder, data_folder, progress)
    completion = _complete(settings, utilities, folder)
    report = replace(_report(settings, utilities, truth, completion), findings=findings(ledger))
    write_report(report, folder)
    return report


def plan_for(settings: RunSettings, ledger: Ledger) -> Plan:
    """The cells that a run measures: all coalitions, or prefixes of permutations."""
    participants, with_truth = participation(ledger), settings.simulation.with_truth
    if not settings.monte_carlo:
        return plan_exact(participants, with_truth=with_truth)
    rng = stream(settings.simulation.seed, "permutations")
    return plan_prefixes(
        participants,
        n_permutations=settings.n_permutations,
        with_truth=with_truth,
        sampler=settings.sampler,
        rng=rng,
    )


def _claim(folder: Path, settings: RunSettings, resume: bool) -> None:
    """Take the folder for these settings, or refuse it."""
    path = folder / "settings.json"
    if folder.exists() and any(not found.name.endswith(PARTIAL) for found in folder.iterdir()):
        if not resume:
            raise ArtefactError(f"{folder}: exists already; resume it with --resume, or name another folder")
        if not path.is_file() or json_bytes(read_json(path)) != json_bytes(settings.document()):
            raise ArtefactError(
                f"{folder}: was run with other settings; resume with the same ones, or name another folder"
            )
        return
    make_folder(folder)
    write_json(path, settings.document())


def _observe(
    settings: RunSettings, ledger: Ledger, folder: Path, data_folder: Path | None, progress: Progress
) -> tuple[UtilityMatrix, UtilityMatrix | None]:
    """What the server could have seen, and the truth if it is wanted; the truth is measured once for both."""
    seen_path, truth_path = folder / "utilities.npz", folder / "truth.npz"
    with_truth = settings.simulation.with_truth
    first = truth_path if with_truth else seen_path
    if not first.is_file():
        task = task_of(ledger, data_folder=data_folder).to(settings.device)
        oracle = oracle_named(settings.oracle, task, settings.measure)
        plan, cache = plan_for(settings, ledger), utility_cache(ledger, oracle)
        found = observe(ledger, oracle, plan, weighting=settings.weighting, cache=cache, progress=progress)
        save_utilities(found, first)
    if with_truth and not seen_path.is_file():
        save_utilities(load_utilities(truth_path).seen_part(), seen_path)
    return load_utilities(seen_path), load_utilities(truth_path) if with_truth else None


def _complete(settings: RunSettings, utilities: UtilityMatrix, folder: Path) -> FactorCompletion:
    path = folder / "completion.npz"
    if not path.is_file():
        factors = settings.completion
        if settings.auto_rank:
            rng = stream(settings.simulation.seed, "cross-validation")
            factors = choose(utilities, penalty_kind=factors.penalty_kind, rng=rng).settings
        save_completion(complete(utilities, factors), path)
    return load_completion(path)


def _report(
    settings: RunSettings, utilities: UtilityMatrix, truth: UtilityMatrix | None, completion: FactorCompletion
) -> Report:
    valuations: list[Valuation] = []
    refusals: list[tuple[str, str]] = []
    methods = ["comfedsv", "fedsv", *(["truth"] if truth else []), "heard-round", "leave-one-out", "fedsv-later"]
    for method in methods:
        matrix = truth if method == "truth" and truth is not None else utilities
        try:
            made = value(matrix, method, completion=completion, unseen=settings.unseen, strict=settings.strict)
            valuations.append(made)
        except (ValuationError, CompletionError) as error:
            if settings.strict:
                raise
            refusals.append((method, str(error)))
    names = utilities.clients
    simulation = settings.simulation
    return Report(
        title=f"{simulation.dataset}, {simulation.model}: {simulation.n_clients} clients, {simulation.n_rounds} rounds",
        clients=names,
        valuations=tuple(valuations),
        refusals=tuple(refusals),
        copies=tuple((names[copy], names[of]) for copy, of in simulation.copies),
        coverage=coverage(utilities).document(),
        notes=() if simulation.everyone_heard else (UNHEARD,),
    )
