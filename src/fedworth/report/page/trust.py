"""Whether to trust the values: a verdict, the questions behind it, and sentences that promise no more than is known.

Verdicts are made from enums, numbers and flags of the report; no text is searched.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

import numpy as np

from fedworth.provenance import STILL_TRAINING
from fedworth.report.page.clients import n_rounds_of
from fedworth.report.report import Report
from fedworth.report.scores import change_text, measure_text, test_set_text
from fedworth.report.settings import PageSettings
from fedworth.report.tables import SOURCE_WORDS
from fedworth.valuation.methods import Basis, method_text
from fedworth.valuation.notebook import share_text
from fedworth.valuation.uncertainty import LEVEL, Source, Trust
from fedworth.valuation.valuation import Valuation
from fedworth.valuation.vertical import REFITTED, VERFEDSV

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
ONE_VALUE = "One {noun} has a value, so there is nobody to compare it with. Judge the value by its range."
CAUTIOUS = "Read why before you compare {nouns} or pay by these values."


def verdict_of(report: Report, settings: PageSettings) -> Verdict:
    chosen = report.chosen
    cautions = "".join(f"Note: {caution}. " for caution in chosen.cautions)
    still_training = f" {STILL_TRAINING.capitalize()}." if report.is_open else ""
    if chosen.uncertainty is not None:
        head, use = USES[chosen.uncertainty.trust]
        if np.isfinite(chosen.values).sum() == 1:
            is_sure = not chosen.uncertainty.caveats and any(line.helps is not None for line in chosen)
            head, use = GOOD if is_sure else CARE, f"{ONE_VALUE} {CAUTIOUS}" if chosen.cautions else ONE_VALUE
        elif chosen.cautions and head is not BAD:
            use = CAUTIOUS
        if (chosen.cautions or report.is_open) and head is GOOD:
            head = CARE
        use += still_training
        why = f"{cautions}{chosen.uncertainty.sentence_about(settings.plural)} {chosen.uncertainty.advice}".strip()
        return Verdict(*head, settings.fill(use), why)
    use = "How far off the values may be is not known. Look at large differences only, and split no money by them."
    return Verdict(*CARE, use + still_training, f"{cautions}There are no likely ranges.")


def questions_of(report: Report, settings: PageSettings) -> list[Question]:
    """The questions behind the verdict, for which something is known."""
    checks = (_seen, _estimates, _finished, _equal, _truth, _complete)
    return [question for check in checks for question in check(report, settings)]


def _seen(report: Report, settings: PageSettings) -> Iterator[Question]:
    question = f"Were enough groups of {settings.plural} seen?"
    chosen, coverage = report.chosen, report.coverage
    if chosen.completion is None and not chosen.is_mean_of_runs:
        found = "Every group that these values rest on was measured, or sampled from measured ones."
        yield Question(question, Answer.YES, found)
    elif coverage is not None:
        share, unseen = float(coverage["share_seen"]), int(coverage["n_columns_unseen"])
        partly = Answer.PARTLY if share >= PARTLY and not unseen else Answer.NO
        never = f" {unseen:,} of {int(coverage['n_columns']):,} groups were never seen in any round." if unseen else ""
        found = f"{share_text(share)} of the results that the values rest on were measured.{never}"
        yield Question(question, Answer.YES if share >= ENOUGH else partly, found)


def _estimates(report: Report, settings: PageSettings) -> Iterator[Question]:  # noqa: ARG001
    summary = report.chosen.completion
    if summary is None:
        return
    answer, found = Answer.NO, "The error of the estimates is not known."
    if n_held_out := summary.get("n_held_out"):
        answer, found = Answer.YES, f"{n_held_out:,} known answers were hidden and estimated, to measure the error."
    elif report.coverage is not None and float(report.coverage["share_seen"]) >= 1:
        answer, found = Answer.YES, "Nothing had to be estimated: everything that the values rest on was measured."
    elif (error := summary.get("held_out_error")) is not None:
        found = (
            f"Known embeddings were hidden and estimated: they are {share_text(error)} off, relative to their changes."
        )
        answer, found = Answer.PARTLY, f"{found} What this does to values is not known."
    elif Source.ESTIMATES in report.chosen.covered:
        answer = Answer.PARTLY
        found = "The ranges show how much other estimates differ that explain the measurements as well."
    yield Question("Are the estimates checked?", answer, found)


def _finished(report: Report, settings: PageSettings) -> Iterator[Question]:  # noqa: ARG001
    summary = report.chosen.completion or {}
    if "is_converged" in summary:
        answer = Answer.YES if summary["is_converged"] else Answer.PARTLY
        yield Question("Is the calculation finished?", answer, f"The solver says: {summary['status']}.")


def _equal(report: Report, settings: PageSettings) -> Iterator[Question]:  # noqa: ARG001
    apart = _agreement(report, "largest_difference_of_copies")
    if apart is not None:
        answer = Answer.YES if apart <= FAIR else Answer.PARTLY if apart <= UNFAIR else Answer.NO
        pairs = "; ".join(f"{original} and {copy}" for copy, original in report.copies)
        found = f"{pairs} hold the same data; their values differ by {share_text(apart)} of the larger."
        yield Question("Is equal data valued equally?", answer, found)


def _truth(report: Report, settings: PageSettings) -> Iterator[Question]:  # noqa: ARG001
    found, error = _agreement(report, "rank_correlation"), report.error_of_truth
    if found is not None and report.chosen.method != "truth":
        answer = Answer.YES if found >= NEAR else Answer.PARTLY if found >= ENOUGH else Answer.NO
        known = "known" if error is None else f"known, with a sampling error of {error:.2f} of its spread"
        text = f"This is a simulation, so the truth is {known}: rank correlation {found:.2f}."
        yield Question("Is it near the truth?", answer, text)


def _complete(report: Report, settings: PageSettings) -> Iterator[Question]:
    provenance = report.provenance
    if provenance is None:
        return
    n_silent = sum(n == 0 for n in report.n_rounds_heard.values())
    missing = {
        f"{provenance.n_missing_rounds} rounds are missing.": provenance.n_missing_rounds,
        f"{provenance.n_rejected_answers} answers were rejected.": provenance.n_rejected_answers,
        f"{n_silent} {settings.noun if n_silent == 1 else settings.plural} never answered.": n_silent,
    }
    texts = [text for text, n in missing.items() if n]
    texts += ["The federation is still training."] if provenance.is_open else []
    runs = f"rounds of {1 + len(provenance.other_heads)} runs"
    rounds = runs if provenance.other_heads else f"{provenance.n_rounds} recorded rounds"
    found = " ".join([f"The {rounds} matched their checksums when they were read.", *texts])
    yield Question("Are the records complete?", Answer.PARTLY if texts else Answer.YES, found)


def _agreement(report: Report, key: str) -> float | None:
    row = next((row for row in report.agreement if row["method"] == report.chosen.method), {})
    found: float | None = row.get(key)
    return found


@dataclass(frozen=True)
class Wording:
    """What the page says about its values."""

    value: str  # what a value is
    measure: str  # what values are measured in
    change: str  # what a value above zero says of the model
    is_estimated: bool  # whether anything was estimated
    estimate: str  # how sure it is
    range: str  # what the likely range covers
    total: str  # what all values add up to
    rounds: str  # what the number of rounds means for the value
    method: str


SCOPES = {
    Basis.POTENTIAL: ", added up over {rounds}, had it taken part in every one",
    Basis.EARNED: ", added up over the rounds in which it took part",
    Basis.ONE_ROUND: " in the one round in which everyone took part",
}
ROUNDS = {
    Basis.POTENTIAL: "The value does not punish a {noun} for rounds in which it was not asked.",
    Basis.EARNED: "A {noun} earns only in rounds in which it was asked: fewer rounds mean a value nearer to zero.",
    Basis.ONE_ROUND: "The value rests on one round.",
}
TOTALS = {
    Basis.POTENTIAL: "All values together are what the training would have gained with all {nouns} in every round.",
    Basis.EARNED: "All values together are what the training gained.",
}


def wording_of(report: Report, settings: PageSettings) -> Wording:
    """The sentences that are true of the chosen valuation."""
    valuation, provenance = report.chosen, report.provenance
    text, change, measure = method_text(valuation.method), change_text(provenance), measure_text(provenance)
    n_rounds = n_rounds_of(report)
    rounds = f"all {n_rounds} rounds" if n_rounds and n_rounds > 1 else "all rounds"
    scope = SCOPES.get(text.basis, "").format(rounds=rounds)
    is_estimated = valuation.completion is not None
    basis = "All values are estimates" if is_estimated else "All values are measured; none is estimated"
    if valuation.is_mean_of_runs:
        basis = "All values are means of several recorded runs"
    error = "the line through each bar shows" if valuation.uncertainty is not None else "it is not known"
    total = TOTALS.get(text.basis, "") if text.adds_up else ""
    if valuation.method == VERFEDSV:
        total = "All values together are what new embeddings gained, without what the server’s head learned."
    if valuation.method == REFITTED:
        scope = f", by what its embeddings tell about the labels; what several {settings.plural} tell, they share"
        total = "All values together are how much better a head does that is fitted to what all {nouns} tell."
    sign = f"below zero, the other {settings.plural} are on average better off without it"
    if report.is_vertical:
        sign = f"a value below zero is no sign that what the {settings.noun} knows does harm"
    for_given = ""
    if report.given:
        given = " and ".join(report.given)
        for_given = (
            f", on top of what {settings.noun if len(report.given) == 1 else settings.plural} {given} can do alone"
        )
        total = f"All values together are what the other {{nouns}} added for {given}." if total else ""
    return Wording(
        value=f"A value says how much a {settings.noun} {change} on {test_set_text(provenance)}{scope}{for_given}. "
        f"It is measured in {measure}. Above zero the {settings.noun} helps; {sign}.",
        measure=measure,
        change=change,
        is_estimated=is_estimated,
        estimate=f"{basis}; {error} how far off they may be.",
        range=_range(valuation, settings.plural),
        total=settings.fill(total or "The values need not add up to what the training gained."),
        rounds=settings.fill(ROUNDS.get(text.basis, "")),
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
    parts = [SOURCE_WORDS[source] for source in valuation.covered]
    covers = parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"
    missing = "".join(f" Note: {caveat.reason}." for caveat in uncertainty.caveats if caveat.is_of_all)
    return (
        f"{LEVEL_TEXT} of such ranges should contain the value that would be measured with every group of {nouns} in "
        f"every round, on {data}. The range covers {covers}.{missing} {beyond}".rstrip()
    )
