"""A report as tables of text: for a terminal and Markdown, and as CSV for spreadsheets.

To add a column to the table of values or of agreement, add a row to `VALUE_COLUMNS` or `AGREEMENT_COLUMNS`.
"""

import csv
import io
import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from fedworth.findings import Finding, Kind
from fedworth.report.scores import change_text, levels_text, measure_text, score_text, test_set_text
from fedworth.valuation.methods import method_text
from fedworth.valuation.uncertainty import Source
from fedworth.valuation.valuation import COLUMNS, GROUP_COLUMNS, Valuation
from fedworth.valuation.vertical import REFITTED

if TYPE_CHECKING:
    from fedworth.report.report import Report

BESIDE = ("fedsv", "truth")
"""Methods shown beside the chosen one in the first table."""
ABSENT = "–"
FORMULAS = ("=", "+", "-", "@", "\t", "\r")
"""A spreadsheet runs text that starts with one of these as a formula."""
MOST_GROUPS = 12
"""With more groups, values by group are in report-by-group.csv only."""
NARROW = 0.01
"""Intervals with a smaller standard deviation are shown with four decimals."""

SOURCE_WORDS = {
    Source.ESTIMATES: "the estimates of what no round has shown",
    Source.SAMPLING: "the sampling of coalitions",
    Source.TEST_SET: "the choice of the test samples",
    Source.RUNS: "how much another training with other batches and other participants changes the values",
}
AS_IT_IS = " Scores are on the test set as it is, not weighted to the population."
SAMPLED_TRUTH = "The truth was itself sampled, so distances from it are partly its own error"
FINDINGS = "Findings: reasons to ask, not verdicts"

_ESCAPES = str.maketrans({**{mark: f"&#{ord(mark)};" for mark in "<>&|"}, **{mark: f"\\{mark}" for mark in "\\*_`[]"}})


@dataclass(frozen=True)
class Table:
    """Cells of text under headings."""

    title: str
    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""  # what to know before reading it
    legend: str = ""  # what the headings mean
    blocks: tuple[int, ...] = ()  # how many of the columns after the first belong together


@dataclass(frozen=True)
class ValueColumn:
    """A column for a method."""

    heading: str  # {label} is the method's
    cells: Callable[[Valuation], list[str]]  # of all clients
    legend: str = ""


def _values(valuation: Valuation) -> list[str]:
    errors = np.full(len(valuation), np.nan) if valuation.sampling_errors is None else valuation.sampling_errors
    pairs = zip(valuation.values.tolist(), errors.tolist(), strict=True)
    return [_number(x, "+.4f") + ("" if math.isnan(error) else f" ± {error:.4f}") for x, error in pairs]


def _intervals(valuation: Valuation) -> list[str]:
    assert valuation.uncertainty is not None
    smallest = np.nanmin(valuation.uncertainty.standard_deviations, initial=np.inf)
    form = "+.2f" if smallest >= NARROW else "+.4f"
    return [ABSENT if x.low is None else f"{x.low:{form}} to {x.high:{form}}" for x in valuation]


def _shares(valuation: Valuation) -> list[str]:
    return [_number(share, ".1%") for share in valuation.shares.tolist()]


def _ranks(valuation: Valuation) -> list[str]:
    ranks = valuation.ranks
    n_sharing = Counter(ranks)
    return [ABSENT if rank is None else f"={rank}" if n_sharing[rank] > 1 else str(rank) for rank in ranks]


def _rank_ranges(valuation: Valuation) -> list[str]:
    ends = [line.ranks or (0, 0) for line in valuation]
    ranks = zip(_ranks(valuation), ends, strict=True)
    return [rank if low == high else f"{rank} ({low}–{high})" for rank, (low, high) in ranks]


VALUE_COLUMNS = (
    ValueColumn("{label}", _values),
    ValueColumn("90 % interval", _intervals),
    ValueColumn("share", _shares, "share: part of all positive values"),
    ValueColumn("rank", _rank_ranges, "rank: 1 for the most valuable, = for a tie, (from–to) is its 90 % interval"),
)
"""Columns of the chosen valuation."""

BESIDE_COLUMNS = (VALUE_COLUMNS[0], VALUE_COLUMNS[2], ValueColumn("rank", _ranks))
"""Columns of the valuations beside it."""

AGREEMENT_COLUMNS = {
    "rank_correlation": (
        "rank correlation with truth",
        "rank correlation: 1 if the order is that of the truth, 0 if it is unrelated",
    ),
    "relative_error": (
        "error / spread of truth",
        "error / spread: distance from the true values, over the distance of the true values from their mean",
    ),
    "largest_difference_of_copies": (
        "d of {pairs}",
        "d: difference of two clients with the same data, over the larger of their values",
    ),
}
"""Keys of `Report.agreement`, each with its heading ({pairs} are the clients with the same data) and legend."""


def values_table(report: "Report") -> Table:
    """Every client's value, interval, share and rank by the main methods."""
    shown = _main(report)
    blocks = [BESIDE_COLUMNS if v is not shown[0] or v.uncertainty is None else VALUE_COLUMNS for v in shown]
    columns = [(column, v) for v, block in zip(shown, blocks, strict=True) for column in block]
    rows = zip(report.clients, *(column.cells(v) for column, v in columns), strict=True)
    basis = report.provenance
    is_one_game = bool(shown) and (
        shown[0].method == REFITTED or (shown[0].by_round is None and not shown[0].is_mean_of_runs)
    )
    rounds = "" if is_one_game else ", added up over the rounds"
    value = f"how much a client {change_text(basis)} on {test_set_text(basis)}{rounds}"
    legend = [f"value: {value}; measured in: {measure_text(basis)}"]
    legend += [column.legend for column in VALUE_COLUMNS if column.legend]
    legend += ["±: standard error of the sampling, which an interval includes"] * any(
        v.sampling_errors is not None for v in shown
    )
    return Table(
        "What each client is worth",
        ("client", *(column.heading.format(label=v.label) for column, v in columns)),
        tuple(rows),
        trust_text(shown),
        "; ".join(legend),
        tuple(map(len, blocks)),
    )


def groups_table(report: "Report") -> Table | None:
    """Every client's value on each group of test samples; None without groups, or if there are too many to read."""
    groups = report.chosen.groups if report.valuations else None
    if groups is None or len(groups.names) > MOST_GROUPS:
        return None
    form = f"+.{groups.decimals}f"
    is_clear = (groups.signs != 0) | np.isnan(groups.half_widths)
    cells = [
        [_number(x, form) if clear or math.isnan(x) else f"({x:{form}})" for x, clear in zip(*row, strict=True)]
        for row in zip(groups.values.tolist(), is_clear.tolist(), strict=True)
    ]
    rows = [
        (name, *row, _number(float(value), form))
        for name, row, value in zip(report.clients, cells, report.chosen.values, strict=True)
    ]
    shares = {"share of the test set": groups.shares, "share of the population": groups.population}
    rows += [(what, *(f"{share:.0%}" for share in of), "") for what, of in shares.items() if of is not None]
    legend = "a row adds up to the value"
    if not is_clear.all():
        legend += "; in brackets: the 90 % interval includes 0, so the sign is not clear"
    title = f"Who helps whom: values by {groups.by}"
    return Table(title, ("client", *groups.names, "value"), tuple(rows), legend=legend)


def uncertainty_table(report: "Report") -> Table | None:
    """Where the uncertainty of the chosen values comes from: standard deviations by source."""
    uncertainty = report.chosen.uncertainty if report.valuations else None
    if uncertainty is None or not uncertainty.shares:
        return None
    columns = [uncertainty.standard_deviations, *(uncertainty.parts[source] for source in uncertainty.shares)]
    rows = tuple(
        (name, *(_number(float(column[k]), ".4f") for column in columns)) for k, name in enumerate(report.clients)
    )
    return Table(
        f"How sure {report.chosen.label} is, and why",
        ("client", "standard error", *uncertainty.shares),
        rows,
        uncertainty.advice,
        "the squares of the parts add up to the square of the standard error; "
        + "; ".join(f"{source}: {SOURCE_WORDS[source]}" for source in uncertainty.shares),
    )


def baselines_table(report: "Report") -> Table | None:
    """Every client's value by the remaining methods."""
    main = _main(report)
    rest = [v for v in report.valuations if v not in main]
    if not rest:
        return None
    rows = tuple(zip(report.clients, *map(_values, rest), strict=True))
    legend = "; ".join(f"{v.label}: {v.description}" for v in rest)
    return Table(
        "Other methods",
        ("client", *(v.label for v in rest)),
        rows,
        trust_text(v for v in rest if v.uncertainty),
        legend,
    )


def agreement_table(report: "Report") -> Table | None:
    """How the methods compare with the truth, and on clients with the same data."""
    rows = report.agreement
    shown = [key for key in AGREEMENT_COLUMNS if any(key in row for row in rows)]
    if not shown:
        return None
    pairs = ", ".join(f"{original} and {copy}" for copy, original in report.copies)
    cells = tuple((method_text(row["method"]).label, *(_number(row.get(key), ".2f") for key in shown)) for row in rows)
    error = report.error_of_truth
    return Table(
        "How far to trust them",
        ("method", *(AGREEMENT_COLUMNS[key][0].format(pairs=pairs) for key in shown)),
        cells,
        "" if error is None else f"{SAMPLED_TRUTH} ({error:.2f} of its spread).",
        "; ".join(AGREEMENT_COLUMNS[key][1] for key in shown),
    )


def scores_table(report: "Report") -> Table | None:
    """What the model scores with and without each client, in the client's last round, and what is lost in all."""
    scores, lost = report.scores, report.valuation("leave-one-out")
    if scores is None or lost is None or report.is_vertical:  # a last step says little of what a client tells
        return None
    found = zip(report.clients, scores.last_rounds, scores.with_client, scores.without_client, lost.values, strict=True)
    rows = tuple(
        (
            client,
            ABSENT if last is None else str(last),
            *(score_text(name, x) for k, name in enumerate(scores.measures) for x in (kept[k], left_out[k])),
            _number(float(total), "+.4f"),
        )
        for client, last, kept, left_out, total in found
    )
    is_weighted = lost.groups is not None and lost.groups.population is not None
    headings = [head for name in scores.measures for head in (f"{name} with it", "without it")]
    return Table(
        "What the model scores with and without each client",
        ("client", "last round", *headings, "lost over its rounds"),
        rows,
        f"The model: {levels_text(scores)}.{AS_IT_IS if is_weighted else ''}",
        "With it, without it: after the last round in which the client took part, all else equal; "
        "lost over its rounds: what the other participants would have lost without the client, added up",
    )


def coverage_table(report: "Report") -> Table | None:
    """How many of the cells that the values rest on were measured, by coalition size."""
    if report.coverage is None:
        return None
    sizes = zip(report.coverage["n_columns_by_size"], report.coverage["share_seen_by_size"], strict=True)
    rows = tuple((str(k), f"{n:,}", f"{share:.1%}") for k, (n, share) in enumerate(sizes, start=1) if n)
    legend = "cells seen: measured part of the coalitions of this size, in all rounds"
    return Table("Seen cells by coalition size", ("clients", "coalitions", "cells seen"), rows, legend=legend)


def tables(report: "Report") -> list[Table]:
    """All tables of a report, in reading order."""
    first = [values_table(report)] if report.valuations else []
    rest = (
        make(report)
        for make in (groups_table, uncertainty_table, scores_table, baselines_table, agreement_table, coverage_table)
    )
    return [*first, *(table for table in rest if table is not None)]


def trust_text(valuations: Iterable[Valuation]) -> str:
    """How far the first valuation can be trusted, and if this is not known, the next of which it is."""
    texts = list[str]()
    for valuation in valuations:
        cautions = "".join(f" Use with care: {caution}." for caution in valuation.cautions)
        if valuation.uncertainty is not None:
            notes = "".join(f" Note: {caveat.reason}." for caveat in valuation.uncertainty.caveats)
            return " ".join([*texts, f"{valuation.label}: {valuation.uncertainty.sentence}{notes}{cautions}"])
        if not texts:
            texts.append(f"{valuation.label}: how far off these values may be is not known.{cautions}")
    return " ".join(texts)


def findings_lines(findings: Sequence[Finding], not_looked_for: Sequence[Kind] = ()) -> list[str]:
    """The findings under their heading, a sentence each, and what was not looked for; nothing if there is neither."""
    lines = [FINDINGS, *(f"- {finding.sentence}" for finding in findings), ""] if findings else []
    return [*lines, *not_looked_for_lines(not_looked_for)]


def not_looked_for_lines(kinds: Sequence[Kind]) -> list[str]:
    """What was not looked for, grouped by what it needs."""
    by_need: dict[str, list[str]] = {}
    for kind in kinds:
        by_need.setdefault(kind.needs_text, []).append(kind.name)
    text = "; ".join(f"{', '.join(names)} (needs {need})" for need, names in by_need.items())
    return [f"Not looked for: {text}.", ""] if text else []


def completion_table(summary: dict[str, Any]) -> Table:
    rows = tuple((key.replace("_", " "), _number(value, ".4g")) for key, value in summary.items())
    return Table("Completion", ("", ""), rows)


def facts_of(report: "Report") -> list[tuple[str, str]]:
    """Where the numbers come from: what, and its text."""
    provenance = report.provenance
    facts = [("Measured in", measure_text(provenance)), ("Fingerprint", f"sha256 {report.fingerprint} of report.json")]
    if provenance is None:
        return [*facts, ("Ledger", "none: the utilities came without one, so there is no record to check")]
    if provenance.n_test_samples is not None:
        facts.append(("Test data", f"{provenance.n_test_samples:,} samples"))
    facts.append(("Ledger", f"{provenance.head} ({provenance.n_rounds} rounds)"))
    facts += [("Ledger of another run", head) for head in provenance.other_heads]
    return [*facts, ("Task", provenance.task or "not known"), ("Software", provenance.software)]


def markdown(report: "Report") -> str:
    parts = [f"# {_plain(report.title)}"]
    parts.append("\n".join(f"- **{v.label}** — {v.description}" for v in report.valuations))
    for table in tables(report):
        parts += [f"## {table.title}", _markdown_table(table)]
        parts += [_plain(text) for text in (table.note, table.legend) if text]
    if report.all_findings:
        parts += [f"## {FINDINGS}", "\n".join(f"- {_plain(finding.sentence)}" for finding in report.all_findings)]
    if report.looked_for:
        parts += [_plain(line) for line in not_looked_for_lines(report.not_looked_for) if line]
    if report.all_notes:
        parts += ["## Before you use a number", "\n".join(f"- {_plain(note)}" for note in report.all_notes)]
    parts += ["## Where the numbers come from", "\n".join(f"- {what}: {text}" for what, text in facts_of(report))]
    return "\n\n".join(parts) + "\n"


def csv_text(report: "Report") -> str:
    """A line for each client and method in full precision."""
    rows = (row for valuation in report.valuations for row in valuation.rows())
    return csv_of(COLUMNS, rows)


def groups_csv(report: "Report") -> str:
    """A line for each client and group of test samples in full precision."""
    return csv_of(GROUP_COLUMNS, report.chosen.group_rows())


def csv_of(headings: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Rows as CSV; None is an empty cell, and text that a spreadsheet would run as a formula is quoted."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(headings)
    for row in rows:
        cells = ["" if cell is None else cell for cell in row]
        writer.writerow([f"'{x}" if isinstance(x, str) and x.startswith(FORMULAS) else x for x in cells])
    return buffer.getvalue()


def _main(report: "Report") -> list[Valuation]:
    """The chosen valuation and those beside it; none without values."""
    if not report.valuations:
        return []
    beside = [v for method in BESIDE if (v := report.valuation(method)) is not None and v is not report.chosen]
    return [report.chosen, *beside]


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
    """Text escaped for Markdown: names come from clients and may contain anything."""
    return " ".join(text.split()).translate(_ESCAPES)
