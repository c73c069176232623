"""fedworth: what each client's data is worth in a federation.

    ledger → rounds → a game for each round → shares of each game → values with their covariance → report

`docs/api.md` lists every name by task. `fedworth.flower` and `fedworth.nvflare` record a federation that trains
elsewhere. Names are loaded when they are first used, so that importing fedworth is cheap.
"""

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

if os.name != "posix":
    raise ImportError(
        "fedworth does not run on Windows, which lacks the file locks that ledgers need; "
        "use Linux, or the Windows Subsystem for Linux"
    )

if TYPE_CHECKING:
    from fedworth import flower as flower
    from fedworth import nvflare as nvflare

    __version__: str
    from fedworth.completion.factors import FactorCompletion as FactorCompletion
    from fedworth.completion.factors import complete as complete
    from fedworth.completion.settings import FactorSettings as FactorSettings
    from fedworth.errors import FedworthError as FedworthError
    from fedworth.games.budget import Budget as Budget
    from fedworth.games.game import Game as Game
    from fedworth.games.game import Shares as Shares
    from fedworth.games.matrix import UtilityMatrix as UtilityMatrix
    from fedworth.games.shapley import shapley as shapley
    from fedworth.ledger.ledger import Ledger as Ledger
    from fedworth.ledger.ledger import open_ledger as open_ledger
    from fedworth.ledger.ledger import verify_ledger as verify_ledger
    from fedworth.ledger.receipts import Receipt as Receipt
    from fedworth.ledger.writer import Answer as Answer
    from fedworth.ledger.writer import LedgerWriter as LedgerWriter
    from fedworth.ledger.writer import create_ledger as create_ledger
    from fedworth.ledger.writer import resume_ledger as resume_ledger
    from fedworth.oracle.fast import FastOracle as FastOracle
    from fedworth.oracle.oracle import LoopOracle as LoopOracle
    from fedworth.pipeline.compare import compare as compare
    from fedworth.pipeline.compare import interactions as interactions
    from fedworth.pipeline.compare import shapiq_game as shapiq_game
    from fedworth.pipeline.report_on import report_on as report_on
    from fedworth.pipeline.run import RunSettings as RunSettings
    from fedworth.pipeline.run import run as run
    from fedworth.pipeline.verify import verify_report as verify_report
    from fedworth.pipeline.verify_statement import verify_statement as verify_statement
    from fedworth.recording.importing import import_folder as import_folder
    from fedworth.recording.receipts import receipt as receipt
    from fedworth.recording.recorder import record_into as record_into
    from fedworth.report.comparison import Comparison as Comparison
    from fedworth.report.report import Report as Report
    from fedworth.report.rewards import Rewards as Rewards
    from fedworth.report.rewards import rewards as rewards
    from fedworth.report.runs import mean_of_runs as mean_of_runs
    from fedworth.report.settings import PageSettings as PageSettings
    from fedworth.report.settings import RewardSettings as RewardSettings
    from fedworth.simulation.settings import SimulationSettings as SimulationSettings
    from fedworth.simulation.simulate import simulate as simulate
    from fedworth.simulation.simulate import task_of as task_of
    from fedworth.task.groups import group_ledger as group_ledger
    from fedworth.task.task import Task as Task
    from fedworth.task.task import load_task as load_task
    from fedworth.valuation.federation import Federation as Federation
    from fedworth.valuation.federation import value as value
    from fedworth.valuation.methods import Method as Method
    from fedworth.valuation.methods import share_out as share_out
    from fedworth.valuation.settings import ValuationSettings as ValuationSettings
    from fedworth.valuation.settings import WorkSettings as WorkSettings
    from fedworth.valuation.valuation import ClientValue as ClientValue
    from fedworth.valuation.valuation import Valuation as Valuation

_MODULES = {
    "Answer": "ledger.writer",
    "Budget": "games.budget",
    "ClientValue": "valuation.valuation",
    "Comparison": "report.comparison",
    "FactorCompletion": "completion.factors",
    "FactorSettings": "completion.settings",
    "FastOracle": "oracle.fast",
    "Federation": "valuation.federation",
    "FedworthError": "errors",
    "Game": "games.game",
    "Ledger": "ledger.ledger",
    "LedgerWriter": "ledger.writer",
    "LoopOracle": "oracle.oracle",
    "Method": "valuation.methods",
    "PageSettings": "report.settings",
    "Receipt": "ledger.receipts",
    "Report": "report.report",
    "RewardSettings": "report.settings",
    "Rewards": "report.rewards",
    "RunSettings": "pipeline.run",
    "Shares": "games.game",
    "SimulationSettings": "simulation.settings",
    "Task": "task.task",
    "UtilityMatrix": "games.matrix",
    "Valuation": "valuation.valuation",
    "ValuationSettings": "valuation.settings",
    "WorkSettings": "valuation.settings",
    "compare": "pipeline.compare",
    "complete": "completion.factors",
    "create_ledger": "ledger.writer",
    "group_ledger": "task.groups",
    "import_folder": "recording.importing",
    "interactions": "pipeline.compare",
    "load_task": "task.task",
    "mean_of_runs": "report.runs",
    "open_ledger": "ledger.ledger",
    "receipt": "recording.receipts",
    "record_into": "recording.recorder",
    "report_on": "pipeline.report_on",
    "resume_ledger": "ledger.writer",
    "rewards": "report.rewards",
    "run": "pipeline.run",
    "shapiq_game": "pipeline.compare",
    "shapley": "games.shapley",
    "share_out": "valuation.methods",
    "simulate": "simulation.simulate",
    "task_of": "simulation.simulate",
    "value": "valuation.federation",
    "verify_ledger": "ledger.ledger",
    "verify_report": "pipeline.verify",
    "verify_statement": "pipeline.verify_statement",
}
_DOORS = ("flower", "nvflare")

__all__ = [*sorted(_MODULES), "__version__"]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return globals().setdefault("__version__", version("fedworth"))
    if name in _DOORS:
        return import_module(f"fedworth.{name}")
    if name not in _MODULES:
        raise AttributeError(f"module 'fedworth' has no attribute {name!r}")
    return getattr(import_module(f"fedworth.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULES, *_DOORS})
