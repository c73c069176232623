"""Findings as cards: what was seen, why it matters, what to do; and the same told to the client itself.

What a client is told names nobody else: a statement goes to one data owner.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from markupsafe import Markup

from fedworth.findings import OF_VALUES, Finding
from fedworth.report.page.kinds import OTHER, RARE, SILENT, WORDS, Words
from fedworth.report.page.settings import PageSettings
from fedworth.report.report import Report
from fedworth.valuation.notebook import digits_of, signed
from fedworth.valuation.worth import Covered

MOST_NAMED = 8


@dataclass(frozen=True)
class Card:
    """One finding as the page shows it."""

    clients: tuple[str, ...]
    tag: str
    title: Markup
    saw: str
    why: str
    do: str
    told_title: str
    told_saw: str
    told_do: str
    is_grave: bool


def cards_of(report: Report, settings: PageSettings) -> list[Card]:
    """All findings on a report, the gravest first."""
    made = [*(_card(found, report, settings) for found in report.all_findings), *_of_hearing(report, settings)]
    return sorted(made, key=lambda card: not card.is_grave)


def passed_of(report: Report, cards: list[Card], settings: PageSettings) -> list[str]:
    """A sentence for each check that was made and found nothing."""
    found = {finding.kind for finding in report.all_findings}
    values = OF_VALUES if report.chosen.covered is not Covered.UNKNOWN else ()
    looked = [WORDS[kind] for kind in (*values, *report.looked_for) if kind in WORDS and kind not in found]
    tags = {card.tag for card in cards}
    heard = [words for words in _checks_of_hearing(report) if words.tag not in tags]
    return [_fill(words.passed, settings) for words in (*heard, *looked)]


def _checks_of_hearing(report: Report) -> Iterator[Words]:
    if report.rounds is not None:
        yield SILENT
        if report.chosen.completion is not None:
            yield RARE


def _of_hearing(report: Report, settings: PageSettings) -> Iterator[Card]:
    """Who was heard once, and who never."""
    chosen = report.chosen
    lines, heard = list(chosen), heard_counts(report)
    rare = tuple(line.client for line in lines if line.value is not None and heard.get(line.client) == 1)
    if rare and chosen.completion is not None and report.rounds is not None and len(report.rounds.numbers) > 1:
        saw = f"Heard in 1 of {len(report.rounds.numbers)} rounds."
        yield _made(rare, RARE, saw, saw, settings)
    silent = tuple(line.client for line in lines if line.value is None)
    if silent:
        yield _made(silent, SILENT, "No round has an answer.", "No round has an answer of yours.", settings)


def _card(finding: Finding, report: Report, settings: PageSettings) -> Card:
    words = WORDS.get(finding.kind, OTHER)
    return _made(finding.clients, words, finding.sentence, _told(finding, report), settings)


def _told(finding: Finding, report: Report) -> str:
    """What the client itself is told that was seen: nobody else's name or number."""
    if finding.kind in OF_VALUES and len(finding.clients) > 1:
        return "Your value lies below zero, with its whole likely range if there is one."
    if finding.kind in OF_VALUES:
        line = report[finding.clients[0]]
        digits = digits_of(list(report))
        value, ends = signed(line.value, digits), f"{signed(line.low, digits)} to {signed(line.high, digits)}"
        return f"Your value is {value}." if line.low is None else f"Your value is {value}, likely {ends}."
    n_seen, n_possible = len(finding.rounds), finding.n_rounds
    return "Seen in your only round." if n_possible == 1 else f"Seen in {n_seen} of {n_possible} rounds."


def _made(clients: tuple[str, ...], words: Words, saw: str, told_saw: str, settings: PageSettings) -> Card:
    title = Markup("{} {}").format(named(clients, settings), words.title)
    told = _fill(words.told_title, settings)
    return Card(clients, words.tag, title, saw, words.why, words.do, told, told_saw, words.told_do, words.is_grave)


def heard_counts(report: Report) -> dict[str, int]:
    """How many rounds each client took part in, where that is known."""
    if report.rounds is not None:
        return dict(zip(report.clients, report.rounds.participants.sum(axis=0).tolist(), strict=True))
    counts = (report.coverage or {}).get("n_rounds_heard", ())
    return dict(zip(report.clients, counts, strict=False))


def named(clients: tuple[str, ...], settings: PageSettings) -> Markup:
    """Names as text, whatever is in them, each in a direction of its own; bare numbers with the noun before them."""
    shown = [Markup("<bdi>{}</bdi>").format(name) for name in clients[:MOST_NAMED]]
    noun = (settings.noun if len(clients) == 1 else settings.nouns) + " "
    before = Markup(noun[0].upper()) + noun[1:] if all(name.isdigit() for name in clients) else Markup("")
    if len(clients) > MOST_NAMED:
        return before + Markup(", ").join(shown) + f" and {len(clients) - MOST_NAMED:,} more"
    return before + (shown[0] if len(shown) == 1 else Markup(", ").join(shown[:-1]) + Markup(" and ") + shown[-1])


def _fill(text: str, settings: PageSettings) -> str:
    return text.replace("{nouns}", settings.nouns).replace("{noun}", settings.noun)
