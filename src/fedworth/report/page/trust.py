"""Whether to trust the values: a verdict, the questions behind it, and sentences that promise no more than is known.

Verdicts are made from enums, numbers and flags of the report; no text is searched.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

from fedworth.report.page.clients import n_rounds_of
from fedworth.report.report import Report
from fedworth.report.scores import change_text, detail_text, measure_text, test_set_text
from fedworth.report.settings import PageSettings
from fedworth.valuation.methods import Basis, method_text
from fedworth.valuation.notebook import share_text
from fedworth.valuation.uncertainty import LEVEL, Source, Trust
from fedworth.valuation.valuation import Valuation

LEVEL_TEXT = f"{LEVEL:.0%}".replace("%", "\N{NO-BREAK SPACE}%")
ENOUGH, PARTLY = 0.5, 0.1
"""Measured part of the cells that the values rest on."""
FAIR, UNFAIR = 0.1, 0.5
"""Relative difference of the values of equal data."""
NEAR = 0.9
"""Rank correlation with the truth that counts as near."""


@dataclass(frozen=True)
class Verdict:
    """How far to trust the values."""

    tone: str  # good, care or bad
    mark: str
    head: str
    use: str  # what the values are good for, and what not
    why: str


class Answer(Enum):
    """The answer to a question, with its tone and text."""

    YES = ("good", "✓ Yes")
    PARTLY = ("care", "◐ Partly")
    NO = ("bad", "✕ No")
    OPEN = ("info", "– Not checked")


@dataclass(frozen=True)
class Question:
    """One question about the numbers, answered."""

    question: str
    answer: Answer
    found: str


GOOD, CARE, BAD = ("good", "✓", "Good to use"), ("care", "◐", "Use with care"), ("bad", "✕", "Do not use")
USES = {
    Trust.DISTINGUISHABLE: (GOOD, "Good for comparing {nouns}. Still pay by range, not by the last digit."),
    Trust.ROUGH_ORDER: (
        CARE,
        "Good enough to tell strong from weak. Not good enough to rank neighbours, or to split money to the percent.",
    ),
    Trust.INDISTINGUISHABLE: (
        BAD,
        "These values cannot tell the {nouns} apart. Treat all {nouns} as worth the same.",
    ),
}
CAUTIOUS = "Read why before you compare {nouns} or pay by these values."


def verdict_of(report: Report, settings: PageSettings) -> Verdict:
    chosen = report.chosen
    cautions = "".join(f"Note: {caution}. " for caution in chosen.cautions)
    if chosen.uncertainty is not None:
        head, use = USES[chosen.uncertainty.trust]
        if chosen.cautions and head is GOOD:
            head, use = CARE, CAUTIOUS
        why = f"{cautions}{chosen.uncertainty.sentence_about(settings.plural)} {chosen.uncertainty.advice}".strip()
        return Verdict(*head, settings.fill(use), why)
    use = "How far off the values may be is not known. Look at large differences only, and split no money by them."
    return Verdict(*CARE, use, f"{cautions}There are no likely ranges.")


def questions_of(report: Report, settings: PageSettings) -> list[Question]:
    """The questions behind the verdict, for which something is known."""
    checks = (_seen, _estimates, _apart, _equal, _truth, _finished, _complete)
    return [question for check in checks for question in check(report, settings)]


def _seen(report: Report, settings: PageSettings) -> Iterator[Question]:
    question = f"Were enough groups of {settings.plural} seen?"
    chosen, coverage = report.chosen, report.coverage
    if chosen.is_mean_of_runs:
        return
    if chosen.completion is None:
        found = "Every group that these values rest on was measured, or sampled from measured ones."
        yield Question(question, Answer.YES, found)
    elif coverage is None:
        yield Question(question, Answer.OPEN, "This report does not say how much was measured.")
    else:
        share, unseen = float(coverage["share_seen"]), int(coverage["n_columns_unseen"])
        partly = Answer.PARTLY if share >= PARTLY and not unseen else Answer.NO
        never = f" {unseen:,} of {int(coverage['n_columns']):,} groups were never seen in any round." if unseen else ""
        found = f"{share_text(share)} of the results that the values rest on were measured.{never}"
        yield Question(question, Answer.YES if share >= ENOUGH else partly, found)


def _estimates(report: Report, settings: PageSettings) -> Iterator[Question]:  # noqa: ARG001
    chosen = report.chosen
    if chosen.completion is None:
        return
    if n_held_out := chosen.completion.get("n_held_out"):
        answer, found = (
            Answer.YES,
            f"{n_held_out:,} known answers were hidden and estimated; the ranges include their errors.",
        )
    elif report.coverage is not None and float(report.coverage["share_seen"]) >= 1:
        answer, found = Answer.YES, "Nothing had to be estimated: everything that the values rest on was measured."
    elif Source.ESTIMATES in chosen.covered:
        answer = Answer.PARTLY
        found = "The ranges show how much other estimates differ that explain the measurements as well."
    else:
        answer, found = Answer.OPEN, "Nothing was hidden and estimated, so the error of the estimates is not known."
    yield Question("Are the estimates checked?", answer, found)


def _apart(report: Report, settings: PageSettings) -> Iterator[Question]:
    uncertainty = report.chosen.uncertainty
    if uncertainty is None:
        return
    answers = {Trust.DISTINGUISHABLE: Answer.YES, Trust.ROUGH_ORDER: Answer.PARTLY, Trust.INDISTINGUISHABLE: Answer.NO}
    found = "Their values are equal."
    if uncertainty.ratio is not None:
        found = f"The errors are {uncertainty.ratio:.2f} of the differences (below 0.3 is good, above 1 is useless)."
    yield Question(f"Can the {settings.plural} be told apart?", answers[uncertainty.trust], found)


def _equal(report: Report, settings: PageSettings) -> Iterator[Question]:
    question, apart = "Is equal data valued equally?", _agreement(report, "largest_difference_of_copies")
    if apart is None:
        yield Question(question, Answer.OPEN, f"No two {settings.plural} are known to hold the same data.")
        return
    answer = Answer.YES if apart <= FAIR else Answer.PARTLY if apart <= UNFAIR else Answer.NO
    pairs = "; ".join(f"{original} and {copy}" for copy, original in report.copies)
    found = f"{pairs} hold the same data; their values differ by {share_text(apart)} of the larger."
    yield Question(question, answer, found)


def _truth(report: Report, settings: PageSettings) -> Iterator[Question]:  # noqa: ARG001
    found, error = _agreement(report, "rank_correlation"), report.error_of_truth
    if found is None or report.chosen.method == "truth":
        return
    question = "Is it near the truth?"
    if error is None:
        answer = Answer.YES if found >= NEAR else Answer.PARTLY if found >= ENOUGH else Answer.NO
        yield Question(question, answer, f"This is a simulation, so the truth is known: rank correlation {found:.2f}.")
    else:
        text = f"The truth of this simulation was sampled, with an error of {error:.2f} of its spread"
        yield Question(question, Answer.OPEN, f"{text}; rank correlation with it {found:.2f}.")


def _finished(report: Report, settings: PageSettings) -> Iterator[Question]:  # noqa: ARG001
    summary = report.chosen.completion or {}
    is_converged = summary.get("is_converged")
    if is_converged is not None:
        answer = Answer.YES if is_converged else Answer.PARTLY
        yield Question(
            "Is the calculation finished?", answer, f"The solver says: {summary.get('status', 'converged')}."
        )


def _complete(report: Report, settings: PageSettings) -> Iterator[Question]:
    question, provenance = "Are the records complete?", report.provenance
    if provenance is None:
        found = "The utilities came without a ledger, so there is no record to check."
        yield Question(question, Answer.OPEN, found)
        return
    n_silent = sum(n == 0 for n in report.n_rounds_heard.values())
    missing = [
        f"{provenance.n_missing_rounds} rounds are missing." if provenance.n_missing_rounds else "",
        f"{provenance.n_rejected_answers} answers were rejected." if provenance.n_rejected_answers else "",
        f"{n_silent} {settings.noun if n_silent == 1 else settings.plural} never answered." if n_silent else "",
    ]
    rounds = (
        f"rounds of {1 + len(provenance.other_heads)} runs"
        if provenance.other_heads
        else f"{provenance.n_rounds} recorded rounds"
    )
    found = f"The {rounds} matched their checksums when they were read."
    answer = Answer.PARTLY if any(missing) else Answer.YES
    yield Question(question, answer, " ".join(text for text in (found, *missing) if text))


def _agreement(report: Report, key: str) -> float | None:
    row = next((row for row in report.agreement if row["method"] == report.chosen.method), {})
    found: float | None = row.get(key)
    return found


@dataclass(frozen=True)
class Wording:
    """What the page says about its values."""

    value: str  # what a value is
    own_value: str  # the same, to the client itself
    measure: str  # what values are measured in
    example: str  # what a value of +0.50 says
    is_estimated: bool  # whether anything was estimated
    estimate: str  # how sure it is
    range: str  # what the likely range covers
    total: str  # what all values add up to
    rounds: str  # what the number of rounds means for the value
    own_rounds: str  # the same, to the client itself
    method: str


SCOPES = {
    Basis.POTENTIAL: tuple(f", added up over {{rounds}}, had {who} taken part in every one" for who in ("it", "you")),
    Basis.EARNED: tuple(f", added up over the rounds in which {who} took part" for who in ("it", "you")),
    Basis.ONE_ROUND: (" in the one round in which everyone took part",) * 2,
    Basis.OTHER: ("", ""),
}
ROUNDS = {
    Basis.POTENTIAL: (
        "The value does not punish a {noun} for rounds in which it was not asked.",
        "you lose nothing for rounds in which you were not asked",
    ),
    Basis.EARNED: (
        "A {noun} earns only in rounds in which it was asked: fewer rounds mean a value nearer to zero.",
        "rounds in which you were not asked add nothing",
    ),
    Basis.ONE_ROUND: ("The value rests on one round.", "the value rests on one round"),
    Basis.OTHER: ("", "the method decides how they count"),
}
TOTALS = {
    Basis.POTENTIAL: "All values together are what the training would have gained with all {nouns} in every round.",
    Basis.EARNED: "All values together are what the training gained.",
}
COVERED = {
    Source.ESTIMATES: "the estimates of what no round has shown",
    Source.SAMPLING: "the sampling of such groups",
    Source.TEST_SET: "the choice of the test samples",
    Source.RUNS: "how much another training with other batches and other participants changes the values",
}


def wording_of(report: Report, settings: PageSettings) -> Wording:
    """The sentences that are true of the chosen valuation."""
    valuation, provenance = report.chosen, report.provenance
    text = method_text(valuation.method)
    n_rounds = n_rounds_of(report)
    rounds = f"all {n_rounds} rounds" if n_rounds and n_rounds > 1 else "all rounds"
    scope, own_scope = (scope.format(rounds=rounds) for scope in SCOPES[text.basis])
    change, _, name = change_text(provenance).replace("the ", "the model’s ").partition(" ")
    where = f"{name} ({detail_text(provenance)}) on {test_set_text(provenance)}"
    higher = "lower" if change == "lowers" else "higher"
    is_estimated = valuation.completion is not None
    basis = "All values are estimates" if is_estimated else "All values are measured; none is estimated"
    if valuation.is_mean_of_runs:
        basis = "All values are means of several recorded runs"
    error = "the line through each bar shows how far off they may be"
    if valuation.uncertainty is None:
        error = "how far off they may be is not known"
    total = TOTALS.get(text.basis, "") if text.adds_up else ""
    if report.is_vertical and total:
        total = "All values together are what new embeddings gained, without what the server’s head learned."
    for_given = ""
    if report.given:
        given = " and ".join(report.given)
        for_given = f", with {given} in every coalition"
        total = f"All values together are what the other {{nouns}} added for {given}." if total else ""
    return Wording(
        value=f"A value says how much a {settings.noun} {change} {where}{scope}{for_given}. "
        f"Above zero it helps; below zero, the other {settings.plural} are on average better off without it.",
        own_value=f"The value says how much your data {change.removesuffix('s')} {where}{own_scope}{for_given}. "
        "Above zero they help; below zero, the others are on average better off without them.",
        measure=measure_text(provenance),
        example=f"{name} is 0.50 {higher} with this {settings.noun} than without it",
        is_estimated=is_estimated,
        estimate=f"{basis}; {error}.",
        range=_range(valuation, settings.plural),
        total=settings.fill(total or "The values need not add up to what the training gained."),
        rounds=settings.fill(ROUNDS[text.basis][0]),
        own_rounds=ROUNDS[text.basis][1],
        method=f"{text.label} — {text.description}".replace("client", settings.noun),
    )


def _range(valuation: Valuation, nouns: str) -> str:
    uncertainty = valuation.uncertainty
    if uncertainty is None:
        return "There is none: how far off the values may be is not known."
    on_new_data = uncertainty.interval == "new-data"
    data = "data like the test data" if on_new_data else "exactly these test data"
    left_out = ["other test data"] * (not on_new_data) + ["another training"] * (not valuation.is_mean_of_runs)
    beyond = f"It says nothing about {', or '.join(left_out)}." if left_out else ""
    if not valuation.covered:
        return f"There is none: every group of {nouns} that the values rest on was measured. {beyond}"
    parts = [COVERED[source] for source in valuation.covered]
    covers = parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"
    missing = "".join(f" Note: {caveat.reason}." for caveat in uncertainty.caveats if caveat.is_of_all)
    return (
        f"{LEVEL_TEXT} of such ranges should contain the value that would be measured with every group of {nouns} in "
        f"every round, on {data}. The range covers {covers}.{missing} {beyond}".rstrip()
    )
