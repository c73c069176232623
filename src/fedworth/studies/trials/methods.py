"""The one list of what is compared: whoever adds a method here adds it to every study, table and picture.

A method takes what the server saw (and, for the truth, what it could not see) and gives one value a client. It is
named by a key that stands in the rows on disk; changing what a key means needs a new key.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from fedworth.completion.factors import FactorSettings
from fedworth.names import CompletionKind, MethodName

COUNTS = FactorSettings(penalty_kind="counts")
UNIFORM = FactorSettings(penalty_kind="uniform")


@dataclass(frozen=True, slots=True)
class Method:
    """One way to value clients: `value`'s name for it, the completion it rests on if it rests on one (factors of these
    settings, or by models), and how it looks in pictures (colours of Okabe and Ito, safe for the
    colour-blind)."""

    label: str
    of: MethodName
    colour: str
    dash: str
    marker: str
    factors: FactorSettings | None = None
    completed: CompletionKind | None = None

    @property
    def reads_models(self) -> bool:
        """Whether its completion looks at the clients' models, not at the seen utilities alone."""
        return self.completed == "models"

    @property
    def needs_truth(self) -> bool:
        """Whether it needs what no server has."""
        return self.of == "truth"


def _ranked(kind: FactorSettings, rank: int, colour: str, marker: str) -> Method:
    """The paper's completion with another rank than the usual one."""
    settings = FactorSettings(penalty_kind=kind.penalty_kind, rank=rank)
    return Method(f"ComFedSV, {kind.penalty_kind}, rank {rank}", "comfedsv", colour, ":", marker, settings, "factors")


METHODS: Mapping[str, Method] = {
    "truth": Method("truth", "truth", "#000000", "-", "o"),
    "fedsv": Method("FedSV", "fedsv", "#D55E00", "-", "s"),
    "fedsv-later": Method("FedSV, later rounds", "fedsv-later", "#E69F00", "--", "v"),
    "comfedsv-counts": Method("ComFedSV", "comfedsv", "#0072B2", "-", "D", COUNTS, "factors"),
    "comfedsv-counts-3": _ranked(COUNTS, 3, "#0072B2", "<"),
    "comfedsv-counts-1": _ranked(COUNTS, 1, "#0072B2", ">"),
    "comfedsv-uniform": Method("ComFedSV, uniform", "comfedsv", "#56B4E9", "--", "^", UNIFORM, "factors"),
    "comfedsv-uniform-3": _ranked(UNIFORM, 3, "#56B4E9", "<"),
    "comfedsv-uniform-1": _ranked(UNIFORM, 1, "#56B4E9", ">"),
    "heard-round": Method("heard round", "heard-round", "#009E73", ":", "P"),
    "comfedsv-models": Method("by models", "comfedsv", "#CC79A7", "-", "*", completed="models"),
    "leave-one-out": Method("leave-one-out", "leave-one-out", "#999999", "-.", "X"),
}

PAPERS = "comfedsv-counts"
"""Which of them stands for the paper's ComFedSV in verdicts: the penalty of the solver that the paper used, rank 5."""

RIVAL = "fedsv"
"""What the paper holds it against."""

FOUR = (RIVAL, PAPERS, "heard-round", "comfedsv-models")
"""What the page shows of every study; the appendix has all."""
