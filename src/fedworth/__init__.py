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
    from fedworth.completion.completion import Completion as Completion
    from fedworth.completion.completion_file import load_completion as load_completion
    from fedworth.completion.completion_file import save_completion as save_completion
    from fedworth.completion.coverage import coverage as coverage
    from fedworth.completion.factors import FactorCompletion as FactorCompletion
    from fedworth.completion.factors import FactorSettings as FactorSettings
    from fedworth.completion.factors import choose_factors as choose_factors
    from fedworth.completion.factors import complete as complete
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
    from fedworth.report.comparison import compare_reports as compare_reports
    from fedworth.report.files import read_report as read_report
    from fedworth.report.files import write_report as write_report
    from fedworth.report.files import write_statement as write_statement
    from fedworth.report.page import PageSettings as PageSettings
    from fedworth.report.page import comparison_html as comparison_html
    from fedworth.report.page import page_html as page_html
    from fedworth.report.page import statement_html as statement_html
    from fedworth.report.plots import plot_comparison as plot_comparison
    from fedworth.report.plots import plot_course as plot_course
    from fedworth.report.plots import plot_gains as plot_gains
    from fedworth.report.plots import plot_rounds as plot_rounds
    from fedworth.report.plots import plot_values as plot_values
    from fedworth.report.report import Report as Report
    from fedworth.report.report import report_from as report_from
    from fedworth.report.rewards import Rewards as Rewards
    from fedworth.report.rewards import RewardSettings as RewardSettings
    from fedworth.report.rewards import rewards as rewards
    from fedworth.simulation.settings import SimulationSettings as SimulationSettings
    from fedworth.simulation.simulate import simulate as simulate
    from fedworth.simulation.simulate import task_of as task_of
    from fedworth.task.groups import group_ledger as group_ledger
    from fedworth.task.task import Task as Task
    from fedworth.task.task import load_task as load_task
    from fedworth.valuation.valuation import Valuation as Valuation
    from fedworth.valuation.valuation import valuation_from as valuation_from
    from fedworth.valuation.value import value as value
    from fedworth.valuation.worth import Worth as Worth

_HOMES = {
    "Answer": "ledger.writer",
    "Budget": "games.planning.budget",
    "Comparison": "report.comparison",
    "Completion": "completion.completion",
    "FactorCompletion": "completion.factors",
    "FactorSettings": "completion.factors",
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
    "Worth": "valuation.worth",
    "check_values": "pipeline.checking",
    "choose_factors": "completion.factors",
    "choose_plan": "games.planning.choose",
    "compare": "pipeline.compare",
    "compare_measures": "pipeline.measures",
    "compare_reports": "report.comparison",
    "comparison_html": "report.page",
    "complete": "completion.factors",
    "complete_by_models": "completion.models",
    "coverage": "completion.coverage",
    "create_ledger": "ledger.writer",
    "group_ledger": "task.groups",
    "import_folder": "recording.importing",
    "interactions_of": "pipeline.interactions",
    "load_completion": "completion.completion_file",
    "load_task": "task.task",
    "load_utilities": "games.matrix_file",
    "observe": "games.observe",
    "observe_and_count": "games.observe",
    "open_ledger": "ledger.ledger",
    "page_html": "report.page",
    "participation": "oracle.weighting",
    "plot_comparison": "report.plots",
    "plot_course": "report.plots",
    "plot_gains": "report.plots",
    "plot_rounds": "report.plots",
    "plot_values": "report.plots",
    "read_report": "report.files",
    "record_into": "recording.recorder",
    "report_from": "report.report",
    "report_on": "pipeline.report_on",
    "resume_ledger": "ledger.writer",
    "rewards": "report.rewards",
    "run": "pipeline.run",
    "save_completion": "completion.completion_file",
    "save_utilities": "games.matrix_file",
    "shapiq_game": "pipeline.interactions",
    "simulate": "simulation.simulate",
    "statement_html": "report.page",
    "stratified_subset": "games.subset",
    "task_of": "simulation.simulate",
    "utility_cache": "oracle.cache",
    "valuation_from": "valuation.valuation",
    "value": "valuation.value",
    "verify_ledger": "ledger.ledger",
    "write_report": "report.files",
    "write_statement": "report.files",
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
