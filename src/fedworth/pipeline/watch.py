"""Watch: value a federation while it still trains, after each round.

    settings.json   the task, measure and weighting that the values belong to
    factors.npz     the last completion: the next one starts from it
    report.json     the last valuations

What was measured is kept beside the ledger, so only new cells cost anything, here and in a later `observe`. When the
ledger is closed the completion is made once more, from nothing: so the last report depends on the ledger and the
settings alone, whatever was watched or killed before, and is what `observe`, `complete` and `value` give.
"""

from functools import lru_cache, partial
from pathlib import Path

import numpy as np

from fedworth.completion.complete import complete
from fedworth.completion.completion import FactorCompletion, load_completion, save_completion
from fedworth.completion.coverage import coverage
from fedworth.federation.task import Task
from fedworth.ledger.findings import findings
from fedworth.ledger.ledger import Ledger
from fedworth.names import Measure, MethodName, OracleName
from fedworth.pipeline.folder import claim
from fedworth.pipeline.stages import ValuingSettings, measure, value_by
from fedworth.report.report import Report
from fedworth.storage import write_json
from fedworth.utility.cache import architecture
from fedworth.utility.choices import oracle_named
from fedworth.utility.fast import FastOracle
from fedworth.utility.matrix import UtilityMatrix
from fedworth.utility.oracle import LoopOracle

METHODS: tuple[MethodName, ...] = ("comfedsv", "fedsv")


def claim_for(folder: Path, settings: ValuingSettings, task: Task) -> None:
    """Take the folder for these settings and this task, or refuse it."""
    document = {**settings.document(), "test_sha256": task.fingerprint, "module_sha256": architecture(task)}
    otherwise = "watched with another task or other settings before; name another with --out"
    claim(folder, document, may_resume=True, otherwise=otherwise)


def update(ledger: Ledger, task: Task, settings: ValuingSettings, folder: Path, *, n_checked: int = 0) -> Report:
    """Value the rounds that are there; measures only what was not measured before, and does not read again the first
    `n_checked` rounds, which were found whole before."""
    matrix = measure(ledger, _oracle(settings.oracle, task, settings.measure), settings, n_checked=n_checked)
    completed = partial(_complete, ledger, matrix, settings, folder)
    valuations, refusals = value_by(METHODS, matrix, completed, settings)
    report = Report(
        f"{ledger.folder}, after {ledger.n_rounds} rounds" + (", closed" if ledger.is_closed else ""),
        matrix.clients,
        valuations,
        refusals,
        coverage=coverage(matrix).document() if matrix.heard.any() else None,
        notes=() if valuations else ledger.warnings(),  # a valuation carries them itself
        findings=findings(ledger),
    )
    write_json(folder / "report.json", report.document())
    return report


@lru_cache(maxsize=1)
def _oracle(name: OracleName, task: Task, measure: Measure) -> FastOracle | LoopOracle:
    """The last task's oracle: what it has found out about the module, and checked, serves the next rounds too."""
    return oracle_named(name, task, measure)


def _complete(ledger: Ledger, matrix: UtilityMatrix, settings: ValuingSettings, folder: Path) -> FactorCompletion:
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
