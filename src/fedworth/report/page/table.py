"""The table of values: a row a client, whose bar, numbers and findings stand together."""

from dataclasses import dataclass

import numpy as np

from fedworth.report.page.figures import Axis, axis_over
from fedworth.report.page.findings import Card, heard_counts
from fedworth.report.report import Report
from fedworth.valuation.notebook import digits_of, ranks_text, signed
from fedworth.valuation.worth import Covered, Worth

MOST_SHOWN, FIRST, LAST, MOST_FLAGGED = 25, 10, 5, 15
"""With more rows than these, a script folds all but the first, the last and some of those with a finding."""


@dataclass(frozen=True)
class Row:
    """One client as the table shows it."""

    place: int  # among the report's clients
    worth: Worth
    value: str
    interval: str
    share: str
    rank: str
    n_heard: int | None
    tags: tuple[tuple[str, str], ...]  # (tone, text)
    kind: str  # of the bar: plus or minus, and unsure if the interval holds zero
    is_folded: bool

    @property
    def sort_keys(self) -> list[float | int | None]:
        """Numbers that a script sorts by: value, low end, share, first rank, rounds."""
        worth = self.worth
        first = worth.rank if worth.ranks is None else worth.ranks[0]
        return [worth.value, worth.low, worth.share, first, self.n_heard]


@dataclass(frozen=True)
class Summary:
    """The answer for somebody with ten seconds."""

    head: str
    best: Worth | None


def rows_of(report: Report, cards: list[Card], no_range: str) -> list[Row]:
    """All rows, the most valuable first, those without a value last."""
    lines = list(report.chosen)
    order = sorted(range(len(lines)), key=lambda k: (lines[k].value is None, -(lines[k].value or 0.0), k))
    tags = _tags(cards)
    heard, digits = heard_counts(report), digits_of(lines)
    flagged = [k for k in order[FIRST:-LAST] if lines[k].client in tags][:MOST_FLAGGED]
    folded = set(order[FIRST:-LAST]) - set(flagged) if len(order) > MOST_SHOWN else set()
    return [_row(k, lines[k], heard, tags, digits, no_range, k in folded) for k in order]


def _row(
    place: int,
    line: Worth,
    heard: dict[str, int],
    tags: dict[str, dict[str, str]],
    digits: int,
    no_range: str,
    is_folded: bool,
) -> Row:
    interval = no_range if line.low is None else f"{signed(line.low, digits)} to {signed(line.high, digits)}"
    is_unsure = line.low is not None and line.high is not None and line.low <= 0 <= line.high
    return Row(
        place,
        line,
        signed(line.value, digits),
        "–" if line.value is None else interval,
        share_text(line.share),
        ranks_text(line),
        heard.get(line.client),
        tuple((tone, text) for text, tone in tags.get(line.client, {}).items()),
        ("minus" if (line.value or 0) < 0 else "plus") + (" unsure" if is_unsure else ""),
        is_folded,
    )


def share_text(share: float | None) -> str:
    """A share in whole percents; "under 1 %" is not nothing."""
    if share is None:
        return "–"
    return "under 1\N{NO-BREAK SPACE}%" if 0 < share < 0.005 else f"{100 * share:.0f}\N{NO-BREAK SPACE}%"


def axis_of(report: Report) -> Axis:
    """The axis that all bars share."""
    known = report.chosen.intervals
    ends = [] if known is None else known.ravel().tolist()
    return axis_over(np.array([*report.chosen.values.tolist(), *ends], dtype=np.float64))


def summary_of(report: Report) -> Summary:
    """How many clients helped, and who most."""
    chosen = report.chosen
    valued = [line for line in chosen if line.value is not None]
    best = max(valued, key=lambda line: line.value or 0.0, default=None)
    if chosen.covered in (Covered.MEASURED, Covered.UNKNOWN):
        above = sum((line.value or 0) > 0 for line in valued)
        below = sum((line.value or 0) < 0 for line in valued)
        return Summary(f"{above} above zero, {below} below", best)
    told = {helps: sum(line.helps is helps for line in valued) for helps in (True, None, False)}
    return Summary(f"{told[True]} clearly helped, {told[None]} unclear, {told[False]} harmed", best)


def _tags(cards: list[Card]) -> dict[str, dict[str, str]]:
    """Each client's tags and their tones, each tag once."""
    found: dict[str, dict[str, str]] = {}
    for card in cards:
        for client in card.clients:
            found.setdefault(client, {}).setdefault(card.tag, "bad" if card.is_grave else "care")
    return found
