"""fedworth: what each client's data is worth in a federation.

    settings → simulate → Ledger → observe → UtilityMatrix → complete → Completion → value → Valuation → report

Each stage is a function on these artefacts; `docs/api.md` lists every name. `fedworth.flower` and `fedworth.nvflare`
record a federation that trains elsewhere. What needs torch is loaded when it is first asked for.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedworth import flower as flower
    from fedworth import nvflare as nvflare

    __version__: str
    from fedworth.completion.complete import FactorSettings as FactorSettings
    from fedworth.completion.complete import complete as complete
    from fedworth.completion.completion import Completion as Completion
    from fedworth.completion.completion import FactorCompletion as FactorCompletion
    from fedworth.completion.completion_file import load_completion as load_completion
    from fedworth.completion.completion_file import save_completion as save_completion
    from fedworth.completion.coverage import coverage as coverage
    from fedworth.completion.crossvalidation import choose_factors as choose_factors
    from fedworth.completion.models import complete_by_models as complete_by_models
    from fedworth.errors import FedworthError as FedworthError
    from fedworth.games.matrix import UtilityMatrix as UtilityMatrix
    from fedworth.games.matrix_file import load_utilities as load_utilities
    from fedworth.games.matrix_file import save_utilities as save_utilities
    from fedworth.games.observe import observe as observe
    from fedworth.games.observe import observe_and_count as observe_and_count
    from fedworth.games.planning.budget import Budget as Budget
    from fedworth.games.planning.choose import PlanSettings as PlanSettings
    from fedworth.games.planning.choose import choose_plan as choose_plan
    from fedworth.games.subset import stratified_subset as stratified_subset
    from fedworth.ledger.ledger import Ledger as Ledger
    from fedworth.ledger.ledger import open_ledger as open_ledger
    from fedworth.ledger.ledger import verify_ledger as verify_ledger
    from fedworth.ledger.writer import Answer as Answer
    from fedworth.ledger.writer import LedgerWriter as LedgerWriter
    from fedworth.ledger.writer import create_ledger as create_ledger
    from fedworth.ledger.writer import resume_ledger as resume_ledger
    from fedworth.oracle.cache import utility_cache as utility_cache
    from fedworth.oracle.fast import FastOracle as FastOracle
    from fedworth.oracle.oracle import LoopOracle as LoopOracle
    from fedworth.oracle.weighting import participation as participation
    from fedworth.pipeline.checking import check_values as check_values
    from fedworth.pipeline.compare import compare as compare
    from fedworth.pipeline.interactions import interactions_of as interactions_of
    from fedworth.pipeline.interactions import shapiq_game as shapiq_game
    from fedworth.pipeline.measures import compare_measures as compare_measures
    from fedworth.pipeline.report_on import report_on as report_on
    from fedworth.pipeline.run import RunSettings as RunSettings
    from fedworth.pipeline.run import run as run
    from fedworth.pipeline.stages import ValuingSettings as ValuingSettings
    from fedworth.recording.importing import import_folder as import_folder
    from fedworth.recording.recorder import record_into as record_into
    from fedworth.report.comparison import Comparison as Comparison
    from fedworth.report.page import PageSettings as PageSettings
    from fedworth.report.report import Report as Report
    from fedworth.report.rewards import Rewards as Rewards
    from fedworth.report.rewards import RewardSettings as RewardSettings
    from fedworth.report.rewards import rewards as rewards
    from fedworth.simulation.settings import SimulationSettings as SimulationSettings
    from fedworth.simulation.simulate import simulate as simulate
    from fedworth.simulation.simulate import task_of as task_of
    from fedworth.studies.reproduce import study as study
    from fedworth.studies.results.pictures import plot_panel as plot_panel
    from fedworth.task.coefficients import task_from_estimator as task_from_estimator
    from fedworth.task.groups import group_ledger as group_ledger
    from fedworth.task.own_utility import task_from_utility as task_from_utility
    from fedworth.task.task import Task as Task
    from fedworth.task.task import task_from_loader as task_from_loader
    from fedworth.task.task_file import load_task as load_task
    from fedworth.valuation.valuation import ClientValue as ClientValue
    from fedworth.valuation.valuation import Valuation as Valuation
    from fedworth.valuation.value import value as value

_HOMES = {
    "Answer": "ledger.writer",
    "Budget": "games.planning.budget",
    "ClientValue": "valuation.valuation",
    "Comparison": "report.comparison",
    "Completion": "completion.completion",
    "FactorCompletion": "completion.completion",
    "FactorSettings": "completion.complete",
    "FastOracle": "oracle.fast",
    "FedworthError": "errors",
    "Ledger": "ledger.ledger",
    "LedgerWriter": "ledger.writer",
    "LoopOracle": "oracle.oracle",
    "PageSettings": "report.page",
    "PlanSettings": "games.planning.choose",
    "Report": "report.report",
    "RewardSettings": "report.rewards",
    "Rewards": "report.rewards",
    "RunSettings": "pipeline.run",
    "SimulationSettings": "simulation.settings",
    "Task": "task.task",
    "UtilityMatrix": "games.matrix",
    "Valuation": "valuation.valuation",
    "ValuingSettings": "pipeline.stages",
    "check_values": "pipeline.checking",
    "choose_factors": "completion.crossvalidation",
    "choose_plan": "games.planning.choose",
    "compare": "pipeline.compare",
    "compare_measures": "pipeline.measures",
    "complete": "completion.complete",
    "complete_by_models": "completion.models",
    "coverage": "completion.coverage",
    "create_ledger": "ledger.writer",
    "group_ledger": "task.groups",
    "import_folder": "recording.importing",
    "interactions_of": "pipeline.interactions",
    "load_completion": "completion.completion_file",
    "load_task": "task.task_file",
    "load_utilities": "games.matrix_file",
    "observe": "games.observe",
    "observe_and_count": "games.observe",
    "open_ledger": "ledger.ledger",
    "participation": "oracle.weighting",
    "plot_panel": "studies.results.pictures",
    "record_into": "recording.recorder",
    "report_on": "pipeline.report_on",
    "resume_ledger": "ledger.writer",
    "rewards": "report.rewards",
    "run": "pipeline.run",
    "save_completion": "completion.completion_file",
    "save_utilities": "games.matrix_file",
    "shapiq_game": "pipeline.interactions",
    "simulate": "simulation.simulate",
    "stratified_subset": "games.subset",
    "study": "studies.reproduce",
    "task_from_estimator": "task.coefficients",
    "task_from_loader": "task.task",
    "task_from_utility": "task.own_utility",
    "task_of": "simulation.simulate",
    "utility_cache": "oracle.cache",
    "value": "valuation.value",
    "verify_ledger": "ledger.ledger",
}
_DOORS = ("flower", "nvflare")

__all__ = [*sorted(_HOMES), "__version__"]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return globals().setdefault("__version__", version("fedworth"))
    if name in _DOORS:
        return import_module(f"fedworth.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module 'fedworth' has no attribute {name!r}")
    return getattr(import_module(f"fedworth.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES, *_DOORS})
