"""The page. In: a report. Out: one HTML file that needs nothing else.

It shows every number without a script; the script only sorts, unfolds and tells numbers under the pointer. The same
report gives the same bytes.
"""

from typing import Any

from fedworth.report.page.figures import Axis
from fedworth.report.page.findings import cards_of, passed_of
from fedworth.report.page.made import facts_of, methods_of
from fedworth.report.page.render import render
from fedworth.report.page.settings import PageSettings
from fedworth.report.page.story import Story, story_of
from fedworth.report.page.table import Row, axis_of, rows_of, summary_of
from fedworth.report.page.trust import answers_of, verdict_of
from fedworth.report.page.wording import LEVEL_TEXT, wording_of
from fedworth.report.report import Report
from fedworth.report.rewards import Rewards
from fedworth.trail import SOFTWARE
from fedworth.valuation.notebook import digits_of, signed

MOST_CARDS = 40
WORDS = (
    (
        "Round",
        "The server sends the model out, some {nouns} train it on their data, and the server averages what comes back.",
    ),
    (
        "Improvement",
        "How much less wrong the model is on the test data: its loss before minus after, or its accuracy if asked for.",
    ),
    ("Group", "Any set of {nouns} that could have trained together."),
    (
        "Estimated",
        "Not measured, but computed from what was measured, because that group never trained together in that round.",
    ),
)


def page_html(report: Report, settings: PageSettings | None = None, *, rewards: Rewards | None = None) -> str:
    """The whole page of a report.

    Args:
        report: What is shown.
        settings: Title, nouns and date.
        rewards: Show these rewards too.

    Returns:
        One HTML file that needs nothing else.

    Example:
        Path("report.html").write_text(fedworth.page_html(report, fedworth.PageSettings(title="Sepsis model")))
    """
    settings = settings or PageSettings()
    if not report.valuations:
        return render("empty.html", _frame(report, settings) | {"warnings": report.warnings()})
    chosen, cards = report.chosen, cards_of(report, settings)
    wording = wording_of(chosen, settings)
    rows = rows_of(report, cards, wording.no_range)
    flagged = [row.place for row in rows if any(tone == "bad" for tone, _ in row.tags)]
    story = story_of(report, [row.place for row in rows], flagged)
    view = _frame(report, settings) | {
        "w": wording,
        "level": LEVEL_TEXT,
        "rows": rows,
        "axis": axis_of(report),
        "summary": summary_of(report),
        "verdict": verdict_of(report, settings),
        "answers": answers_of(report, settings),
        "doubts": () if chosen.uncertainty is None else chosen.uncertainty.doubts,
        "cards": cards[:MOST_CARDS],
        "n_cards": len(cards),
        "n_grave": sum(card.is_grave for card in cards),
        "passed": passed_of(report, cards, settings),
        "looked": bool(report.looked_for),
        "story": story,
        "others": _others(report),
        "methods": methods_of(report),
        "facts": facts_of(report, settings, wording),
        "warnings": report.warnings(),
        "words": [(word, meaning.replace("{nouns}", settings.nouns)) for word, meaning in WORDS],
        "rewards": rewards,
        "data": _data(report, rows, story),
    }
    return render("page.html", view, script="script.js")


def _frame(report: Report, settings: PageSettings) -> dict[str, Any]:
    """What every template needs."""
    return {
        "title": settings.title or report.title,
        "has_counts": settings.title is not None,  # the report's own title says how many there are
        "noun": settings.noun,
        "nouns": settings.nouns,
        "date": settings.date,
        "software": SOFTWARE,
        "clients": report.clients,
        "n_rounds": len(report.rounds.numbers) if report.rounds is not None else report.trail and report.trail.n_rounds,
        "signed": signed,
        "tick": Axis.label,
        "digits": digits_of(list(report)) if report.valuations else 2,
    }


def _others(report: Report) -> list[list[str]]:
    """Every client's value by every method, if there are several."""
    if len(report.valuations) < 2:
        return []
    listed = [list(made) for made in report.valuations]
    digits = [digits_of(lines) for lines in listed]
    columns = [[signed(line.value, n) for line in lines] for lines, n in zip(listed, digits, strict=True)]
    return [list(row) for row in zip(*columns, strict=True)]


def _data(report: Report, rows: list[Row], story: Story | None) -> dict[str, Any]:
    """What the script needs: what to sort by, and the numbers behind the figures."""
    keys = {row.place: row.sort_keys for row in rows}
    shown = {} if story is None else story.data
    return {"clients": list(report.clients), "sort": [keys[k] for k in range(len(report.clients))], **shown}
