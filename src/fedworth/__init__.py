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
    from fedworth.completion.factors import complete as complete
    from fedworth.completion.settings import FactorSettings as FactorSettings
    from fedworth.errors import FedworthError as FedworthError
    from fedworth.games.budget import Budget as Budget
    from fedworth.games.effort import shapley as shapley
    from fedworth.games.game import Game as Game
    from fedworth.games.game import Shares as Shares
    from fedworth.games.matrix import UtilityMatrix as UtilityMatrix
    from fedworth.ledger.ledger import Ledger as Ledger
    from fedworth.ledger.writer import Answer as Answer
    from fedworth.ledger.writer import LedgerWriter as LedgerWriter
    from fedworth.oracle.fast import FastOracle as FastOracle
    from fedworth.oracle.oracle import LoopOracle as LoopOracle
    from fedworth.pipeline.compare import compare as compare
    from fedworth.pipeline.report_on import report_on as report_on
    from fedworth.pipeline.run import RunSettings as RunSettings
    from fedworth.pipeline.run import run as run
    from fedworth.pipeline.verify import verify_report as verify_report
    from fedworth.pipeline.verify import verify_statement as verify_statement
    from fedworth.recording.importing import import_folder as import_folder
    from fedworth.recording.receipts import receipt as receipt
    from fedworth.recording.recorder import record_into as record_into
    from fedworth.recording.trees import Trees as Trees
    from fedworth.report.comparison import Comparison as Comparison
    from fedworth.report.report import Report as Report
    from fedworth.report.settings import PageSettings as PageSettings
    from fedworth.report.settings import RewardSettings as RewardSettings
    from fedworth.simulation.settings import SimulationSettings as SimulationSettings
    from fedworth.simulation.simulate import retrained_models as retrained_models
    from fedworth.simulation.simulate import simulate as simulate
    from fedworth.simulation.simulate import task_of as task_of
    from fedworth.task.groups import group_ledger as group_ledger
    from fedworth.task.rules import ProductMean as ProductMean
    from fedworth.task.task import Task as Task
    from fedworth.task.vertical import Vertical as Vertical
    from fedworth.valuation.federation import Federation as Federation
    from fedworth.valuation.federation import value as value
    from fedworth.valuation.methods import Method as Method
    from fedworth.valuation.methods import share_out as share_out
    from fedworth.valuation.settings import ValuationSettings as ValuationSettings
    from fedworth.valuation.settings import WorkSettings as WorkSettings
    from fedworth.valuation.valuation import Valuation as Valuation

_NAMES = {
    "completion.factors": ("complete",),
    "completion.settings": ("FactorSettings",),
    "errors": ("FedworthError",),
    "games.budget": ("Budget",),
    "games.effort": ("shapley",),
    "games.game": ("Game", "Shares"),
    "games.matrix": ("UtilityMatrix",),
    "ledger.ledger": ("Ledger",),
    "ledger.writer": ("Answer", "LedgerWriter"),
    "oracle.fast": ("FastOracle",),
    "oracle.oracle": ("LoopOracle",),
    "pipeline.compare": ("compare",),
    "pipeline.report_on": ("report_on",),
    "pipeline.run": ("RunSettings", "run"),
    "pipeline.verify": ("verify_report", "verify_statement"),
    "recording.importing": ("import_folder",),
    "recording.receipts": ("receipt",),
    "recording.recorder": ("record_into",),
    "recording.trees": ("Trees",),
    "report.comparison": ("Comparison",),
    "report.report": ("Report",),
    "report.settings": ("PageSettings", "RewardSettings"),
    "simulation.settings": ("SimulationSettings",),
    "simulation.simulate": ("retrained_models", "simulate", "task_of"),
    "task.groups": ("group_ledger",),
    "task.rules": ("ProductMean",),
    "task.task": ("Task",),
    "task.vertical": ("Vertical",),
    "valuation.federation": ("Federation", "value"),
    "valuation.methods": ("Method", "share_out"),
    "valuation.settings": ("ValuationSettings", "WorkSettings"),
    "valuation.valuation": ("Valuation",),
}
_MODULES = {name: module for module, names in _NAMES.items() for name in names}
_FRAMEWORKS = ("flower", "nvflare")

__all__ = [*sorted(_MODULES), "__version__"]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return globals().setdefault("__version__", version("fedworth"))
    if name in _FRAMEWORKS:
        return import_module(f"fedworth.{name}")
    if name not in _MODULES:
        raise AttributeError(f"module 'fedworth' has no attribute {name!r}")
    return getattr(import_module(f"fedworth.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULES, *_FRAMEWORKS})
