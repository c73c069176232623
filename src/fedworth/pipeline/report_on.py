"""From a ledger and a task to a report: the one way that `run`, `watch` and `report` go.

    valuing.json    the task and the settings that the other files belong to; with others the folder is refused
    truth.npz       utilities of everyone in every round, where a simulation knows them
    utilities.npz   utilities of each round's participants
    completion.npz  what ComFedSV rests on, if that is not the factors
    factors.npz     the paper's completion, which stands beside it in every report

These files lie in `folder`. One that is there, of the same ledger, task and utilities, is not made again. While a
federation trains, a round is completed by what was known when it came, and stays so. When the ledger is closed, all of
its rounds are completed once more, from nothing: the last report depends on the ledger and the settings alone.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from fedworth.coalitions import MOST_ENUMERATED
from fedworth.completion.completion import Completion
from fedworth.completion.completion_file import load_completion, load_factors, save_completion
from fedworth.completion.coverage import coverage
from fedworth.completion.factors import FactorCompletion
from fedworth.completion.models import ModelCompletion, complete_by_models
from fedworth.findings import OF_ANSWERS, findings
from fedworth.games.matrix import UtilityMatrix
from fedworth.games.matrix_file import load_utilities, save_utilities
from fedworth.ledger.ledger import Ledger
from fedworth.ledger.manifest import heads
from fedworth.names import Measure, MethodName, OracleName
from fedworth.oracle.choices import oracle_named
from fedworth.oracle.fast import FastOracle
from fedworth.oracle.oracle import LoopOracle
from fedworth.pipeline.folder import claim_for
from fedworth.pipeline.stages import ValuingSettings, factors_of, measure, rounds_of, value_by
from fedworth.report.report import Provenance, Report
from fedworth.storage import Place, Progress, silent
from fedworth.task.task import Task
from fedworth.trail import Trail, fingerprint

BESIDE: tuple[MethodName, ...] = ("truth", "heard-round", "leave-one-out", "fedsv-later")

UNHEARD = (
    "no round hears everyone: how alike clients are is known from the rounds that they share alone, so values are less "
    "sure; and by factors nothing can be said of coalitions of more clients than a round heard"
)
SO_FAR = (
    "the federation still trains: rounds that were valued before stay as they were completed then; when the ledger is "
    "closed, all rounds are completed once more, and values change a little"
)


def report_on(
    ledger: Ledger,
    task: Task,
    settings: ValuingSettings,
    folder: Place,
    *,
    title: str | None = None,
    with_truth: bool = False,
    copies: tuple[tuple[str, str], ...] = (),
    n_checked: int = 0,
    progress: Progress = silent,
) -> Report:
    """Value a ledger on a task: observe, complete, value and check.

    Args:
        ledger: The recorded federation.
        task: What its models are judged by.
        settings: How it is valued.
        folder: Where what the report rests on is left. It belongs to this task and these settings: with others it is
            refused.
        title: The report's title.
        with_truth: Measure the truth too, where the ledger has kept the absent clients' models.
        copies: Pairs of clients that are known to hold the same data.
        n_checked: So many rounds were found whole before, and are not read again.
        progress: Called with what is being done, how many parts are done and how many there are.

    Returns:
        All that is said of the clients; `Report.write` writes it as a page and files.

    Example:
        fedworth.report_on(ledger, fedworth.load_task("mytask.py:task"), fedworth.ValuingSettings(), "my.report")
    """
    folder = Path(folder)
    claim_for(folder, settings, task)
    work = _Work(ledger.without(settings.without), task, settings, folder, progress)
    utilities, truth = work.measured(with_truth, n_checked)
    completed: dict[MethodName, Callable[[], Completion]] = {"comfedsv": partial(work.by_factors, utilities)}
    if settings.completion != "factors":
        completed = {"comfedsv": partial(work.by_models, utilities), "comfedsv-factors": completed["comfedsv"]}
    beside = [method for method in BESIDE if method != "truth" or truth is not None]
    valuations, refusals = value_by([*completed, "fedsv", *beside], utilities, completed, settings, truth=truth)
    return Report(
        title=title or f"{ledger.folder}: {len(utilities.clients)} clients, {utilities.n_rounds} rounds",
        clients=utilities.clients,
        valuations=valuations,
        refusals=refusals,
        copies=copies,
        coverage=coverage_of(utilities),
        notes=notes_of(ledger, utilities, is_valued=bool(valuations)),
        findings=findings(ledger),
        looked_for=OF_ANSWERS,
        rounds=rounds_of(utilities, work.numbers),
        provenance=provenance_of(ledger, task, settings),
    )


def provenance_of(ledger: Ledger, task: Task, settings: ValuingSettings) -> Provenance:
    """Where the numbers of a report on this ledger come from."""
    numbers = {entry.number for entry in ledger.entries}
    known = numbers | {gone.number for gone in ledger.missing}
    return Provenance(
        ledger.chain,
        ledger.n_rounds,
        task.fingerprint,
        settings=settings.document(),
        n_missing_rounds=max(known) - min(known) + 1 - len(numbers) if known else 0,
        n_rejected_answers=sum(len(entry.quarantined) for entry in ledger.entries),
    )


def coverage_of(utilities: UtilityMatrix) -> dict[str, Any] | None:
    """How much of each column was seen, if there are columns that values rest on, and not too many to list."""
    n_heard = int(utilities.heard.sum())
    is_listed = n_heard > 0 and (n_heard <= MOST_ENUMERATED or utilities.permutations is not None)
    return coverage(utilities).document() if is_listed else None


def notes_of(ledger: Ledger, utilities: UtilityMatrix, *, is_valued: bool) -> tuple[str, ...]:
    """What is to be said of the ledger as a whole; what a valuation carries itself is not repeated."""
    heard = utilities.participants[:, utilities.heard]
    said = [] if is_valued else [*ledger.warnings()]
    said += [UNHEARD] if heard.any() and not heard.all(axis=1).any() else []
    said += [] if ledger.is_closed else [SO_FAR]
    return tuple(said)


@lru_cache(maxsize=1)
def oracle_of(name: OracleName, task: Task, measure: Measure) -> FastOracle | LoopOracle:
    """The last task's oracle: what it has found out about the module, and checked, serves the next rounds too."""
    return oracle_named(name, task, measure)


@dataclass(frozen=True)
class _Work:
    """The stages of one ledger, each made once and left in the folder."""

    ledger: Ledger
    task: Task
    settings: ValuingSettings
    folder: Path
    progress: Progress

    @property
    def numbers(self) -> tuple[int, ...]:
        """The rounds by the federation's own numbers."""
        return tuple(entry.number for entry in self.ledger.entries)

    @property
    def _oracle(self) -> FastOracle | LoopOracle:
        return oracle_of(self.settings.oracle, self.task, self.settings.measure)

    def measured(self, with_truth: bool, n_checked: int) -> tuple[UtilityMatrix, UtilityMatrix | None]:
        """What the server could have seen, and the truth if it is wanted; the truth is measured once for both."""
        truth = self._utilities("truth.npz", n_checked) if with_truth else None
        path = self.folder / "utilities.npz"
        if truth is None or truth.round_values is not None:  # of everyone: FedSV needs those of the participants
            return self._utilities(path.name, n_checked), truth
        seen = self._kept_utilities(path)
        if seen is None:
            seen = truth.seen_part()
            save_utilities(seen, path)
        return seen, truth

    def _utilities(self, name: str, n_checked: int) -> UtilityMatrix:
        """The utilities of this name, as they lie in the folder or measured now; games of earlier rounds are kept."""
        path, with_truth = self.folder / name, name == "truth.npz"
        found = self._kept_utilities(path)
        if found is None:
            before = load_utilities(path) if path.is_file() else None
            earlier = before.round_values if before is not None and self._is_earlier(before.trail) else None
            found = measure(
                self.ledger,
                self._oracle,
                self.settings,
                with_truth=with_truth,
                n_checked=n_checked,
                earlier=earlier,
                progress=self.progress,
            )
            save_utilities(found, path)
        return found

    def by_models(self, utilities: UtilityMatrix) -> Completion:
        """The completion by predicted models; rounds that were completed while the federation trained stay so."""
        path = self.folder / "completion.npz"
        kept = load_completion(path) if path.is_file() else None
        if kept is not None and kept.trail == _trail_of(utilities):
            return kept
        is_grown = not self.ledger.is_closed and kept is not None and self._is_earlier(kept.trail)
        earlier = kept if is_grown and isinstance(kept, ModelCompletion) else None
        made = complete_by_models(
            self.ledger,
            self._oracle,
            utilities,
            weighting=self.settings.weighting,
            as_average=self.settings.as_average,
            earlier=earlier,
            progress=self.progress,
        )
        save_completion(made, path)
        return made

    def by_factors(self, utilities: UtilityMatrix) -> FactorCompletion:
        """The completion by factors; while a federation trains, it starts from the last one."""
        path = self.folder / "factors.npz"
        kept = load_factors(path) if path.is_file() else None
        if kept is not None and kept.trail == _trail_of(utilities):
            return kept
        is_near = kept is not None and not self.ledger.is_closed and kept.rank == self.settings.factors.rank
        n_new = utilities.n_rounds - (kept.n_rounds if kept is not None else 0)
        start = (
            np.pad(kept.round_factors, ((0, n_new), (0, 0))) if kept is not None and is_near and n_new >= 0 else None
        )
        made = factors_of(utilities, self.settings, start=start)
        save_completion(made, path)
        return made

    def _kept_utilities(self, path: Path) -> UtilityMatrix | None:
        """The utilities at `path`, if they are of this ledger and task."""
        kept = load_utilities(path, is_truth=path.name == "truth.npz") if path.is_file() else None
        expected = Trail(self.ledger.chain, self.ledger.n_rounds, self.task.fingerprint)
        return kept if kept is not None and kept.trail == expected else None

    def _is_earlier(self, trail: Trail | None) -> bool:
        """Whether these numbers are of this ledger when it was shorter, and of this task."""
        passed = {head.chain for head in heads(self.ledger.folder)}
        return trail is not None and trail.head in passed and trail.task == self.task.fingerprint


def _trail_of(utilities: UtilityMatrix) -> Trail | None:
    """The trail of a completion of these utilities."""
    return None if utilities.trail is None else replace(utilities.trail, utilities=fingerprint(utilities))
