"""Audit: a report and the ledger that it should be of go in; the trail from one to the other is recomputed.

    ledger       every byte is checked, and it has passed through the head that the report names
    task         its fingerprint is the one that the report names
    utilities    the file beside the report holds the numbers that were valued, measured on that ledger and task
    completion   the file beside the report holds the estimates that were valued, of those utilities
    values       valuing those utilities again gives the report's values and intervals
    report.json  made again from all of these, it says the same: shares, ranks, chances, rounds, findings, sentences
    papers       report.csv, report.md and report.html say what report.json says: made again, they are the same bytes

A step that fails ends the audit with an error that names it. A step for which something is not at hand is said to be
unchecked: it is not taken for good.
"""

import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from fedworth.completion.completion import Completion
from fedworth.completion.completion_file import Loaded, load_completion
from fedworth.errors import ArtefactError, FedworthError, LedgerError, UnseenError
from fedworth.games.matrix import UtilityMatrix
from fedworth.games.matrix_file import load_utilities
from fedworth.ledger.ledger import Ledger, verify_ledger
from fedworth.ledger.manifest import find_head
from fedworth.names import MethodName, checked_name
from fedworth.pipeline.retold import ROUGHLY, difference, of_ledger, of_utilities
from fedworth.report.files import REWARDS, read_rewards, write_report
from fedworth.report.page import page_html
from fedworth.report.report import Report, report_from
from fedworth.simulation.simulate import task_for
from fedworth.trail import SOFTWARE, Trail, fingerprint
from fedworth.valuation.valuation import Valuation
from fedworth.valuation.value import value

CLOSE = 1e-9
"""Values may differ by so much of the largest: other processors add in other orders."""

REPORT = "report.json"
UTILITIES, COMPLETIONS = ("utilities.npz", "truth.npz"), ("completion.npz", "factors.npz")


@dataclass(frozen=True)
class Step:
    """One step of an audit that did not fail: what was compared, whether it could be, and what was found."""

    name: str
    is_checked: bool
    found: str


@dataclass(frozen=True)
class Artefacts:
    """What stands beside a report, by fingerprint."""

    utilities: dict[str, UtilityMatrix]
    completions: dict[str, Loaded]


def audit(
    document: dict[str, Any], ledger: Path, folder: Path, *, task: str | None = None, data_folder: Path | None = None
) -> list[Step]:
    """Recompute the trail from the ledger to the report with this document; `folder` is where its artefacts stand."""
    report = report_from(document)
    trail = report.trail
    if trail is None:
        raise ArtefactError(
            f"{report.title}: has no trail, so it cannot be followed to a ledger; its utilities were brought, or "
            "written by an older fedworth; observe and value the ledger again"
        )
    whole = verify_ledger(ledger)
    kept = _artefacts(folder)
    return [
        _ledger_step(whole, trail),
        _task_step(whole, trail, task, data_folder),
        *_utilities_steps(report.valuations, kept, trail),
        *_completion_steps(report.valuations, kept),
        *_value_steps(report.valuations, kept),
        *_document_steps(document, report, whole, kept),
        *_paper_steps(report, folder),
        Step("software", True, f"made by {trail.software}, audited by {SOFTWARE}"),
    ]


def _artefacts(folder: Path) -> Artefacts:
    matrices = [load_utilities(path) for name in UTILITIES if (path := folder / name).is_file()]
    completions = [load_completion(path) for name in COMPLETIONS if (path := folder / name).is_file()]
    return Artefacts({fingerprint(made): made for made in matrices}, {fingerprint(made): made for made in completions})


def _ledger_step(ledger: Ledger, trail: Trail) -> Step:
    try:
        head = find_head(ledger.folder, trail.head)
    except LedgerError as error:
        raise _broken("ledger", str(error)) from None
    if head.n_rounds != trail.n_rounds:
        raise _broken("ledger", f"{trail.n_rounds} rounds in the report, {head.n_rounds} at that head")
    since = ledger.n_rounds - head.n_rounds
    more = f"; {since} rounds were recorded since, which it does not value" if since else ""
    return Step("ledger", True, f"every byte as written; the report is of its first {head.n_rounds} rounds{more}")


def _task_step(ledger: Ledger, trail: Trail, task: str | None, data_folder: Path | None) -> Step:
    if trail.task is None:
        return Step("task", False, "the report does not say which")
    try:
        found = task_for(ledger, task, data_folder=data_folder).fingerprint
    except FedworthError as error:
        if task is not None:
            raise
        return Step("task", False, f"not at hand; name it with --task ({error})")
    if found != trail.task:
        raise _broken("task", f"the report names {trail.task}, this one is {found}: another test set, or another part")
    return Step("task", True, f"the report's, {found}")


def _utilities_steps(valuations: Iterable[Valuation], kept: Artefacts, trail: Trail) -> Iterator[Step]:
    if not kept.utilities:
        yield Step("utilities", False, f"neither of {', '.join(UTILITIES)} beside the report")
        return
    for valuation in valuations:
        matrix = kept.utilities.get(_of(valuation).utilities or "")
        if matrix is None:
            raise _broken("utilities", f"those beside the report are not those that {valuation.method} was made from")
        measured = matrix.trail
        if measured is None or (measured.head, measured.task) != (trail.head, trail.task):
            raise _broken("utilities", f"those of {valuation.method} were measured on another ledger or task")
        if replace(_of(valuation), utilities=None, completion=None) != measured:
            raise _broken("utilities", f"those of {valuation.method} were measured by {measured.software}, or say so")
    yield Step("utilities", True, "those beside the report were measured on this ledger, and valued")


def _completion_steps(valuations: Iterable[Valuation], kept: Artefacts) -> Iterator[Step]:
    for valuation in valuations:
        wanted = _of(valuation).completion
        if wanted is None:
            continue
        if not kept.completions:
            yield Step("completion", False, f"neither of {', '.join(COMPLETIONS)} beside the report")
            return
        if wanted not in kept.completions:
            raise _broken("completion", f"the one beside the report is not the one that {valuation.method} rests on")
        of = kept.completions[wanted].trail
        if of is None or of != replace(_of(valuation), completion=None):
            raise _broken("completion", f"the one of {valuation.method} was made from other utilities, or says so")
        yield Step("completion", True, f"the one beside the report is that of {valuation.method}")


def _value_steps(valuations: Iterable[Valuation], kept: Artefacts) -> Iterator[Step]:
    for valuation in valuations:
        again = _again(valuation, kept)
        if again is None:
            yield Step(valuation.method, False, "its utilities or completion are not at hand")
            continue
        scale = float(np.nanmax(np.abs(again.values), initial=0.0))
        if not np.allclose(again.values, valuation.values, rtol=0.0, atol=CLOSE * scale, equal_nan=True):
            worst = int(np.nanargmax(np.abs(again.values - valuation.values)))
            found = f"{valuation.values[worst]} in the report, {again.values[worst]} when valued again"
            raise _broken(valuation.method, f"client {valuation.clients[worst]!r} has {found}")
        if not _same_intervals(again, valuation, ROUGHLY * scale):
            raise _broken(valuation.method, "its intervals are not those that it has when valued again")
        yield Step(valuation.method, True, "valued again from its utilities: the same values")


def _document_steps(document: dict[str, Any], report: Report, ledger: Ledger, kept: Artefacts) -> Iterator[Step]:
    """The document held against the one that would be written now, as far as what it is made of is at hand."""
    trail, again, left = report.trail, report, list[str]()
    assert trail is not None  # who has none was refused
    if trail.software != SOFTWARE:
        yield Step(REPORT, False, f"{SOFTWARE} may say other things than {trail.software}, which made it")
        return
    matrix = _seen(report.valuations, kept)
    valuations = [_again(valuation, kept) for valuation in report.valuations]
    if matrix is None or None in valuations:
        left.append("what follows from utilities that are not at hand")
    else:
        chosen = report.valuation("comfedsv")
        completion = None if chosen is None else kept.completions.get(_of(chosen).completion or "")
        again = of_utilities(again, tuple(v for v in valuations if v is not None), matrix, completion, ledger)
    if matrix is None or ledger.chain != trail.head:
        left.append("notes and findings of the ledger as it was then")
    else:
        again = of_ledger(again, matrix, ledger)
    found = difference(document, again.document())
    if found:
        raise _broken(REPORT, found)
    yield Step(REPORT, not left, f"made again, it says the same{'; but not ' if left else ''}{', nor '.join(left)}")
    if report.refusals:
        yield Step("refusals", False, "methods that gave no values are not tried again")


def _seen(valuations: Iterable[Valuation], kept: Artefacts) -> UtilityMatrix | None:
    """The utilities that the server could have seen, which all but the truth is made from."""
    hashes = [_of(valuation).utilities for valuation in valuations if valuation.method != "truth"]
    return kept.utilities.get(hashes[0] or "") if hashes else None


def _again(valuation: Valuation, kept: Artefacts) -> Valuation | None:
    """The same valuation made now; None if what it is made from is not at hand."""
    trail = _of(valuation)
    matrix, completion = kept.utilities.get(trail.utilities or ""), kept.completions.get(trail.completion or "")
    if matrix is None or (trail.completion is not None and completion is None):
        return None
    return _valued(matrix, checked_name("method", valuation.method), completion)


def _same_intervals(again: Valuation, valuation: Valuation, atol: float) -> bool:
    """Whether both are equally sure; intervals of a report may be wider than what valuing again knows of."""
    if again.intervals is None or valuation.intervals is None:
        return True
    return np.allclose(again.intervals, valuation.intervals, rtol=0.0, atol=atol, equal_nan=True)


def _paper_steps(report: Report, folder: Path) -> Iterator[Step]:
    """What stands beside report.json for people to read, held against what would be written for it now."""
    rewards = read_rewards(folder) if (folder / REWARDS).is_file() else None
    with tempfile.TemporaryDirectory() as made:
        write_report(report, made)
        pages = {"report.csv": [], "report.md": [], "report.html": [page_html(report, rewards=rewards)]}
        for name, others in pages.items():
            path = folder / name
            if not path.is_file():
                continue
            texts = [(Path(made) / name).read_bytes(), *(other.encode(errors="backslashreplace") for other in others)]
            if path.read_bytes() in texts:
                yield Step(name, True, "says what report.json says")
            else:
                how = "not what this fedworth writes for report.json, with its own title and words: changed since, "
                yield Step(name, False, f"{how}or made with others; report.json is what was checked")


def _valued(matrix: UtilityMatrix, method: MethodName, completion: Completion | None) -> Valuation:
    try:
        return value(matrix, method, completion=completion)
    except UnseenError:  # it was asked for by name, or there would be no such valuation
        return value(matrix, method, completion=completion, unseen="zero")


def _of(valuation: Valuation) -> Trail:
    assert valuation.trail is not None  # a report with a trail has it from all of its valuations
    return valuation.trail


def _broken(step: str, why: str) -> ArtefactError:
    return ArtefactError(f"the trail breaks at the {step}: {why}; do not use this report")
