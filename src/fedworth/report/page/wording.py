"""Sentences that depend on the method and what its intervals cover: a page promises no more than its numbers hold."""

from dataclasses import dataclass

from fedworth.report.page.settings import PageSettings
from fedworth.valuation.uncertainty import LEVEL
from fedworth.valuation.valuation import BASES, Valuation
from fedworth.valuation.worth import Covered

LEVEL_TEXT = f"{LEVEL:.0%}".replace("%", "\N{NO-BREAK SPACE}%")
HYPOTHETICAL = ("comfedsv", "comfedsv-factors", "truth")
"""Methods that value a client as if it had taken part in every round."""

SCOPES = {
    "fedsv": "in the rounds it took part in",
    "fedsv-later": "in the rounds it took part in, without those that heard everyone",
    "heard-round": "in the one round that heard everyone",
    "leave-one-out": "beside the others of its rounds",
}
LABELS = {
    "comfedsv": "ComFedSV",
    "comfedsv-factors": "ComFedSV by factors",
    "fedsv": "FedSV",
    "fedsv-later": "FedSV, later rounds",
    "truth": "Truth",
    "heard-round": "Heard round",
    "leave-one-out": "Leave-one-out",
}


@dataclass(frozen=True)
class Wording:
    """What the page says about its values."""

    value: str  # what a value is
    estimate: str  # how sure it is
    range_: str  # what the likely range covers
    no_range: str  # what stands in the column where there is no range
    total: str  # what all values add up to
    rounds: str  # what the number of rounds means for the value
    own_rounds: str  # the same, for a statement
    method: str


def wording_of(valuation: Valuation, settings: PageSettings) -> Wording:
    """The sentences that are true of this valuation."""
    noun, method = settings.noun, valuation.method
    as_if = method in HYPOTHETICAL
    scope = "had it taken part in every round" if as_if else SCOPES.get(method, BASES.get(method, method))
    comma = "," if as_if else ""
    return Wording(
        value=f"A value says how much a {noun} improves the model on the coordinator’s test data{comma} {scope}. "
        "Above zero it helps, below zero it harms.",
        estimate=_estimate(valuation),
        range_=_range(valuation),
        no_range="measured" if valuation.covered is Covered.MEASURED else "not known",
        total=_total(method, settings),
        rounds=_rounds(method, noun, as_if),
        own_rounds=_own_rounds(method, as_if),
        method=f"{LABELS.get(method, method)} — {BASES.get(method, method)}".replace("client", noun),
    )


def _estimate(valuation: Valuation) -> str:
    match valuation.covered:
        case Covered.MEASURED:
            return "All values are measured; none is estimated."
        case Covered.UNKNOWN:
            return "All values are estimates; how far off they may be is not known for this method."
    return "All values are estimates; the line through each bar shows how far off they may be."


def _range(valuation: Valuation) -> str:
    drawn = valuation.standard_errors is not None
    beyond = "It says nothing about other test data, or another training."
    match valuation.covered:
        case Covered.ESTIMATES:
            chance = ", and the chance in which groups were measured" if drawn else ""
            return (
                f"{LEVEL_TEXT} of such ranges should hold the value that measuring every group in every round would "
                f"give. The range covers what had to be estimated, because no round has shown it{chance}. {beyond}"
            )
        case Covered.DRAWS:
            wider = " It leaves out the error of the estimates: the real range is wider."
            rest = "" if valuation.completion is None else wider
            holds = f"{LEVEL_TEXT} of such ranges should hold the value that measuring every group would give."
            return f"{holds}{rest} {beyond}"
        case Covered.MEASURED:
            return f"There is none: every group that the values rest on was measured. {beyond}"
    return "There is none: how far off the estimates may be is not known for this method."


def _total(method: str, settings: PageSettings) -> str:
    if method in HYPOTHETICAL:
        return f"All values together are what the training would have gained with all {settings.nouns} in every round."
    if method == "fedsv":
        return "All values together are what the training gained."
    return "The values need not add up to what the training gained."


def _rounds(method: str, noun: str, as_if: bool) -> str:
    if as_if:
        return f"The value does not punish a {noun} for rounds in which it was not asked."
    if method in ("fedsv", "fedsv-later", "leave-one-out"):
        return f"A {noun} earns only in rounds in which it was asked: fewer rounds mean a value nearer to zero."
    return "The value rests on one round, whatever came after."


def _own_rounds(method: str, as_if: bool) -> str:
    if as_if:
        return "you lose nothing for rounds in which you were not asked"
    if method in ("fedsv", "fedsv-later", "leave-one-out"):
        return "rounds in which you were not asked add nothing"
    return "the value rests on one round, whatever came after"
