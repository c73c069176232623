"""From a ledger and a task to a report; `run`, `watch`, `report` and `verify` all use `report_on`."""

import os
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from fedworth.errors import ArtefactError, CompletionError, MachineError, TooManyError, UsageError
from fedworth.findings import look, look_at_lengths
from fedworth.games.matrix import UtilityMatrix
from fedworth.ledger.ledger import Ledger
from fedworth.ledger.manifest import heads, is_ledger
from fedworth.oracle.store import Session
from fedworth.provenance import STILL_TRAINING, Provenance
from fedworth.records import differing
from fedworth.report.report import Report, Rounds
from fedworth.report.scores import scores_of
from fedworth.storage import Place, Progress, silent
from fedworth.task.modules import UtilityModule
from fedworth.task.task import Task
from fedworth.valuation.federation import Federation, MeasuredUtilities, values_by
from fedworth.valuation.methods import HEADLINE, round_gains
from fedworth.valuation.settings import ValuationSettings, WorkSettings
from fedworth.valuation.vertical import REFITTED, VERFEDSV

REPORTED = (
    HEADLINE,
    "comfedsv",
    "fedsv",
    "fedsv-equal",
    "truth",
    "all-clients-round",
    "leave-one-out",
    "fedsv-later",
)
OF_UTILITIES = tuple(name for name in REPORTED if name not in ("truth", HEADLINE, "fedsv-equal"))
OF_VERTICAL = REFITTED, VERFEDSV, "leave-one-out"
NO_ALL_CLIENTS_ROUND = (
    "no round has all clients: how similar clients are is known only from the rounds they share, so values are less "
    "precise, and the paper's completion says nothing of coalitions larger than a round's participants; let one round "
    "ask everyone"
)


def report_on(
    of: Ledger | UtilityMatrix,
    task: Task | None = None,
    settings: ValuationSettings | None = None,
    *,
    methods: Sequence[str] | None = None,
    work: WorkSettings | None = None,
    title: str | None = None,
    copies: tuple[tuple[str, str], ...] = (),
    session: Session | None = None,
    progress: Progress = silent,
    like: Provenance | None = None,
) -> Report:
    """Value a ledger on a task, or utilities of your own, by several methods; of a ledger, look for findings too.

    Args:
        of: The recorded federation, or measured utilities.
        task: What a ledger's models are judged by; utilities need none.
        settings: How it is valued.
        methods: Names of methods; the everyday ones if not given. A method that must be refused is named in the report.
        work: Where it is measured; this changes no value.
        title: The report's title.
        copies: Pairs of clients that are known to hold the same data.
        session: What this process remembers of the same ledger and task, for a ledger that grows.
        progress: Called with what is being done, how many parts are done and how many there are.
        like: Of a report to repeat: measure what it measured, whatever an evaluation takes on this machine.

    Returns:
        The report; `report.write(folder)` writes it as a page and files.

    Example:
        report = fedworth.report_on(ledger, fedworth.Task.load("mytask.py:task"))
        report.write("my.report")
    """
    settings, work = settings or ValuationSettings(), work or WorkSettings()
    if isinstance(of, UtilityMatrix):
        source = MeasuredUtilities(of, settings)
        valuations, refusals = values_by(source, dict.fromkeys(methods or OF_UTILITIES))
        rounds = Rounds(tuple(range(1, of.n_rounds + 1)), of.participants, round_gains(source))
        title = title or f"{len(of.clients)} clients, {of.n_rounds} rounds"
        return Report(title, of.clients, valuations, refusals, copies, _coverage(source), rounds=rounds)
    if task is None:
        raise UsageError(f"{of.folder}: a ledger is valued on a task; give one (a model and a test set)")
    sampled = None if like is None else like.sampled
    federation = Federation(of, task, settings, work=work, session=session, progress=progress, sampled=sampled)
    absent = {"truth"} if not federation.recorded.has_truth else set()
    absent |= {"fedsv-equal"} if settings.clip else set()  # the same as FedSV then
    everyday = OF_VERTICAL if federation.is_vertical else REPORTED
    names = methods or [name for name in everyday if name not in absent]
    slow = like.slow if like is not None else () if methods else federation.slow_methods(names)
    names = [name for name in dict.fromkeys(names) if name not in slow]
    valuations, refusals = values_by(federation, names)
    recorded = federation.recorded
    findings, looked_for = look(recorded.ledger)
    by_length, looked_at = look_at_lengths(recorded.ledger, valuations, recorded.lengths)
    return Report(
        title=title or f"{of.folder}: {len(of.clients)} clients, {of.n_rounds} rounds",
        clients=of.clients,
        valuations=valuations,
        refusals=(*refusals, *((name, federation.slow_reason(name)) for name in slow)),
        copies=copies,
        coverage=_coverage(federation) if "comfedsv" in names else None,  # others need no utility matrix
        notes=_notes(federation, is_valued=bool(valuations)),
        findings=findings + by_length,
        looked_for=looked_for + looked_at,
        rounds=Rounds(recorded.numbers, recorded.participants, round_gains(federation)),
        scores=scores_of(federation) if "leave-one-out" in names else None,  # what it measured already
        provenance=provenance_of(federation, of, task, slow),
    )


def provenance_of(federation: Federation, ledger: Ledger, task: Task, slow: Sequence[str] = ()) -> Provenance:
    """What values of a federation come from, once they are made; the ledger and the task are those it was opened with.

    `slow` are the methods that were left out.
    """
    measured = federation.recorded.oracle.task
    criterion = measured.criterion(federation.settings.measure)
    return Provenance(
        ledger.chain,
        ledger.n_rounds,
        task.fingerprint,
        settings=asdict(federation.settings),
        n_missing_rounds=_n_missing(ledger),
        n_rejected_answers=sum(len(entry.quarantined) for entry in ledger.entries),
        sampled=bool(federation.effort.sampled),
        slow=tuple(slow),
        judged_by=criterion.name,
        n_test_samples=None if isinstance(task.module, UtilityModule) else len(measured.labels),
        samples="test samples" if federation.estimated is None else "labelled samples",
        is_vertical=federation.is_vertical,
        is_open=not ledger.is_closed,
        unit=criterion.unit,
    )


def _n_missing(ledger: Ledger) -> int:
    """How many rounds are reported missing, or were skipped by a recorder that was stopped."""
    recorded = {entry.number for entry in ledger.entries}
    known = recorded | {gone.number for gone in ledger.missing}
    return max(known) - min(known) + 1 - len(recorded) if known else 0


def refuse_other_report(folder: Place, ledger: Ledger, task: Task, settings: ValuationSettings) -> None:
    """Refuse a folder that cannot be written, or whose report of another federation, task or settings would be lost.

    To be called before anything is measured.
    """
    path = Path(folder) / "report.json"
    there = next(place for place in (Path(folder).absolute(), *Path(folder).absolute().parents) if place.exists())
    if not os.access(there, os.W_OK | os.X_OK):
        raise MachineError(f"{folder}: cannot be written; name another folder for the report (--out)")
    if is_ledger(Path(folder)):
        raise ArtefactError(f"{folder}: is a ledger; name another folder for the report (--out)")
    if not path.is_file():
        return
    found = Report.read(path).provenance
    if found is None or found.other_heads or found.head not in {head.chain for head in heads(ledger.folder)}:
        raise ArtefactError(f"{path}: a report on another federation; name another folder (--out), or remove it first")
    others = differing(found.settings, asdict(settings))
    if others or found.task != task.fingerprint:
        raise ArtefactError(
            f"{path}: a report with {f'other settings ({others})' if others else 'another task'}; name another folder "
            "(--out)"
        )


def _coverage(federation: Federation | MeasuredUtilities) -> dict[str, object] | None:
    """How many cells of the utility matrix were seen, by coalition size; None where no matrix was made."""
    try:
        return federation.utility_matrix().coverage()
    except (CompletionError, TooManyError):
        return None


def _notes(federation: Federation, *, is_valued: bool) -> tuple[str, ...]:
    """Notes on the ledger as a whole, without those that valuations have."""
    ledger = federation.recorded.ledger
    heard = federation.participants[:, federation.recorded.heard]
    notes = [] if is_valued else list(ledger.warnings())
    if heard.any() and not heard.all(axis=1).any() and not federation.is_vertical:
        notes.append(NO_ALL_CLIENTS_ROUND)
    if not ledger.is_closed:
        notes.append(STILL_TRAINING)
    return tuple(notes)
