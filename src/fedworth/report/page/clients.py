"""The clients on the page: the table of values, whose columns are rows of `COLUMNS`; who helps whom; and findings.

In the table of clients and groups of test samples, colour repeats the numbers. A cell whose range includes zero has no
colour, because its sign is not clear.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from markupsafe import Markup

from fedworth.findings import HARM, Finding, Kind, Level, looked_for_in_values
from fedworth.report.report import Report
from fedworth.report.settings import PageSettings
from fedworth.valuation.groups import GroupValues
from fedworth.valuation.notebook import ABSENT, digits_of, interval_text, ranks_text, share_text, signed
from fedworth.valuation.valuation import ClientValue

MOST_SHOWN, FIRST, LAST, MOST_FLAGGED = 25, 10, 5, 15
"""With more rows than `MOST_SHOWN` a script folds all but the first, the last and some of those with a finding."""
MOST_LISTED = 8

MOST_CELLS = 2_000
"""With more cells the page shows only the clients that it does not fold."""
N_TONES = 4
"""Steps of colour for each sign."""


@dataclass(frozen=True)
class Row:
    """One client as the table shows it."""

    place: int  # index in the report's clients
    line: ClientValue
    digits: int
    n_heard: int | None  # rounds that it took part in, if that is known
    n_rounds: int | None
    kinds: tuple[Kind, ...]  # of the findings about it
    is_folded: bool

    @property
    def bar(self) -> str:
        """The classes of the bar: its sign, and whether the interval holds zero."""
        is_unclear = self.line.low is not None and self.line.helps is None
        return ("minus" if (self.line.value or 0) < 0 else "plus") + (" unsure" if is_unclear else "")

    @property
    def value(self) -> str:
        return signed(self.line.value, self.digits)


@dataclass(frozen=True)
class Column:
    """A column of the table: heading, text, number to sort by, and how to read it."""

    heading: str
    css: str
    text: Callable[[Row], str]
    key: Callable[[Row], float | None]
    help: str  # {noun}, {nouns}, {change}, {measure}, {total}, {range}, {rounds}
    best_is_low: bool = False


COLUMNS = (
    Column(
        "Value",
        "strong",
        lambda row: row.value,
        lambda row: row.line.value,
        "+0.50 means: averaged over all groups of {nouns} it could join, the {noun} {change} by 0.50. Unit: {measure}. "
        "{total}",
    ),
    Column(
        "Likely range",
        "soft lo",
        lambda row: interval_text(row.line, row.digits),
        lambda row: row.line.low,
        "{range}",
    ),
    Column(
        "Share",
        "sh",
        lambda row: share_text(row.line.share),
        lambda row: row.line.share,
        "The value as a part of all values above zero. A {noun} at or below zero has a share of 0 %.",
    ),
    Column(
        "Rank",
        "rk",
        lambda row: ranks_text(row.line),
        lambda row: row.line.ranks[0] if row.line.ranks else row.line.rank,
        "“2–4” means: as far as we can tell, anywhere from second to fourth. Do not rank {nouns} whose ranks overlap.",
        best_is_low=True,
    ),
    Column(
        "Rounds",
        "ro",
        lambda row: ABSENT if row.n_heard is None else f"{row.n_heard} of {row.n_rounds}",
        lambda row: row.n_heard,
        "How many rounds the {noun} took part in. {rounds}",
    ),
)


def rows_of(report: Report, findings: list[Finding]) -> list[Row]:
    """All rows, the most valuable first, those without a value last."""
    lines, heard = list(report.chosen), report.n_rounds_heard
    order = sorted(range(len(lines)), key=lambda k: (lines[k].value is None, -(lines[k].value or 0.0), k))
    kinds: dict[str, dict[str, Kind]] = defaultdict(dict)
    for finding in findings:
        for client in finding.clients:
            kinds[client][finding.kind.name] = finding.kind
    flagged = [k for k in order[FIRST:-LAST] if kinds[lines[k].client]][:MOST_FLAGGED]
    folded = set(order[FIRST:-LAST]) - set(flagged) if len(order) > MOST_SHOWN else set()
    digits, n_rounds = digits_of(lines), n_rounds_of(report)
    return [
        Row(k, line, digits, heard.get(line.client), n_rounds, tuple(kinds[line.client].values()), k in folded)
        for k, line in ((k, lines[k]) for k in order)
    ]


def n_rounds_of(report: Report) -> int | None:
    """How many rounds the federation had, if that is known."""
    if report.rounds is not None:
        return len(report.rounds.numbers)
    return None if report.provenance is None else report.provenance.n_rounds


def summary_of(report: Report, findings: list[Finding]) -> tuple[str, ClientValue | None]:
    """How many clients helped, and the most valuable one."""
    lines = [line for line in report.chosen if line.value is not None]
    best = max(lines, default=None)
    if report.chosen.uncertainty is None:
        above, below = (sum(sign * (line.value or 0) > 0 for line in lines) for sign in (1, -1))
        return f"{above} above zero, {below} below", best
    helped = sum(line.helps is True for line in lines)
    if report.is_vertical:  # no harm is looked for
        return f"{helped} clearly helped, {len(lines) - helped} unclear", best
    # An interval below zero alone accuses nobody: of many clients some have one by chance
    harmed = len({client for found in findings if found.kind is HARM for client in found.clients})
    return f"{helped} clearly helped, {len(lines) - helped - harmed} unclear, {harmed} harmed", best


def sorted_findings(report: Report) -> list[Finding]:
    """All findings of a report, the urgent ones first."""
    return sorted(report.all_findings, key=lambda finding: finding.kind.level is not Level.ACT)


def passed_of(report: Report, findings: list[Finding]) -> list[Kind]:
    """The kinds that were looked for, and not found."""
    found = {finding.kind.name for finding in findings}
    checked = (*looked_for_in_values(report.chosen), *report.looked_for)
    return [kind for kind in checked if kind.name not in found]


def named(clients: tuple[str, ...], settings: PageSettings) -> Markup:
    """Names as escaped text, each with its own text direction; bare numbers follow the noun."""
    shown = [Markup("<bdi>{}</bdi>").format(name) for name in clients[:MOST_LISTED]]
    noun = (settings.noun if len(clients) == 1 else settings.plural) + " "
    before = Markup(noun[0].upper()) + noun[1:] if all(name.isdigit() for name in clients) else Markup("")
    if len(clients) > MOST_LISTED:
        return before + Markup(", ").join(shown) + f" and {len(clients) - MOST_LISTED:,} more"
    return before + (shown[0] if len(shown) == 1 else Markup(", ").join(shown[:-1]) + Markup(" and ") + shown[-1])


def group_table(report: Report, rows: list[Row], settings: PageSettings) -> dict[str, Any] | None:
    """The table of a report whose values are known by group, as the template shows it."""
    groups = report.chosen.groups
    if groups is None:
        return None
    values, half = groups.values, groups.half_widths
    top = float(np.nanmax(np.abs(values), initial=0.0)) or 1.0
    digits = groups.decimals
    shown = rows if values.size <= MOST_CELLS else [row for row in rows if not row.is_folded]

    def cell(client: int, group: int) -> dict[str, str]:
        """The value as text, its range if that is known, and its colour: p1 to p4 helps, m1 to m4 harms."""
        value, width = float(values[client, group]), float(half[client, group])
        if math.isnan(value):
            return {"text": "–", "interval": "", "css": ""}
        is_clear = abs(value) > width  # False if the width is not known
        tone = min(N_TONES, 1 + int(N_TONES * math.sqrt(abs(value) / top)))
        interval = "" if math.isnan(width) else f"{signed(value - width, digits)} to {signed(value + width, digits)}"
        css = f"{'p' if value > 0 else 'm'}{tone}" if is_clear else "unclear"
        return {"text": signed(value, digits), "interval": interval, "css": css}

    known = {"share of the test data": groups.shares, "share of the population": groups.population}
    whole = np.column_stack([values, report.chosen.values]).tolist()
    return {
        "by": groups.by,
        "names": groups.names,
        "shares": [(of, [*map(share_text, shares.tolist())]) for of, shares in known.items() if shares is not None],
        "rows": [(row, [cell(row.place, group) for group in range(len(groups.names))]) for row in shown],
        "n_hidden": len(rows) - len(shown),  # clients that are left out, because there are too many
        "lines": list(_lines(report, groups, settings.noun)),
        "sort": [[None if math.isnan(x) else x for x in row] for row in whole],
    }


def _lines(report: Report, groups: GroupValues, noun: str) -> Iterator[str]:
    """Which groups exactly one client clearly helps, and which nobody does."""
    if np.isnan(groups.half_widths).all():
        return  # nothing is known to be clear
    helps = groups.signs > 0  # (n_clients, n_groups)
    n_helping = helps.sum(axis=0)
    if alone := [k for k in range(len(groups.names)) if n_helping[k] == 1]:
        by = [report.clients[int(np.argmax(helps[:, k]))] for k in alone]
        by = [f"{noun} {name}" if name.isdigit() else name for name in by]
        text = ", ".join(f"{groups.by} {groups.names[k]} (by {name})" for k, name in zip(alone, by, strict=True))
        yield f"Clearly helped by one {noun} alone: {text}."
    if nobody := [groups.names[k] for k in range(len(groups.names)) if n_helping[k] == 0]:
        yield f"Clearly helped by nobody: {groups.by} {', '.join(nobody)}."
