"""How a report was made: the method, the trail of hashes, the command, and what a reader must know."""

import hashlib

from fedworth.report.page.settings import PageSettings
from fedworth.report.page.wording import LABELS, Wording
from fedworth.report.report import Report
from fedworth.storage import json_bytes
from fedworth.trail import SOFTWARE

Facts = list[tuple[str, str, bool]]
"""(what, text, whether it is to be copied as it is)."""


def fingerprint_of(report: Report) -> str:
    """The sha256 of the report's JSON: that of the file `report.json` beside the page."""
    return hashlib.sha256(json_bytes(report.document())).hexdigest()


def facts_of(report: Report, settings: PageSettings, wording: Wording) -> Facts:
    """How the report was made, line by line."""
    trail, facts = report.trail, [("Method", wording.method, False)]
    facts += [("Completion", _completion(report), False)] if report.chosen.completion is not None else []
    facts += [("Command", settings.command, True)] if settings.command else []
    facts.append(("Fingerprint", f"sha256 {fingerprint_of(report)} of report.json", True))
    if trail is None:
        facts.append(("Trail", "None: the utilities were brought, or written by an older fedworth.", False))
    else:
        facts.append(("Ledger", f"{trail.head} ({trail.n_rounds} rounds)", True))
        facts += [("Task", trail.task, True)] if trail.task is not None else []
        utilities, completion = _hashes(report)
        facts += [("Utilities", utilities, True)] if utilities else []
        facts += [("Completion’s hash", completion, True)] if completion else []
        facts.append(("Check it", "fedworth verify report.json --ledger LEDGER", True))
    made_by = SOFTWARE if trail is None else trail.software
    return [*facts, ("Software", made_by, False)]


def methods_of(report: Report) -> list[tuple[str, str]]:
    """Each method of the report by its name and key."""
    return [(LABELS.get(made.method, made.method), made.method) for made in report.valuations]


def _completion(report: Report) -> str:
    summary = dict(report.chosen.completion or {})
    kind = summary.pop("kind", "factors")
    told = [f"{key.replace('_', ' ')} {_text(value)}" for key, value in summary.items()]
    return f"by {kind}: {', '.join(told)}"


def _text(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else f"{value:,}" if type(value) is int else str(value)


def _hashes(report: Report) -> tuple[str | None, str | None]:
    trail = report.chosen.trail
    return (None, None) if trail is None else (trail.utilities, trail.completion)
