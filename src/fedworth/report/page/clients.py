"""The clients on the page: the table of values, whose columns are rows of `COLUMNS`; who helps whom; and findings.

In the table of clients and groups of test samples, colour repeats the numbers. A cell whose range includes zero has no
colour, because its sign is not clear.

Texts for a client (`client_…`) name no other client, because a statement goes to one data owner.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from markupsafe import Markup

from fedworth.findings import HARM, MANY_GROUPS, Finding, Kind, Level, looked_for_in_values
from fedworth.report.page.figures import Axis, axis_over
from fedworth.report.report import Report
from fedworth.report.settings import PageSettings
from fedworth.valuation.groups import GroupValues
from fedworth.valuation.notebook import digits_of, ranks_text, signed
from fedworth.valuation.valuation import ClientValue

MOST_SHOWN, FIRST, LAST, MOST_FLAGGED = 25, 10, 5, 15
"""With more rows than `MOST_SHOWN` a script folds all but the first, the last and some of those with a finding."""
MOST_LISTED = 8

MOST_CELLS = 2_000
"""With more cells the page shows only the clients that it does not fold."""
N_TONES = 4
"""Steps of colour for each sign."""

TOOK_PART_ONCE = Kind(
    "took part once",
    Level.NOTE,
    sentence="Took part in {n_heard} of {n_rounds} rounds.",
    basis="",
    tag="Took part once",
    title="answered in one round only",
    why="Almost all of its value is estimated, and its range is likely too narrow. This is no judgement of its data.",
    action="Ask it in more rounds before you decide about it.",
    client_title="You took part in one round only",
    client_action="Nothing is wrong with your data. Take part more often, and more of your value will be measured.",
    passed="Every {noun} with a value took part more than once.",
)
NEVER_TOOK_PART = replace(
    TOOK_PART_ONCE,
    name="never took part",
    sentence="It answered in no round.",
    tag="Never took part",
    title="never took part",
    why="Nothing is known about its data, so no value can be given. The others are valued without it.",
    action="Ask it in the next rounds.",
    client_title="You never took part",
    client_action="Nothing is known about your data, so you have no value here, not even zero.",
    passed="Every {noun} took part at least once.",
)


@dataclass(frozen=True)
class Card:
    """One finding as the page shows it."""

    clients: tuple[str, ...]
    kind: Kind
    title: Markup
    seen: str
    why: str
    action: str
    client_title: str
    client_seen: str

    @property
    def is_urgent(self) -> bool:
        """Whether somebody should act on it."""
        return self.kind.level is Level.ACT


@dataclass(frozen=True)
class Row:
    """One client as the table shows it."""

    place: int  # index in the report's clients
    line: ClientValue
    digits: int
    n_heard: int | None
    n_rounds: int | None
    tags: tuple[tuple[str, str], ...]  # (tone, text)
    is_folded: bool

    @property
    def bar(self) -> str:
        """The classes of the bar: its sign, and whether the interval holds zero."""
        low, high = self.line.low, self.line.high
        is_unclear = low is not None and high is not None and low <= 0 <= high
        return ("minus" if (self.line.value or 0) < 0 else "plus") + (" unsure" if is_unclear else "")

    @property
    def value(self) -> str:
        return signed(self.line.value, self.digits)

    @property
    def interval(self) -> str:
        if self.line.value is None:
            return "–"
        low, high = (signed(end, self.digits) for end in (self.line.low, self.line.high))
        return "not known" if self.line.low is None else f"{low} to {high}"

    @property
    def heard(self) -> str:
        if self.n_heard is None:
            return "–"
        return f"{self.n_heard} of {self.n_rounds}" if self.n_rounds else str(self.n_heard)


@dataclass(frozen=True)
class Column:
    """A column of the table: heading, text, number to sort by, and how to read it."""

    heading: str
    css: str
    text: Callable[[Row], str]
    key: Callable[[Row], float | None]
    help: str  # {noun}, {nouns}, {example}, {measure}, {total}, {range}, {rounds}
    best_is_low: bool = False


COLUMNS = (
    Column(
        "Value",
        "strong",
        lambda row: row.value,
        lambda row: row.line.value,
        "+0.50 means: averaged over all groups of {nouns} it could join, {example}. Unit: {measure}. {total}",
    ),
    Column("Likely range", "soft lo", lambda row: row.interval, lambda row: row.line.low, "{range}"),
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
        lambda row: row.heard,
        lambda row: row.n_heard,
        "How many rounds the {noun} took part in. {rounds}",
    ),
)


def rows_of(report: Report, cards: list[Card]) -> list[Row]:
    """All rows, the most valuable first, those without a value last."""
    lines, heard = list(report.chosen), report.n_rounds_heard
    order = sorted(range(len(lines)), key=lambda k: (lines[k].value is None, -(lines[k].value or 0.0), k))
    tags: dict[str, dict[str, str]] = {}
    for card in cards:
        for client in card.clients:
            tags.setdefault(client, {}).setdefault(card.kind.tag, "bad" if card.is_urgent else "care")
    flagged = [k for k in order[FIRST:-LAST] if lines[k].client in tags][:MOST_FLAGGED]
    folded = set(order[FIRST:-LAST]) - set(flagged) if len(order) > MOST_SHOWN else set()
    digits, n_rounds = digits_of(lines), n_rounds_of(report)
    return [
        Row(
            k,
            lines[k],
            digits,
            heard.get(lines[k].client),
            n_rounds,
            tuple((tone, text) for text, tone in tags.get(lines[k].client, {}).items()),
            k in folded,
        )
        for k in order
    ]


def n_rounds_of(report: Report) -> int | None:
    """How many rounds the federation had, if that is known."""
    if report.rounds is not None:
        return len(report.rounds.numbers)
    return None if report.provenance is None else report.provenance.n_rounds


def share_text(share: float | None) -> str:
    """A share in whole percents; small shares are "under 1 %", not 0."""
    if share is None:
        return "–"
    return "under 1\N{NO-BREAK SPACE}%" if 0 < share < 0.005 else f"{100 * share:.0f}\N{NO-BREAK SPACE}%"


def axis_of(report: Report) -> Axis:
    """The axis that all bars share."""
    known = report.chosen.intervals
    ends = [] if known is None else known.ravel().tolist()
    return axis_over(np.array([*report.chosen.values.tolist(), *ends], dtype=np.float64))


def summary_of(report: Report) -> tuple[str, ClientValue | None]:
    """How many clients helped, and the most valuable one."""
    lines = [line for line in report.chosen if line.value is not None]
    best = max(lines, default=None)
    if report.chosen.uncertainty is None:
        above, below = (sum(sign * (line.value or 0) > 0 for line in lines) for sign in (1, -1))
        return f"{above} above zero, {below} below", best
    helped = sum(line.helps is True for line in lines)
    # An interval below zero alone accuses nobody: of many clients some have one by chance
    harmed = len({client for found in report.all_findings if found.kind is HARM for client in found.clients})
    return f"{helped} clearly helped, {len(lines) - helped - harmed} unclear, {harmed} harmed", best


def cards_of(report: Report, settings: PageSettings) -> list[Card]:
    """All findings of a report, the urgent ones first."""
    cards = [
        _card(finding.clients, finding.kind, finding.sentence, _for_client(finding, report), settings)
        for finding in report.all_findings
    ]
    heard, n_rounds = report.n_rounds_heard, n_rounds_of(report) or 0
    once = tuple(line.client for line in report.chosen if line.value is not None and heard.get(line.client) == 1)
    if once and TOOK_PART_ONCE in _participation_checks(report) and n_rounds > 1:
        seen = TOOK_PART_ONCE.sentence.format(n_heard=1, n_rounds=n_rounds)
        cards.append(_card(once, TOOK_PART_ONCE, seen, seen, settings))
    if never := tuple(line.client for line in report.chosen if line.value is None and line.client not in report.given):
        cards.append(_card(never, NEVER_TOOK_PART, NEVER_TOOK_PART.sentence, NEVER_TOOK_PART.sentence, settings))
    return sorted(cards, key=lambda card: not card.is_urgent)


def passed_of(report: Report, cards: list[Card], settings: PageSettings) -> list[str]:
    """A sentence for each check that found nothing."""
    found = {card.kind.name for card in cards}
    checked = (*_participation_checks(report), *looked_for_in_values(report.chosen), *report.looked_for)
    return [settings.fill(kind.passed) for kind in checked if kind.name not in found]


def not_looked_for(report: Report, settings: PageSettings) -> list[str]:
    """What was not looked for, and what it would need; nothing without a ledger, which the page reports elsewhere."""
    kinds = report.not_looked_for if report.looked_for else ()
    return [f"{kind.name[0].upper()}{kind.name[1:]}: this needs {settings.fill(kind.needs)}." for kind in kinds]


def _participation_checks(report: Report) -> Iterator[Kind]:
    if report.rounds is not None:
        yield NEVER_TOOK_PART
        if report.chosen.completion is not None:
            yield TOOK_PART_ONCE


def _for_client(finding: Finding, report: Report) -> str:
    """What the client is told that was seen, without names or numbers of others."""
    if finding.kind.name == MANY_GROUPS.name:
        return f"{finding.evidence['own']:.0f} % of your effects on groups of test samples are positive."
    if finding.kind.is_of_values and len(finding.clients) > 1:
        return "Your value lies below zero, with its whole likely range if there is one."
    if finding.kind.is_of_values:
        line, digits = report[finding.clients[0]], digits_of(list(report))
        value, low, high = (signed(number, digits) for number in (line.value, line.low, line.high))
        return f"Your value is {value}." if line.low is None else f"Your value is {value}, likely {low} to {high}."
    if finding.n_rounds == 1:
        return "Seen in your only round."
    return f"Seen in {len(finding.rounds)} of {finding.n_rounds} rounds."


def _card(clients: tuple[str, ...], kind: Kind, seen: str, client_seen: str, settings: PageSettings) -> Card:
    title = Markup("{} {}").format(_named(clients, settings), kind.title)
    why, action, client_title = map(settings.fill, (kind.why, kind.action, kind.client_title))
    return Card(clients, kind, title, seen, why, action, client_title, client_seen)


def _named(clients: tuple[str, ...], settings: PageSettings) -> Markup:
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
    helps = groups.signs > 0  # (n_clients, n_groups)
    n_helping = helps.sum(axis=0)
    if alone := [k for k in range(len(groups.names)) if n_helping[k] == 1]:
        by = [report.clients[int(np.argmax(helps[:, k]))] for k in alone]
        by = [f"{noun} {name}" if name.isdigit() else name for name in by]
        text = ", ".join(f"{groups.by} {groups.names[k]} (by {name})" for k, name in zip(alone, by, strict=True))
        yield f"Clearly helped by one {noun} alone: {text}."
    if nobody := [groups.names[k] for k in range(len(groups.names)) if n_helping[k] == 0]:
        yield f"Clearly helped by nobody: {groups.by} {', '.join(nobody)}."
