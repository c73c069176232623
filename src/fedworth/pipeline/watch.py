"""Watch: value a federation while it still trains, after each round.

    settings.json   the task, measure and weighting that the values belong to
    factors.npz     the last completion: the next one starts from it
    report.json     the last valuations

What was measured is kept beside the ledger, so only new cells cost anything, here and in a later `observe`. When the
ledger is closed the completion is made once more, from nothing: so the last report depends on the ledger and the
settings alone, whatever was watched or killed before, and is what `observe`, `complete` and `value` give.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from fedworth.arrays import stream
from fedworth.completion.complete import FactorSettings, complete
from fedworth.completion.completion import FactorCompletion, load_completion, save_completion
from fedworth.completion.coverage import coverage
from fedworth.errors import ArtefactError, CompletionError, ValuationError
from fedworth.federation.task import Task
from fedworth.ledger.findings import findings
from fedworth.ledger.ledger import Ledger
from fedworth.report.report import Report
from fedworth.storage import json_bytes, make_folder, read_json, write_json
from fedworth.utility.cache import architecture, utility_cache
from fedworth.utility.choices import oracle_named
from fedworth.utility.fast import FastOracle
from fedworth.utility.matrix import UtilityMatrix
from fedworth.utility.observe import observe, participation
from fedworth.utility.oracle import LoopOracle
from fedworth.utility.planning.plan import plan_exact, plan_prefixes
from fedworth.valuation.comfedsv import comfedsv
from fedworth.valuation.fedsv import fedsv
from fedworth.valuation.valuation import Valuation


@dataclass(frozen=True)
class WatchSettings:
    """How to value while watching."""

    weighting: str | None = None  # None: as fits the federation
    measure: str = "loss"
    oracle: str = "fast"
    monte_carlo: bool = False
    n_permutations: int | None = None
    completion: FactorSettings = field(default_factory=FactorSettings)
    unseen: str = "refuse"
    seed: int = 0

    def document(self) -> dict[str, Any]:
        """The settings as JSON."""
        return asdict(self)


def claim(folder: Path, settings: WatchSettings, task: Task) -> None:
    """Take the folder for these settings and this task, or refuse it."""
    document = {**settings.document(), "test_sha256": task.fingerprint, "module_sha256": architecture(task)}
    path = folder / "settings.json"
    if not path.is_file():
        make_folder(folder)
        write_json(path, document)
    elif json_bytes(read_json(path)) != json_bytes(document):
        raise ArtefactError(f"{folder}: watched with another task or other settings before; name another with --out")


def update(ledger: Ledger, task: Task, settings: WatchSettings, folder: Path, *, n_checked: int = 0) -> Report:
    """Value the rounds that are there; measures only what was not measured before, and does not read again the first
    `n_checked` rounds, which were found whole before."""
    matrix = _observe(ledger, task, settings, n_checked)
    valuations: list[Valuation] = []
    refusals: list[tuple[str, str]] = []
    methods: dict[str, Callable[[], Valuation]] = {
        "comfedsv": lambda: comfedsv(matrix, _complete(ledger, matrix, settings, folder), unseen=settings.unseen),
        "fedsv": lambda: fedsv(matrix),
    }
    for method, valued in methods.items():
        try:
            valuations.append(valued())
        except (CompletionError, ValuationError) as error:
            refusals.append((method, str(error)))
    title = f"{ledger.folder}, after {ledger.n_rounds} rounds" + (", closed" if ledger.is_closed else "")
    report = Report(
        title,
        ledger.clients,
        tuple(valuations),
        tuple(refusals),
        coverage=coverage(matrix).document() if matrix.heard.any() else None,
        notes=() if valuations else ledger.warnings(),  # a valuation carries them itself
        findings=findings(ledger),
    )
    write_json(folder / "report.json", report.document())
    return report


def _observe(ledger: Ledger, task: Task, settings: WatchSettings, n_checked: int) -> UtilityMatrix:
    participants = participation(ledger)
    plan = plan_exact(participants)
    if settings.monte_carlo:
        rng = stream(settings.seed, "permutations")
        plan = plan_prefixes(participants, n_permutations=settings.n_permutations, rng=rng)
    oracle = _oracle(settings.oracle, task, settings.measure)
    weighting = settings.weighting or ledger.default_weighting
    cache = utility_cache(ledger, oracle)
    return observe(ledger, oracle, plan, weighting=weighting, cache=cache, n_checked=n_checked)


@lru_cache(maxsize=1)
def _oracle(name: str, task: Task, measure: str) -> FastOracle | LoopOracle:
    """The last task's oracle: what it has found out about the module, and checked, serves the next rounds too."""
    return oracle_named(name, task, measure)


def _complete(ledger: Ledger, matrix: UtilityMatrix, settings: WatchSettings, folder: Path) -> FactorCompletion:
    """From the last factors while the federation trains, from nothing when it is over."""
    path = folder / "factors.npz"
    start = None
    if path.is_file() and not ledger.is_closed:
        last = load_completion(path).round_factors  # (n_rounds before, rank)
        n_new = matrix.n_rounds - len(last)
        if n_new >= 0 and last.shape[1] == settings.completion.rank:
            start = np.pad(last, ((0, n_new), (0, 0)))
    made = complete(matrix, settings.completion, start=start)
    save_completion(made, path)
    return made
