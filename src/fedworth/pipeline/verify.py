"""Verify a report by making it again, and a statement by its client's receipts.

No stored result is trusted: every byte of the ledger is checked, all utilities are measured again, and the report is
made from them with the settings that it names. What cannot be compared is named.

A statement lists the models that were valued. The client compares them with its own receipts, and needs nobody else's
models; whoever may read the ledger can also compare the statement with it.
"""

import itertools
import json
import math
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from fedworth.errors import ArtefactError, FedworthError, LedgerError
from fedworth.ledger.ledger import Ledger
from fedworth.ledger.manifest import find_head
from fedworth.ledger.receipts import Receipt, read_receipts
from fedworth.pipeline.report_on import report_on
from fedworth.pipeline.run import SETTINGS, RunSettings
from fedworth.provenance import SOFTWARE, Provenance
from fedworth.report.page.page import settings_of
from fedworth.report.page.statement import Statement, read_statement, with_models
from fedworth.report.report import Report
from fedworth.report.rewards import Rewards, split_again
from fedworth.report.settings import PageSettings
from fedworth.simulation.simulate import simulation_of
from fedworth.storage import Place, Progress, json_bytes, read_json, silent
from fedworth.task.task import Task
from fedworth.valuation.settings import ValuationSettings, WorkSettings

TOLERANCE = 1e-5
"""Numbers may differ by this part of the largest beside them: other processors add in other orders, and intervals
follow from solved systems, which magnify that. Whole numbers may not differ."""

MOST_LISTED = 8
"""Other files in the folder that are named."""

DECIDED_BY_ROUNDING = {"stationarity": 1e-6, "n_sweeps": math.inf}
"""By how much these may differ: how near to 0 the solver's gradient is, and how many sweeps that took."""


@dataclass(frozen=True)
class Check:
    """One thing that was compared, whether it could be, and what was found."""

    name: str
    is_checked: bool
    found: str

    def __str__(self) -> str:
        return f"{self.name}: {'' if self.is_checked else 'not checked: '}{self.found}"


def verify_report(
    report: Report, ledger: Place, task: Task, *, path: Place | None = None, progress: Progress = silent
) -> list[Check]:
    """Make a report again from its ledger and task, and compare.

    Args:
        report: The report to verify.
        ledger: The folder of the ledger that it should be of.
        task: The task that it should be of.
        path: The report.json that it was read from: all that the file says is compared, and the files beside it.
        progress: Called with what is being done, how many parts are done and how many there are.

    Returns:
        What was compared; the first difference is an error.

    Example:
        checks = fedworth.verify_report(report, ledger.folder, task)
    """
    provenance = report.provenance
    if provenance is None:
        raise ArtefactError(
            f"{report.title}: names no ledger, because it was made from given utilities; verify a report on a ledger"
        )
    if provenance.other_heads:
        raise ArtefactError(f"{report.title}: the mean of several runs; verify the report on each of them")
    ledger = Path(ledger)
    whole = Ledger.verify(ledger)
    as_it_was = _as_it_was(whole, provenance)
    since = whole.n_rounds - provenance.n_rounds
    more = f"; {since} rounds were recorded since, which it does not value" if since else ""
    checks = [
        Check("ledger", True, f"every byte as written; the report is of its first {provenance.n_rounds} rounds{more}")
    ]
    if task.fingerprint != provenance.task:
        this = f"this one is {task.fingerprint}: another test set, loss, rule or noise"
        raise _broken("task", f"the report names {provenance.task}, {this}")
    checks.append(Check("task", True, f"the report's, {task.fingerprint}"))
    try:
        settings = msgspec.convert(provenance.settings, ValuationSettings)
    except msgspec.ValidationError as error:
        raise _broken("settings", str(error)) from None
    if settings.budget.seconds is not None or settings.budget.evaluations is not None:
        raise ArtefactError(
            f"{report.title}: cannot be made again, since it was stopped by --seconds or --budget: how far it came "
            "depended on the machine and on utilities that were known already; make one without them, and verify that"
        )
    checks += _chosen(report, whole, settings)
    work = WorkSettings(cache=False)
    methods = [valuation.method for valuation in report.valuations] + [method for method, _ in report.refusals]
    methods = [method for method in methods if method not in provenance.slow]
    again = report_on(
        as_it_was,
        task,
        settings,
        methods=methods,
        work=work,
        title=report.title,
        copies=report.copies,
        progress=progress,
        like=provenance,
    )
    document = report.document() if path is None else read_json(path)  # the file may have more than a `Report` keeps
    expected = again.document()
    expected["provenance"]["software"] = provenance.software  # another version may say the same
    found = difference(json.loads(json_bytes(document)), json.loads(json_bytes(expected)))
    if found:
        raise _broken("report.json", found)
    checks.append(Check("report.json", True, "made again from ledger and task, it is the same up to rounding"))
    checks += (
        []
        if path is None
        else _files(report, whole, settings, Path(path).parent, is_same_software=provenance.software == SOFTWARE)
    )
    checks.append(Check("software", True, f"made by {provenance.software}, verified by {SOFTWARE}"))
    return checks


def _as_it_was(ledger: Ledger, provenance: Provenance) -> Ledger:
    """The ledger when the report was made."""
    try:
        head = find_head(ledger.folder, provenance.head)
    except LedgerError as error:
        raise _broken("ledger", str(error)) from None
    if head.n_rounds != provenance.n_rounds:
        raise _broken("ledger", f"{provenance.n_rounds} rounds in the report, {head.n_rounds} at the head it names")
    if ledger.chain == head.chain:
        return ledger
    later = ledger.entries[head.n_rounds :]
    n_clients = len(ledger.clients) - sum(len(entry.joined) for entry in later)
    missing = tuple(gone for gone in ledger.missing if not later or gone.number < later[0].number)
    return replace(
        ledger,
        clients=ledger.clients[:n_clients],
        entries=ledger.entries[: head.n_rounds],
        missing=missing,
        closing=None,
        chain=head.chain,
    )


def _chosen(report: Report, ledger: Ledger, settings: ValuationSettings) -> Iterator[Check]:
    """The report's settings and claims, whose choice no computation can check."""
    plain, chosen = asdict(ValuationSettings()), asdict(settings)
    other = ", ".join(f"{name} {value}" for name, value in chosen.items() if value != plain[name])
    found = f"those of the report, changed from the defaults: {other}" if other else "the defaults"
    yield Check("settings", True, f"{found}; coalitions by weighting {settings.weighting or ledger.aggregation}")
    known = {(ledger.clients[a], ledger.clients[b]) for a, b in (ledger.simulation or {}).get("copies", ())}
    if report.provenance is not None and report.provenance.slow:
        found = f"{', '.join(report.provenance.slow)}: left out as too slow by the machine that made the report"
        yield Check("methods", False, found)
    if unknown := [f"{a} and {b}" for a, b in report.copies if (a, b) not in known]:
        found = f"{', '.join(unknown)} hold the same data, as the report says; the ledger does not say so"
        yield Check("copies", False, found)


def _files(
    report: Report, ledger: Ledger, settings: ValuationSettings, folder: Path, *, is_same_software: bool
) -> list[Check]:
    """The files beside report.json, each compared with what is written for report.json now.

    A page is written with the settings that it names; rewards are split again. A file that another version wrote may
    be worded differently, and is not an error.
    """
    checks, paid = [], _rewards(report, folder)
    with tempfile.TemporaryDirectory() as place:
        report.write(place)
        plain = [path for path in Path(place).iterdir() if path.suffix in (".csv", ".md")]
        expected = {folder / path.name: {path.read_bytes()} for path in sorted(plain)}
        expected |= {} if paid is None else {folder / name: {data} for name, data in paid.files().items()}
        if ledger.simulation is not None:
            run = RunSettings(simulation_of(ledger), settings)
            expected[folder / SETTINGS] = {json_bytes(asdict(run))}
        page = folder / "report.html"
        expected[page] = {report.page_html(_page_settings(page), rewards=each).encode() for each in {None, paid}}
        for client in report.clients if report.valuations else ():
            path = folder / "statements" / report.write_statement(client, place).name
            choices = itertools.product((None, paid), (None, ledger)) if path.is_file() else ()
            expected[path] = {
                report.statement_html(client, _page_settings(path), rewards=each, ledger=valued).encode()
                for each, valued in choices
            }
    for path, contents in expected.items():
        if path.is_file():
            name, same = str(path.relative_to(folder)), path.read_bytes() in contents
            if not same and is_same_software:
                raise _broken(name, "differs from what is written for report.json")
            found = "says what report.json says" if same else "of another version, which words it differently"
            checks.append(Check(name, same, found))
    there = (*folder.glob("*"), *(folder / "statements").glob("*"))
    others = sorted(str(path.relative_to(folder)) for path in {*there} - {*expected} if path.is_file())
    if others := [name for name in others if name != "report.json"]:
        more = f" and {len(others) - MOST_LISTED} more" if len(others) > MOST_LISTED else ""
        found = f"{', '.join(others[:MOST_LISTED])}{more}; they were not written for this report"
        checks.append(Check("other files", False, found))
    return checks


def _page_settings(path: Path) -> PageSettings | None:
    """The settings of a page, if it is there and names them."""
    return settings_of(path.read_text(errors="replace")) if path.is_file() else None


def _rewards(report: Report, folder: Path) -> Rewards | None:
    """The rewards beside a report, split again; None if there are none."""
    if not (folder / "rewards.json").is_file():
        return None
    try:
        return split_again(Rewards.read(folder), report)
    except FedworthError as error:
        raise _broken("rewards.json", str(error)) from None


def difference(found: Any, expected: Any, where: str = "") -> str:
    """The first difference of two documents, and where it is; empty if they are the same up to rounding."""
    if isinstance(found, dict) and isinstance(expected, Mapping) and found.keys() == expected.keys():
        compared = [key for key in expected if not _is_rounding(key, found[key], expected[key])]
        parts = ((f"{where}.{key}".lstrip("."), found[key], expected[key]) for key in compared)
    elif isinstance(found, list) and isinstance(expected, list | tuple) and len(found) == len(expected):
        if _are_close(found, expected):
            return ""
        parts = ((f"{where}[{k}]", *pair) for k, pair in enumerate(zip(found, expected, strict=True)))
    elif _are_close([found], [expected]) or (type(found) is type(expected) and found == expected):
        return ""
    else:
        return f"{where} is {_short(found)}, expected {_short(expected)}"
    return next((text for at, one, other in parts if (text := difference(one, other, at))), "")


def _is_rounding(key: str, found: Any, expected: Any) -> bool:
    """Whether two numbers of this name differ by no more than rounding may cause."""
    are_numbers = isinstance(found, int | float) and isinstance(expected, int | float)
    return are_numbers and abs(found - expected) <= DECIDED_BY_ROUNDING.get(key, 0.0)


def _are_close(found: Sequence[Any], expected: Sequence[Any]) -> bool:
    """Whether these are numbers, or None in the same places, and the same but for rounding."""
    pairs = [pair for pair in zip(found, expected, strict=True) if pair != (None, None)]
    numbers = [number for pair in pairs for number in pair]
    if not numbers or any(isinstance(x, bool) or not isinstance(x, int | float) for x in numbers):
        return False
    if all(isinstance(x, int) for x in numbers):
        return all(one == other for one, other in pairs)
    scale = max(abs(other) for _, other in pairs)
    return math.isfinite(scale) and all(abs(one - other) <= TOLERANCE * scale for one, other in pairs)


def _short(value: Any) -> str:
    return str(value) if len(str(value)) <= 60 else f"{str(value)[:60]}…"


def _broken(where: str, what: str) -> ArtefactError:
    return ArtefactError(f"{where}: {what}; the report does not agree with this ledger and task")


# Statements


def verify_statement(statement: Place, receipts: Place | None = None, *, ledger: Place | None = None) -> list[Check]:
    """Compare a statement with the client's own receipts, with the ledger, or with both.

    Args:
        statement: The page that the client was sent.
        receipts: The client's file of receipts.
        ledger: The ledger that was valued, if it may be read.

    Returns:
        What was compared; differences are an error that names all of them.

    Example:
        fedworth.receipt(answer, round_number=0, n_samples=30, file="receipts.jsonl")  # when the client sends it
        page = report.write_statement("north", "statements", ledger=ledger)
        checks = fedworth.verify_statement(page, "receipts.jsonl")
    """
    facts = read_statement(statement)
    if facts.models is None:
        raise ArtefactError(
            f"{statement}: names no models, so it cannot be compared; ask for one made with the ledger "
            "(fedworth statement … --ledger LEDGER)"
        )
    checks = [Check("statement", False, f"{_claims(facts)}; check that the page shows the same")]
    wrong: list[Check] = []
    if receipts is not None:
        for check, is_wrong in _compared(facts, facts.models, read_receipts(receipts)):
            (wrong if is_wrong else checks).append(check)
    if ledger is not None and with_models(facts, Ledger.verify(ledger)) != facts:
        wrong.append(Check("ledger", True, "its models of this client are not those that the statement lists"))
    elif ledger is not None:
        checks.append(Check("ledger", True, "every byte as written, and its models are those that the statement lists"))
    if wrong:
        found = "; ".join(f"{check.name}: {check.found}" for check in wrong)
        raise ArtefactError(f"{statement}: {found}. Show this to the coordinator, with your receipts")
    return checks


def _claims(facts: Statement) -> str:
    """What the statement's block of JSON says; the page may show its reader something else."""
    value = "no value" if facts.value is None else f"a value of {facts.value:+.4g}"
    return (
        f"says that {facts.client!r} has {value} by {facts.method}, by {facts.judged_by} on {facts.n_test_samples} "
        f"test samples, from the ledger with the head {facts.ledger_head}"
    )


def _compared(facts: Statement, models: Sequence[Receipt], receipts: Sequence[Receipt]) -> Iterator[tuple[Check, bool]]:
    """Every round of the statement or the receipts: what was found, and whether the two contradict each other."""
    sent: dict[int, list[Receipt]] = {}  # a model that was sent again has two receipts
    for receipt in receipts:
        sent.setdefault(receipt.round, []).append(receipt)
    for valued in models:
        yield _one_round(valued, sent.get(valued.round, []))
    why = dict(facts.unused)
    for number in sorted(sent.keys() - {model.round for model in models}):
        name = f"round {number}"
        if number in why:
            yield Check(name, False, f"what you sent was not used ({why[number]}); ask for the reason"), False
        elif number <= facts.last_round:
            yield Check(name, True, "you have a receipt, and the statement says that nothing of yours arrived"), True
        else:
            yield Check(name, False, f"after round {facts.last_round}, the last that was valued"), False


def _one_round(valued: Receipt, sent: Sequence[Receipt]) -> tuple[Check, bool]:
    """One model that was valued, against the receipts for its round."""
    name = f"round {valued.round}"
    if not sent:
        return Check(name, False, "you have no receipt"), False
    same = [receipt for receipt in sent if receipt.sha256 == valued.sha256]
    by_place = [receipt for receipt in sent if receipt.unnamed == valued.unnamed and not receipt.is_named]
    if not same and not by_place:
        return Check(name, True, "what was valued is not what you sent"), True
    counts = [receipt.n_samples for receipt in same or by_place]
    if valued.n_samples not in counts:
        credited = f"credited with {valued.n_samples:g} samples, and you reported {counts[0]:g}"
        return Check(name, True, f"what was valued is yours, but {credited}"), True
    if not same:
        found = (
            "your tensors, but your receipt has no names for them (receipt(…, names=…)): their order is not compared"
        )
        return Check(name, False, found), False
    return Check(name, True, f"what you sent, {valued.n_samples:g} samples"), False
