"""A report as tables of text: one for the eye (Markdown and terminal), one for spreadsheets (CSV)."""

import csv
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedworth.findings import Finding
from fedworth.names import MethodName, ValuedBy
from fedworth.report.report import Report, agreement, truths_error
from fedworth.trail import Trail
from fedworth.valuation.valuation import BASES, COLUMNS, Valuation

MAIN: tuple[MethodName, ...] = ("comfedsv", "fedsv", "truth")
LABELS: dict[ValuedBy, str] = {
    "comfedsv": "ComFedSV",
    "comfedsv-factors": "ComFedSV by factors",
    "fedsv": "FedSV",
    "fedsv-later": "FedSV, later rounds",
    "truth": "truth",
    "heard-round": "heard round",
    "leave-one-out": "leave-one-out",
    "banzhaf": "Banzhaf",
    "beta-shapley": "Beta-Shapley",
    "least-core": "least core",
    "tmc": "TMC",
    "gtg": "GTG",
    "mr": "MR",
    "or": "OR",
    "influence": "influence",
    "cosine": "cosine",
    "retraining": "retraining",
}
ABSENT = "–"
MOST_DOUBTS = 4
NARROW = 0.01
"""A standard deviation below which two decimals do not show an interval."""

WORDS_OF_VALUES = (
    "share: part of all positive values; rank: 1 for the most valuable, = for a tie, (from–to) where it may lie"
)
WORDS_OF_BASELINES: dict[ValuedBy, str] = {
    "comfedsv-factors": "by factors: from the utilities alone, as in the paper",
    "heard-round": "heard round: of the round that heard everyone, alone",
    "leave-one-out": "leave-one-out: what would be lost without the client",
    "fedsv-later": "later rounds: without those that heard everyone",
}
WORDS_OF_COVERAGE = "cells seen: of the coalitions with so many clients, in all rounds, the part that was measured"
WORDS_OF_AGREEMENT = {
    "rank_correlation": "rank correlation: 1 if the order is that of the truth, 0 if it has nothing to do with it",
    "relative_error": "error / spread: distance from the true values, over that of the true values from their mean",
    "largest_difference_of_copies": "d: difference of two clients with the same data, over the larger of their values",
}
DRAWN_TRUTH = "The truth is itself drawn, and methods look farther from it, or by the same draws nearer, than they are"
FINDINGS = "Findings: what was seen, a reason to ask and not a verdict"

_ESCAPES = str.maketrans({**{mark: f"&#{ord(mark)};" for mark in "<>&|"}, **{mark: f"\\{mark}" for mark in "\\*_`[]"}})
"""All marks at once: one after the other would escape the escapes."""


@dataclass(frozen=True)
class Table:
    """Cells of text under headings."""

    title: str
    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""  # what to know before reading it
    words: str = ""  # what its headings mean, in a line
    blocks: tuple[int, ...] = ()  # how many of the columns after the first belong together, if any do


def values_table(report: Report) -> Table:
    """Every client's value, share and rank by the main methods, side by side, and how far to trust them.

    ComFedSV has its 90 % interval, and a rank its own: `5 (3–6)`; clients worth the same share a rank, `=5`.
    """
    shown = [v for method in MAIN if (v := report.valuation(method)) is not None] or list(report.valuations)
    blocks = [
        [LABELS[valuation.method], *(["90 % interval"] if _is_sure(valuation) else []), "share", "rank"]
        for valuation in shown
    ]
    headings = ("client", *(heading for block in blocks for heading in block))
    rows = [[name, *(cell for v in shown for cell in _cells(v, k))] for k, name in enumerate(report.clients)]
    cells = tuple(tuple(row) for row in rows)
    together = tuple(map(len, blocks))
    words = "; ".join([WORDS_OF_VALUES, *_words_of(shown)])
    return Table("What each client is worth", headings, cells, trust_text(shown), words, together)


def _words_of(shown: Sequence[Valuation]) -> list[str]:
    """What the values of these methods rest on, as far as their headings do not say."""
    kinds = [
        str(v.completion.get("kind", "factors")) for v in shown if v.method == "comfedsv" and v.completion is not None
    ]
    drawn = any(v.standard_errors is not None for v in shown)
    return [
        *(f"ComFedSV: completed by {kind}" for kind in kinds),
        *(["±: the standard error of what was drawn, which an interval includes"] if drawn else []),
    ]


def trust_text(valuations: Sequence[Valuation]) -> str:
    """How far the first valuation that knows can be trusted, in a sentence; and whom to doubt."""
    for valuation in valuations:
        if valuation.uncertainty is not None:
            told = valuation.uncertainty.doubts
            doubts = "".join(f" Mind: {doubt}." for doubt in told[:MOST_DOUBTS])
            n_more = len(told) - MOST_DOUBTS
            more = f" {n_more} more {'is' if n_more == 1 else 'are'} in report.json." if n_more > 0 else ""
            return f"{LABELS[valuation.method]}: {valuation.uncertainty.sentence}{doubts}{more}"
    return ""


def baselines_table(report: Report) -> Table | None:
    """Every client's value by the remaining methods."""
    rest = [v for v in report.valuations if v.method not in MAIN]
    if not rest or not any(report.valuation(method) for method in MAIN):
        return None
    headings = ("client", *(LABELS[v.method] for v in rest))
    rows = tuple((name, *(_value(v, k) for v in rest)) for k, name in enumerate(report.clients))
    words = "; ".join(WORDS_OF_BASELINES[v.method] for v in rest if v.method in WORDS_OF_BASELINES)
    return Table("Baselines", headings, rows, trust_text(rest), words)


def agreement_table(report: Report) -> Table | None:
    """How the methods compare with the truth, and on clients with the same data."""
    rows = agreement(report)
    keys = {
        "rank_correlation": "rank correlation with truth",
        "relative_error": "error / spread of truth",
        "largest_difference_of_copies": "d of " + ", ".join(f"{of} and {copy}" for copy, of in report.copies),
    }
    present = [key for key in keys if any(key in row for row in rows)]
    if not present:
        return None
    cells = tuple((LABELS[row["method"]], *(_number(row.get(key), ".2f") for key in present)) for row in rows)
    words = "; ".join(WORDS_OF_AGREEMENT[key] for key in present if key in WORDS_OF_AGREEMENT)
    drawn = truths_error(report)
    note = "" if drawn is None else f"{DRAWN_TRUTH} ({drawn:.2f} of its spread)."
    return Table("How far to trust them", ("method", *(keys[key] for key in present)), cells, note, words)


def coverage_table(report: Report) -> Table | None:
    """How many of the cells that the values rest on were seen, by coalition size."""
    if report.coverage is None:
        return None
    sizes = zip(report.coverage["n_columns_by_size"], report.coverage["share_seen_by_size"], strict=True)
    rows = tuple((str(k), f"{n:,}", f"{share:.1%}") for k, (n, share) in enumerate(sizes, start=1) if n)
    return Table("Seen cells by coalition size", ("clients", "coalitions", "cells seen"), rows, words=WORDS_OF_COVERAGE)


def tables(report: Report) -> list[Table]:
    """All tables of a report, in reading order."""
    made = [values_table(report), baselines_table(report), agreement_table(report), coverage_table(report)]
    return [table for table in made if table is not None]


def headlines(report: Report) -> list[str]:
    """What every method pays to clients that have the same data, in a sentence each."""
    lines = []
    for copy, of in report.copies:
        paid = []
        for valuation in (v for method in MAIN if (v := report.valuation(method)) is not None):
            cells = [_value(valuation, report.clients.index(name)) for name in (of, copy)]
            paid.append(f"{LABELS[valuation.method]} gives them {cells[0]} and {cells[1]}")
        lines.append(f"Clients {of} and {copy} have the same data: {'; '.join(paid)}.")
    return lines


def findings_lines(findings: Sequence[Finding]) -> list[str]:
    """The findings under their heading, a sentence each; nothing if there are none."""
    return [FINDINGS, *(f"- {finding.sentence}" for finding in findings), ""] if findings else []


def markdown(report: Report) -> str:
    """The whole report as Markdown."""
    parts = [f"# {_plain(report.title)}"]
    parts.append("\n".join(f"- **{LABELS[v.method]}** — {BASES[v.method]}" for v in report.valuations))
    parts += [_plain(line) for line in headlines(report)]
    for table in tables(report):
        parts += [f"## {table.title}", _markdown_table(table)]
        parts += [_plain(text) for text in (table.note, table.words) if text]
    if report.all_findings:
        parts += [f"## {FINDINGS}", "\n".join(f"- {_plain(finding.sentence)}" for finding in report.all_findings)]
    completed = report.valuation("comfedsv")
    if completed is not None and completed.completion is not None:
        parts += ["## The completion behind ComFedSV", _markdown_table(completion_table(completed.completion))]
    if report.warnings():
        parts += ["## Before you believe a number", "\n".join(f"- {_plain(w)}" for w in report.warnings())]
    parts += ["## Where the numbers come from", trail_text(report.trail)]
    return "\n\n".join(parts) + "\n"


def trail_text(trail: Trail | None) -> str:
    """A trail in words."""
    if trail is None:
        return "This report has no trail: its utilities were brought, or written by an older fedworth."
    task = "a task that is not known" if trail.task is None else f"task {trail.task}"
    return f"Ledger {trail.head} ({trail.n_rounds} rounds), {task}, {trail.software}."


def completion_table(summary: dict[str, Any]) -> Table:
    """What a completion says of itself."""
    rows = tuple((key.replace("_", " "), _number(value, ".4g")) for key, value in summary.items())
    return Table("Completion", ("", ""), rows)


def csv_text(report: Report) -> str:
    """One line a client and method, full precision; text that a spreadsheet would run as a formula is quoted."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(COLUMNS)
    for name, *rest in (row for valuation in report.valuations for row in valuation.rows()):
        writer.writerow([harmless(name), *("" if cell is None else cell for cell in rest)])
    return buffer.getvalue()


def _is_sure(valuation: Valuation) -> bool:
    """Whether a valuation by completion knows its intervals."""
    return valuation.completion is not None and valuation.uncertainty is not None


def _cells(valuation: Valuation, client: int) -> tuple[str, ...]:
    share = _number(valuation.shares[client], ".1%")
    if valuation.uncertainty is None or not _is_sure(valuation):
        return _value(valuation, client), share, _rank(valuation, client)
    low, high = valuation.uncertainty.intervals(valuation.values)[client]
    form = f"+.{_interval_decimals(valuation)}f"
    interval = ABSENT if math.isnan(low) else f"{low:{form}} to {high:{form}}"
    ranks = valuation.uncertainty.rank_intervals[client]
    between = "" if ranks is None or ranks[0] == ranks[1] else f" ({ranks[0]}–{ranks[1]})"
    return _value(valuation, client), interval, share, _rank(valuation, client) + between


def _interval_decimals(valuation: Valuation) -> int:
    """Two; as many as a value has where some interval is narrower than these show."""
    assert valuation.uncertainty is not None
    return 2 if np.nanmin(valuation.uncertainty.deviations, initial=np.inf) >= NARROW else 4


def _rank(valuation: Valuation, client: int) -> str:
    rank = valuation.ranks[client]
    if rank is None:
        return ABSENT
    return f"={rank}" if valuation.ranks.count(rank) > 1 else str(rank)


def _value(valuation: Valuation, client: int) -> str:
    errors = valuation.standard_errors
    text = _number(valuation.values[client], "+.4f")
    return text if errors is None or math.isnan(errors[client]) else f"{text} ± {errors[client]:.4f}"


def _number(value: Any, form: str) -> str:
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ABSENT
    return format(value, form) if isinstance(value, float) else str(value)


def _markdown_table(table: Table) -> str:
    head = "| " + " | ".join(_plain(h) for h in table.headings) + " |"
    rule = "|" + "|".join([" --- "] + [" ---: "] * (len(table.headings) - 1)) + "|"
    rows = ["| " + " | ".join(_plain(cell) for cell in row) + " |" for row in table.rows]
    return "\n".join([head, rule, *rows])


def _plain(text: str) -> str:
    """Text that Markdown shows as it is: names come from clients, and may be anything."""
    return " ".join(text.split()).translate(_ESCAPES)


def harmless(text: str) -> str:
    """Text that a spreadsheet shows, and does not run as a formula."""
    return f"'{text}" if text[:1] in ("=", "+", "-", "@", "\t", "\r") else text
