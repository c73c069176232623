"""The statement that one data owner is sent, with no name, value or extreme of another client.

The template gets this client's numbers alone. Of the others it gets the middle half of their values, rounded to one
digit, and only if there are enough of them that this reveals nobody's value. The axis spans that band and the client.
"""

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from fedworth.report.page.clients import cards_of, share_text
from fedworth.report.page.figures import axis_over, path, picks_of
from fedworth.report.page.page import check_rewards, frame_of, render
from fedworth.report.page.story import ticks_of
from fedworth.report.page.trust import verdict_of, wording_of
from fedworth.report.report import Report
from fedworth.report.settings import PageSettings
from fedworth.valuation.notebook import digits_of, ranks_text, signed

if TYPE_CHECKING:
    from fedworth.report.rewards import Rewards

FEWEST_OTHERS = 7
"""With fewer other clients no band is shown, because it would reveal single values."""


def statement_html(
    report: Report, client: str, settings: PageSettings | None = None, *, rewards: "Rewards | None" = None
) -> str:
    """One client's statement."""
    settings = settings or PageSettings()
    check_rewards(rewards, report)
    line = report[client]  # refuses an unknown client
    digits = digits_of([line])
    band = _band(report, client)
    ends = [x for x in (line.value, line.low, line.high, *(band or ())) if x is not None]
    view = {
        **frame_of(settings, settings.title or report.title),
        "n_clients": len(report.clients),
        "n_rounds": None if report.rounds is None else len(report.rounds.numbers),
        "n_heard": report.n_rounds_heard.get(client),
        "line": line,
        "value": signed(line.value, digits),
        "low": signed(line.low, digits),
        "high": signed(line.high, digits),
        "share": share_text(line.share),
        "rank": ranks_text(line),
        "w": wording_of(report.chosen, settings),
        "band": band,
        "axis": axis_over(np.array(ends, dtype=np.float64), room=0.05),
        "course": _course(report, client),
        "cards": [card for card in cards_of(report, settings) if client in card.clients],
        "looked": bool(report.looked_for),
        "verdict": verdict_of(report, settings),
        "fingerprint": report.fingerprint,
        "rewards": rewards,
    }
    return render("statement.html", view)


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
