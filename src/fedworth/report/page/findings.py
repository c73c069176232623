"""Findings as cards: what was seen, why it matters, what to do; and the same told to the client itself.

What a client is told names nobody else: a statement goes to one data owner.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from markupsafe import Markup

from fedworth.ledger.finding import Finding, FindingKind
from fedworth.report.page.settings import PageSettings
from fedworth.report.report import Report
from fedworth.valuation.notebook import digits_of, signed
from fedworth.valuation.worth import Covered, Worth

MOST_NAMED = 8


@dataclass(frozen=True)
class Words:
    """What is said about one kind of finding, the same for all."""

    tag: str
    title: str  # after the names
    why: str
    do: str
    told_title: str
    told_do: str
    passed: str
    is_grave: bool = True


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


COPIES = "The same data counted twice take worth from everyone else, and both are paid for one set of data."
ASK_COPIES = "Ask each of them where its data come from. If one is a copy, make the report again --without it."
TOLD_COPY = (
    "Check whether your data, and the model that you send, are yours alone. The coordinator will ask you about it."
)
NOT_TRAINED = "An answer that was not trained adds nothing, but is averaged like any other."
ASK_TRAINING = "Ask whether its training runs: a full disk, an empty data folder or a cached answer look like this."
TOLD_TRAINING = "Check that your training runs to its end and that its result is what is sent."

WORDS = {
    FindingKind.SAME_MODEL: Words(
        "Same data?",
        "sent the same model",
        COPIES,
        ASK_COPIES,
        "Your model was the same as another {noun}’s",
        TOLD_COPY,
        "No two {nouns} sent the same model.",
    ),
    FindingKind.SCALED_COPY: Words(
        "Copied?",
        "sent the same update, scaled",
        "One may be paid for the other’s work. " + COPIES,
        ASK_COPIES,
        "Your update was another {noun}’s, scaled",
        TOLD_COPY,
        "No update was another’s, scaled.",
    ),
    FindingKind.LATE_COPY: Words(
        "Copied?",
        "sent the same answer in different rounds",
        "Whoever sends what another sent before adds nothing of its own.",
        ASK_COPIES,
        "An answer of yours was the same as another {noun}’s",
        TOLD_COPY,
        "No answer was another’s of an earlier round.",
    ),
    FindingKind.REPLAY: Words(
        "Repeats itself",
        "sent an old answer again",
        NOT_TRAINED,
        ASK_TRAINING,
        "You sent an old answer again",
        TOLD_TRAINING,
        "No {noun} sent an old answer again.",
    ),
    FindingKind.NO_UPDATE: Words(
        "Not trained",
        "sent the model back unchanged",
        NOT_TRAINED,
        ASK_TRAINING,
        "You sent the model back unchanged",
        TOLD_TRAINING,
        "No {noun} sent the model back unchanged.",
    ),
    FindingKind.STALE_MODEL: Words(
        "Not trained",
        "sent an old shared model back",
        NOT_TRAINED,
        ASK_TRAINING,
        "You sent an old shared model back",
        TOLD_TRAINING,
        "No {noun} sent an old shared model back.",
    ),
    FindingKind.ECHO: Words(
        "Echo",
        "sent the server’s own last step",
        "It follows the others’ training without training itself, and is paid for theirs.",
        ASK_TRAINING,
        "Your update was the server’s own last step",
        TOLD_TRAINING,
        "No update was the server’s own last step.",
    ),
    FindingKind.LARGE_UPDATE: Words(
        "Large update",
        "sent a far larger update than the others",
        "One large update can decide the average, for better or worse.",
        "Ask for its learning rate, number of steps and how its inputs are scaled.",
        "Your update was far larger than most",
        "Check your learning rate, your number of steps and the scale of your inputs.",
        "No update was much larger than the others.",
    ),
    FindingKind.MANY_SAMPLES: Words(
        "Many samples",
        "reported far more samples than the others",
        "Where the server weighs by samples, such a number decides the average.",
        "Ask whether the number is right.",
        "You reported far more samples than most",
        "Check the number of samples that you report.",
        "No {noun} reported far more samples than the others.",
        is_grave=False,
    ),
    FindingKind.CONTESTED_NAME: Words(
        "Name contested",
        "had its name claimed by a second node",
        "Somebody else may have answered, or tried to, in its name.",
        "Find out which node is its own, and who runs the other.",
        "Another node answered in your name",
        "Tell the coordinator which node is yours.",
        "No name was claimed by two nodes.",
    ),
    FindingKind.SHARED_NODE: Words(
        "One node",
        "answered from one node",
        "Several names for one owner collect several shares.",
        "Ask whether they are one owner; if so, value them as one.",
        "You share a node with another name",
        "Tell the coordinator why, if you do not know it.",
        "No two {nouns} answered from one node.",
        is_grave=False,
    ),
}
OTHER = Words(
    "Odd",
    "stood out",
    "It is unlike what the others did.",
    "Ask about it before acting on the values.",
    "Something about your answers stood out",
    "The coordinator can tell you more.",
    "",
)
HARMS = Words(
    "Harms",
    "made the model worse",
    "On balance the model does worse with it than without it. Wrong labels and other units of measurement are common "
    "causes; data unlike the test data is another.",
    "Have its labels and units checked. To see the others without it, make the report again --without it.",
    "Your data made the model worse",
    "Check how your labels are coded and in which units you measure. Data unlike the coordinator’s test data can also "
    "look like this.",
    "No {noun}’s value lies clearly below zero.",
)
RARE = Words(
    "Heard once",
    "answered in one round only",
    "Almost all of its value is estimated, and its range is likely too narrow. That is no judgement of its data.",
    "Ask it in more rounds before deciding on it.",
    "You took part in one round only",
    "Nothing is wrong with your data. Take part more often, and more of your value will be measured.",
    "Every {noun} with a value was heard more than once.",
    is_grave=False,
)
SILENT = Words(
    "Never heard",
    "never took part",
    "Nothing is known of its data, so no value can be given. The others are valued without it.",
    "Ask it in the next rounds.",
    "You never took part",
    "Nothing is known of your data, so you have no value here: not even zero.",
    "Every {noun} was heard at least once.",
    is_grave=False,
)


def cards_of(report: Report, settings: PageSettings) -> list[Card]:
    """All findings on a report, the gravest first."""
    made = [*_from_values(report, settings), *(_card(found, settings) for found in report.findings)]
    return sorted(made, key=lambda card: not card.is_grave)


def passed_of(report: Report, cards: list[Card], settings: PageSettings) -> list[str]:
    """A sentence for each check that was made and found nothing."""
    found = {finding.kind for finding in report.findings}
    looked = [WORDS[kind] for kind in report.looked_for if kind in WORDS and kind not in found]
    tags = {card.tag for card in cards}
    values = [words for words in _checks_of_values(report) if words.tag not in tags]
    return [_fill(words.passed, settings) for words in (*values, *looked)]


def _checks_of_values(report: Report) -> Iterator[Words]:
    chosen = report.chosen
    if chosen.covered is not Covered.UNKNOWN:
        yield HARMS
    if report.rounds is not None:
        yield SILENT
        if chosen.completion is not None:
            yield RARE


def _from_values(report: Report, settings: PageSettings) -> Iterator[Card]:
    chosen = report.chosen
    lines, heard = list(chosen), heard_counts(report)
    harming = [line for line in lines if line.helps is False and chosen.covered is not Covered.UNKNOWN]
    if len(harming) > MOST_NAMED:
        saw = (
            f"{len(harming):,} of {len(lines):,} values lie below zero, with their whole likely range if there is one."
        )
        told = "Your value lies below zero, with its whole likely range if there is one."
        yield _made(tuple(line.client for line in harming), HARMS, saw, told, settings)
    else:
        yield from (_harm(line, digits_of(lines), settings) for line in harming)
    rare = tuple(line.client for line in lines if line.value is not None and heard.get(line.client) == 1)
    if rare and chosen.completion is not None and report.rounds is not None and len(report.rounds.numbers) > 1:
        saw = f"Heard in 1 of {len(report.rounds.numbers)} rounds."
        yield _made(rare, RARE, saw, saw, settings)
    silent = tuple(line.client for line in lines if line.value is None)
    if silent:
        yield _made(silent, SILENT, "No round has an answer.", "No round has an answer of yours.", settings)


def _harm(line: Worth, digits: int, settings: PageSettings) -> Card:
    value = signed(line.value, digits)
    if line.low is None:
        saw, told = f"Its value is {value}; every group behind it was measured.", f"Your value is {value}."
    else:
        ends = f"{signed(line.low, digits)} to {signed(line.high, digits)}"
        saw = f"Its value is {value}, and its whole likely range ({ends}) lies below zero."
        told = f"Your value is {value}, and its whole likely range ({ends}) lies below zero."
    return _made((line.client,), HARMS, saw, told, settings)


def _card(finding: Finding, settings: PageSettings) -> Card:
    n_seen, n_possible = len(finding.rounds), finding.n_rounds
    told = "Seen in your only round." if n_possible == 1 else f"Seen in {n_seen} of {n_possible} rounds."
    return _made(finding.clients, WORDS.get(finding.kind, OTHER), finding.sentence, told, settings)


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
