"""The statement that one data owner is sent, with no name, value or extreme of another client.

The template gets this client's numbers alone. Of the others it gets the middle half of their values, rounded to one
digit, and only if there are enough of them that this reveals nobody's value. The axis spans that band and the client.

The page holds a block of JSON, `Statement`, with what `fedworth verify STATEMENT --receipts FILE` needs.
"""

import json
import math
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from fedworth.errors import ArtefactError, LedgerError
from fedworth.ledger.ledger import Ledger
from fedworth.ledger.manifest import find_head
from fedworth.ledger.receipts import Receipt, receipts_of, unused_rounds
from fedworth.provenance import Provenance
from fedworth.records import document_of, read_as
from fedworth.report.page.clients import sorted_findings
from fedworth.report.page.figures import axis_of, axis_over, path, picks_of
from fedworth.report.page.page import frame_of, render
from fedworth.report.page.story import ticks_of
from fedworth.report.page.trust import verdict_of, wording_of
from fedworth.report.report import Report
from fedworth.report.rewards import Rewards, split_again
from fedworth.report.scores import score_text
from fedworth.report.settings import PageSettings
from fedworth.storage import Place, read_bytes
from fedworth.valuation.notebook import digits_of, ranks_text, share_text, signed

FEWEST_OTHERS = 7
"""With fewer other clients no band is shown, because it would reveal single values."""

MOST_BYTES = 1 << 28
BLOCK = re.compile(r'<script type="application/json" id="statement">(.*?)</script>', re.DOTALL)


@dataclass(frozen=True)
class Statement:
    """What a statement says, for programs: a value, what it rests on, and which models of the client were valued."""

    client: str
    value: float | None
    low: float | None
    high: float | None
    method: str
    measure: str | None  # what a value counts: `loss`, `accuracy`, …
    judged_by: str | None  # the loss or measure by its name
    n_test_samples: int | None
    report: str  # fingerprint of report.json
    task: str | None  # fingerprint
    ledger_head: str | None
    n_rounds: int | None  # of the ledger, when it was valued
    models: tuple[Receipt, ...] | None = None  # None if the statement was made without the ledger
    unused: tuple[tuple[int, str], ...] = ()  # rounds in which a model of the client was not averaged, and why
    last_round: int = -1  # the federation's own number of the last round that was valued
    given: tuple[str, ...] = ()  # clients for whom the value is what this one adds


def statement_of(report: Report, client: str, ledger: Ledger | None = None) -> Statement:
    """One client's statement; the hashes of its models are computed from the ledger that the report is of."""
    line, provenance = report[client], report.provenance or Provenance("", 0, None)  # refuses an unknown client
    facts = Statement(
        client,
        line.value,
        line.low,
        line.high,
        report.chosen.method,
        provenance.settings.get("measure"),
        provenance.judged_by,
        provenance.n_test_samples,
        report.fingerprint,
        provenance.task,
        None if provenance.other_heads else provenance.head or None,
        provenance.n_rounds or None,
        given=report.given,
    )
    return facts if ledger is None else with_models(facts, ledger)


def with_models(facts: Statement, ledger: Ledger) -> Statement:
    """The statement with the hashes of the client's models in a ledger, up to the last round that was valued."""
    try:
        head = find_head(ledger.folder, str(facts.ledger_head))
    except LedgerError as error:
        raise ArtefactError(f"statement: not of this ledger ({error})") from None
    valued = slice(head.n_rounds)
    models, unused = receipts_of(ledger, facts.client, valued), unused_rounds(ledger, facts.client, valued)
    last = max((entry.number for entry in ledger.entries[valued]), default=-1)
    return replace(facts, models=models, unused=unused, last_round=last)


def read_statement(path: Place) -> Statement:
    """The statement that is in a page."""
    try:
        found = BLOCK.search(read_bytes(Path(path), MOST_BYTES).decode())
        if found is None:
            raise ArtefactError(f"{path}: no statement; expected a page that fedworth statement wrote")
        return read_as(Statement, json.loads(found[1]), "a statement")
    except (OSError, ValueError) as error:
        raise ArtefactError(f"{path}: cannot be read as a statement ({error})") from error


def statement_html(
    report: Report,
    client: str,
    settings: PageSettings | None = None,
    *,
    rewards: Rewards | None = None,
    ledger: Ledger | None = None,
) -> str:
    settings = settings or PageSettings()
    if rewards is not None:
        split_again(rewards, report)  # an error unless they follow from the report's values
    line, facts = report[client], statement_of(report, client, ledger)
    digits, uncertainty = digits_of([line]), report.chosen.uncertainty
    caveats = () if uncertainty is None else uncertainty.caveats
    band = _band(report, client)
    view = {
        **frame_of(settings, settings.title or report.title),
        "n_clients": len(report.clients),
        "n_rounds": None if report.rounds is None else len(report.rounds.numbers),
        "n_heard": report.n_rounds_heard.get(client),
        "line": line,
        "is_too_narrow": any(client in caveat.clients for caveat in caveats),
        "value": signed(line.value, digits),
        "low": signed(line.low, digits),
        "high": signed(line.high, digits),
        "share": share_text(line.share),
        "rank": ranks_text(line),
        "w": wording_of(report, settings),
        "scores": _scores(report, client),
        "samples": Provenance.samples if report.provenance is None else report.provenance.samples,
        "groups": _groups(report, client),
        "band": band,
        "axis": axis_of([line], band or (), room=0.05),
        "course": _course(report, client),
        "findings": [finding for finding in sorted_findings(report) if client in finding.clients],
        "looked": bool(report.looked_for),
        "verdict": verdict_of(report, settings),
        "cautioned": bool(report.chosen.cautions),
        "fingerprint": report.fingerprint,
        "rewards": rewards,
        "facts": facts,
        "block": json.dumps(document_of(facts)).replace("<", "\\u003c"),
    }
    return render("statement.html", view)


def _scores(report: Report, client: str) -> str:
    """What the model scored with and without the client, in a sentence."""
    scores, lost = report.scores, report.valuation("leave-one-out")
    k = report.clients.index(client)
    if scores is None or lost is None or report.is_vertical or scores.last_rounds[k] is None:
        return ""
    parts = [
        f"{name} was {score_text(name, kept)}, and would have been {score_text(name, left_out)} without your update"
        for name, kept, left_out in zip(scores.measures, scores.with_client[k], scores.without_client[k], strict=True)
    ]
    digits = digits_of([report[client]])
    total = round(float(lost.values[k]), digits)
    change = f"lost {total:.{digits}f}" if total > 0 else f"gained {-total:.{digits}f}" if total < 0 else "lost nothing"
    return (
        f"After round {scores.last_rounds[k]}, your last, the model’s {'; its '.join(parts)}. "
        f"Added up over your rounds, the others would have {change} without you."
    )


def _groups(report: Report, client: str) -> str:
    """Which groups of test samples the client clearly helps and harms, in a sentence."""
    groups, k = report.chosen.groups, report.clients.index(client)
    if groups is None or np.isnan(groups.half_widths[k]).any():
        return ""
    signs = groups.signs[k]
    names = [f"{groups.by} {name}" if name.isdecimal() else name for name in groups.names]
    helped, harmed = (", ".join(names[k] for k in np.flatnonzero(signs == sign)) for sign in (1, -1))
    if report.is_vertical:
        return f"By {groups.by}: your value is clearly above zero for {helped or 'none'}, below for {harmed or 'none'}."
    return f"By {groups.by}: your data clearly help {helped or 'none'}, and clearly harm {harmed or 'none'}."


def _band(report: Report, client: str) -> tuple[float, float] | None:
    """The middle half of the others' values, rounded to one digit; None if there are too few."""
    others = np.array([line.value for line in report if line.client != client and line.value is not None])
    if len(others) < FEWEST_OTHERS:
        return None
    low, high = np.quantile(others, [0.25, 0.75]).tolist()
    largest = max(abs(low), abs(high))
    decimals = -math.floor(math.log10(largest)) if largest > 0 else 0
    rounded = round(low, decimals), round(high, decimals)
    return rounded if rounded[0] < rounded[1] else None


def _course(report: Report, client: str) -> dict[str, Any] | None:
    """The client's own value added up over the rounds, as a line."""
    by_round, rounds = report.chosen.by_round, report.rounds
    if by_round is None or rounds is None:
        return None
    sums = np.cumsum(by_round[:, report.clients.index(client)])
    if not np.isfinite(sums).all() or len(sums) < 2:
        return None
    axis = axis_over(sums, about=4)
    return {"axis": axis, "path": path(sums[picks_of(len(sums))], axis), "ticks": ticks_of(rounds.numbers)}
