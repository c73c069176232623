"""Whether to trust the values: a verdict with what it is good for, and the checks behind it."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from fedworth.report.page.findings import heard_counts
from fedworth.report.page.settings import PageSettings
from fedworth.report.page.table import share_text
from fedworth.report.report import Report, agreement, truths_error
from fedworth.valuation.uncertainty import Trust
from fedworth.valuation.worth import Covered

ENOUGH, PARTLY = 0.5, 0.1
"""Of the cells that values rest on, seen."""
FAIR, UNFAIR = 0.1, 0.5
"""Relative difference of the values of equal data."""
NEAR = 0.9
"""Rank correlation with the truth that is called near."""


@dataclass(frozen=True)
class TrustVerdict:
    """How far to trust the values."""

    tone: str  # good, care or bad
    mark: str
    head: str
    use: str  # what the values are good for, and what not
    why: str


@dataclass(frozen=True)
class Question:
    """One question about the numbers, answered."""

    question: str
    tone: str
    text: str  # ✓ Yes, ◐ Partly, ✕ No, – Not checked
    found: str


YES, PART, NO, OPEN = ("good", "✓ Yes"), ("care", "◐ Partly"), ("bad", "✕ No"), ("info", "– Not checked")

USES = {
    Trust.TOLD_APART: (
        ("good", "✓", "Good to use"),
        "Good for comparing {nouns}. Still pay by range, not by the last digit.",
    ),
    Trust.ROUGH_ORDER: (
        ("care", "◐", "Use with care"),
        "Good enough to tell strong from weak. Not good enough to rank neighbours, or to split money to the percent.",
    ),
    Trust.NOT_TOLD_APART: (
        ("bad", "✕", "Do not use"),
        "These values cannot tell the {nouns} apart. Treat all {nouns} as worth the same, or train more rounds with "
        "everyone.",
    ),
}


def verdict_of(report: Report, settings: PageSettings) -> TrustVerdict:
    """The verdict on the chosen values."""
    chosen = report.chosen
    if chosen.uncertainty is not None:
        (tone, mark, head), use = USES[chosen.uncertainty.trust]
        return TrustVerdict(tone, mark, head, _fill(use, settings), _fill(chosen.uncertainty.sentence, settings))
    if chosen.covered is Covered.MEASURED:
        use = (
            "Measured, not estimated: good for what was earned in these rounds. Who was asked how often was not theirs "
            "to choose."
        )
        if chosen.method == "truth":
            use = "Measured with every model of every round, as only a simulation can."
            return TrustVerdict("good", "✓", "Good to use", use, "Nothing was estimated.")
        return TrustVerdict("care", "◐", "Use with care", use, "Every group that these values rest on was measured.")
    use = "How far off the values may be is not known. Look at large differences only, and split no money by them."
    return TrustVerdict("care", "◐", "Use with care", use, f"The ranges cover {chosen.covered}.")


def answers_of(report: Report, settings: PageSettings) -> list[Question]:
    """The checks behind the verdict."""
    return [
        *_seen(report, settings),
        *_estimates(report),
        *_apart(report, settings),
        *_equal(report, settings),
        *_truth(report),
        *_finished(report),
        *_whole(report),
    ]


def _seen(report: Report, settings: PageSettings) -> Iterator[Question]:
    question = f"Were enough groups of {settings.nouns} seen?"
    chosen, coverage = report.chosen, report.coverage
    if chosen.covered in (Covered.MEASURED, Covered.DRAWS) and chosen.completion is None:
        yield Question(
            question, *YES, "Every group that these values rest on was measured, or drawn from those that were."
        )
    elif coverage is None:
        yield Question(question, *OPEN, "This report does not say how much was measured.")
    else:
        share, unseen = float(coverage["share_seen"]), int(coverage["n_columns_unseen"])
        answer = YES if share >= ENOUGH else PART if share >= PARTLY and not unseen else NO
        never = f" {unseen:,} of {int(coverage['n_columns']):,} groups were never seen in any round." if unseen else ""
        yield Question(
            question, *answer, f"{share_text(share)} of the results that the values rest on were measured.{never}"
        )


def _estimates(report: Report) -> Iterator[Question]:
    chosen = report.chosen
    if chosen.completion is None:
        return
    question, held = "Are the estimates checked?", chosen.completion.get("n_held_out")
    if held:
        found = (
            f"{held:,} answers that were heard were hidden and estimated: the ranges come from how far off that was."
        )
        yield Question(question, *YES, found)
    elif report.coverage is not None and float(report.coverage["share_seen"]) >= 1:
        yield Question(question, *YES, "Nothing had to be estimated: all that the values rest on was measured.")
    elif chosen.covered is Covered.ESTIMATES:
        yield Question(
            question, *PART, "The ranges come from how far other estimates lie that explain what was seen as well."
        )
    else:
        yield Question(
            question, *OPEN, "Nothing was hidden and estimated, so how accurate the estimates are is not known."
        )


def _apart(report: Report, settings: PageSettings) -> Iterator[Question]:
    known = report.chosen.uncertainty
    question = f"Can the {settings.nouns} be told apart?"
    if known is None:
        return
    answer = {Trust.TOLD_APART: YES, Trust.ROUGH_ORDER: PART, Trust.NOT_TOLD_APART: NO}[known.trust]
    found = f"The values may be off by {known.ratio:.2f} of what they differ (below 0.3 is good, above 1 is useless)."
    if math.isinf(known.ratio):
        found = "Their values are the same."
    yield Question(question, *answer, found)


def _equal(report: Report, settings: PageSettings) -> Iterator[Question]:
    question = "Is equal data valued equally?"
    row = next((row for row in agreement(report) if row["method"] == report.chosen.method), {})
    apart = row.get("largest_difference_of_copies")
    if apart is None:
        yield Question(question, *OPEN, f"No two {settings.nouns} are known to hold the same data.")
        return
    answer = YES if apart <= FAIR else PART if apart <= UNFAIR else NO
    pairs = "; ".join(f"{of} and {copy}" for copy, of in report.copies)
    yield Question(
        question, *answer, f"{pairs} hold the same data; their values differ by {share_text(apart)} of the larger."
    )


def _truth(report: Report) -> Iterator[Question]:
    row = next((row for row in agreement(report) if row["method"] == report.chosen.method), {})
    found = row.get("rank_correlation")
    if found is None or report.chosen.method == "truth":
        return
    question, drawn = "Is it near the truth?", truths_error(report)
    answer = YES if found >= NEAR else PART if found >= ENOUGH else NO
    if drawn is None:
        yield Question(question, *answer, f"This is a simulation, so the truth is known: rank correlation {found:.2f}.")
    else:
        told = f"The truth of this simulation is itself drawn, and off by {drawn:.2f} of its spread"
        yield Question(question, *OPEN, f"{told}; rank correlation with it {found:.2f}.")


def _finished(report: Report) -> Iterator[Question]:
    status = (report.chosen.completion or {}).get("status")
    if status is None:
        return
    yield Question("Is the calculation finished?", *(PART if "stopped" in status else YES), f"It says: {status}.")


def _whole(report: Report) -> Iterator[Question]:
    question = "Are the records whole?"
    silent = [name for name, n in heard_counts(report).items() if n == 0]
    if report.trail is None:
        yield Question(question, *OPEN, "The numbers were brought without a ledger, so there is no record to check.")
        return
    said = [note for note in report.warnings() if "missing" in note or "refused" in note]
    found = f"The {report.trail.n_rounds} recorded rounds matched their checksums when they were read."
    if said:
        yield Question(
            question, *PART, f"{found} {len(said)} remarks on missing or refused answers are under “How was it made?”."
        )
    elif silent:
        yield Question(question, *PART, f"{found} {len(silent)} never answered.")
    else:
        yield Question(question, *YES, found)


def _fill(text: str, settings: PageSettings) -> str:
    return (
        text.replace("{nouns}", settings.nouns)
        .replace("The clients", f"The {settings.nouns}")
        .replace("worst clients", f"worst {settings.nouns}")
    )
