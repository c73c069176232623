"""The statement: what one data owner is sent. Nothing in it is another client's: no name, no value, no extreme.

The template gets this client's numbers alone. Of the others it gets the middle half of their values, rounded to one
digit, and only where there are enough of them that this tells nobody's value. The axis spans that band and the client.
"""

import math
from dataclasses import dataclass

import numpy as np

from fedworth.report.page.figures import Axis, axis_over, path, picks_of
from fedworth.report.page.findings import cards_of, heard_counts
from fedworth.report.page.made import fingerprint_of
from fedworth.report.page.render import render
from fedworth.report.page.settings import PageSettings
from fedworth.report.page.story import ticks_of
from fedworth.report.page.table import share_text
from fedworth.report.page.trust import verdict_of
from fedworth.report.page.wording import LEVEL_TEXT, wording_of
from fedworth.report.report import Report
from fedworth.report.rewards import Rewards
from fedworth.trail import SOFTWARE
from fedworth.valuation.notebook import digits_of, ranks_text, signed

FEWEST_OTHERS = 7
"""Others with a value without whom no band is shown: the middle half of few tells single values."""


@dataclass(frozen=True)
class Course:
    """The client's own value, added up over the rounds."""

    axis: Axis
    path: str
    ticks: tuple[tuple[str, str, str], ...]


def statement_html(
    report: Report, client: str, settings: PageSettings | None = None, *, rewards: Rewards | None = None
) -> str:
    """One client's statement.

    Args:
        report: The report that the statement is from.
        client: Whose statement it is.
        settings: Title, nouns and date.
        rewards: Tell the client its own reward too.

    Returns:
        One HTML file, without name, value or extreme of another client.

    Example:
        Path("north.html").write_text(fedworth.statement_html(report, "north"))
    """
    settings = settings or PageSettings()
    line = report[client]  # refuses a client that is not there
    digits = digits_of([line])
    heard = heard_counts(report).get(client)
    band = _band(report, client)
    ends = [x for x in (line.value, line.low, line.high, *(band or ())) if x is not None]
    return render(
        "statement.html",
        {
            "title": settings.title or report.title,
            "noun": settings.noun,
            "nouns": settings.nouns,
            "date": settings.date,
            "n_clients": len(report.clients),
            "n_rounds": None if report.rounds is None else len(report.rounds.numbers),
            "n_heard": heard,
            "worth": line,
            "value": signed(line.value, digits),
            "low": signed(line.low, digits),
            "high": signed(line.high, digits),
            "share": share_text(line.share),
            "rank": ranks_text(line),
            "level": LEVEL_TEXT,
            "w": wording_of(report.chosen, settings),
            "band": band,
            "axis": axis_over(np.array(ends, dtype=np.float64), room=0.05),
            "course": _course(report, client),
            "cards": [card for card in cards_of(report, settings) if client in card.clients],
            "looked": bool(report.looked_for),
            "verdict": verdict_of(report, settings),
            "fingerprint": fingerprint_of(report),
            "software": SOFTWARE,
            "reward": None if rewards is None else rewards.amount(client),
            "pool": None if rewards is None else rewards.pool,
            "rule": None if rewards is None else rewards.sentence,
        },
    )


def _band(report: Report, client: str) -> tuple[float, float] | None:
    """The middle half of the others' values, rounded to one digit; None where there are too few."""
    others = np.array([line.value for line in report if line.client != client and line.value is not None])
    if len(others) < FEWEST_OTHERS:
        return None
    low, high = np.quantile(others, [0.25, 0.75]).tolist()
    most = max(abs(low), abs(high))
    decimals = -math.floor(math.log10(most)) if most > 0 else 0
    rounded = round(low, decimals), round(high, decimals)
    return rounded if rounded[0] < rounded[1] else None


def _course(report: Report, client: str) -> Course | None:
    rounds = report.rounds
    found = None if rounds is None else rounds.values.get(report.chosen.method)
    if rounds is None or found is None:
        return None
    sums = np.cumsum(found[:, report.clients.index(client)])
    if not np.isfinite(sums).all() or len(sums) < 2:
        return None
    axis = axis_over(sums, about=4)
    return Course(axis, path(sums[picks_of(len(sums))], axis), ticks_of(rounds.numbers))
