"""fedworth: what each client's data is worth in a federated learning.

    settings → simulate → Ledger → observe → UtilityMatrix → complete → Completion → value → Valuation → report

Each stage is a function on these artefacts. What needs torch is loaded when it is first asked for.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedworth.completion.complete import FactorSettings as FactorSettings
    from fedworth.completion.complete import complete as complete
    from fedworth.completion.completion import Completion as Completion
    from fedworth.completion.completion import FactorCompletion as FactorCompletion
    from fedworth.completion.completion import load_completion as load_completion
    from fedworth.completion.completion import save_completion as save_completion
    from fedworth.completion.coverage import coverage as coverage
    from fedworth.completion.crossvalidation import choose as choose
    from fedworth.errors import FedworthError as FedworthError
    from fedworth.federation.fedavg import simulate as simulate
    from fedworth.federation.fedavg import task_of as task_of
    from fedworth.federation.ledger import Ledger as Ledger
    from fedworth.federation.ledger import open_ledger as open_ledger
    from fedworth.federation.ledger import verify_ledger as verify_ledger
    from fedworth.federation.recorder import Answer as Answer
    from fedworth.federation.recorder import LedgerWriter as LedgerWriter
    from fedworth.federation.recorder import create_ledger as create_ledger
    from fedworth.federation.recorder import resume_ledger as resume_ledger
    from fedworth.federation.settings import SimulationSettings as SimulationSettings
    from fedworth.federation.task import Task as Task
    from fedworth.report.files import write_report as write_report
    from fedworth.report.report import Report as Report
    from fedworth.run import RunSettings as RunSettings
    from fedworth.run import run as run
    from fedworth.utility.budget import Budget as Budget
    from fedworth.utility.cache import utility_cache as utility_cache
    from fedworth.utility.fast import FastOracle as FastOracle
    from fedworth.utility.files import load_utilities as load_utilities
    from fedworth.utility.files import save_utilities as save_utilities
    from fedworth.utility.matrix import UtilityMatrix as UtilityMatrix
    from fedworth.utility.observe import observe as observe
    from fedworth.utility.observe import observe_and_count as observe_and_count
    from fedworth.utility.observe import participation as participation
    from fedworth.utility.oracle import LoopOracle as LoopOracle
    from fedworth.utility.plan import plan_prefixes as plan_prefixes
    from fedworth.utility.plan import plan_subsets as plan_subsets
    from fedworth.utility.subset import stratified_subset as stratified_subset
    from fedworth.valuation.valuation import Valuation as Valuation
    from fedworth.valuation.value import value as value

_HOMES = {
    "stratified_subset": "utility.subset",
    "verify_ledger": "federation.ledger",
    "observe_and_count": "utility.observe",
    "utility_cache": "utility.cache",
    "Budget": "utility.budget",
    "FastOracle": "utility.fast",
    "FactorSettings": "completion.complete",
    "complete": "completion.complete",
    "Completion": "completion.completion",
    "FactorCompletion": "completion.completion",
    "load_completion": "completion.completion",
    "save_completion": "completion.completion",
    "coverage": "completion.coverage",
    "choose": "completion.crossvalidation",
    "FedworthError": "errors",
    "simulate": "federation.fedavg",
    "task_of": "federation.fedavg",
    "Ledger": "federation.ledger",
    "open_ledger": "federation.ledger",
    "Answer": "federation.recorder",
    "LedgerWriter": "federation.recorder",
    "create_ledger": "federation.recorder",
    "resume_ledger": "federation.recorder",
    "SimulationSettings": "federation.settings",
    "Task": "federation.task",
    "write_report": "report.files",
    "Report": "report.report",
    "RunSettings": "run",
    "run": "run",
    "load_utilities": "utility.files",
    "save_utilities": "utility.files",
    "UtilityMatrix": "utility.matrix",
    "observe": "utility.observe",
    "participation": "utility.observe",
    "LoopOracle": "utility.oracle",
    "plan_prefixes": "utility.plan",
    "plan_subsets": "utility.plan",
    "Valuation": "valuation.valuation",
    "value": "valuation.value",
}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'fedworth' has no attribute {name!r}")
    return getattr(import_module(f"fedworth.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return [*globals(), *_HOMES]
