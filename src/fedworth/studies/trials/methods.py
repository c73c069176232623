"""The one list of what is compared: whoever adds a method here adds it to every study, table and picture.

A method takes what the server saw (and, for the truth, what it could not see) and gives one value a client. It is
named by a key that stands in the rows on disk; changing what a key means needs a new key.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from fedworth.arrays import stream
from fedworth.completion.complete import FactorSettings, complete
from fedworth.completion.completion import Completion
from fedworth.completion.crossvalidation import choose_factors
from fedworth.names import MethodName
from fedworth.utility.matrix import UtilityMatrix

COUNTS = FactorSettings(penalty_kind="counts")
UNIFORM = FactorSettings(penalty_kind="uniform")


@dataclass(frozen=True, slots=True)
class Method:
    """One way to value clients: `value`'s name for it, the completion it rests on if it rests on one, and how it looks
    in pictures (colours of Okabe and Ito, safe for the colour-blind)."""

    label: str
    of: MethodName
    colour: str
    dash: str
    marker: str
    completed: Callable[[UtilityMatrix], Completion] | None = None

    @property
    def needs_truth(self) -> bool:
        """Whether it needs what no server has."""
        return self.of == "truth"


def _chosen(seen: UtilityMatrix) -> Completion:
    """The completion whose rank and penalty predict hidden cells best."""
    return complete(seen, choose_factors(seen, rng=stream(0, "cross-validation")).settings)


METHODS: Mapping[str, Method] = {
    "truth": Method("truth", "truth", "#000000", "-", "o"),
    "fedsv": Method("FedSV", "fedsv", "#D55E00", "-", "s"),
    "fedsv-later": Method("FedSV, later rounds", "fedsv-later", "#E69F00", "--", "v"),
    "comfedsv-counts": Method("ComFedSV, counts", "comfedsv", "#0072B2", "-", "D", lambda seen: complete(seen, COUNTS)),
    "comfedsv-uniform": Method(
        "ComFedSV, uniform", "comfedsv", "#56B4E9", "--", "^", lambda seen: complete(seen, UNIFORM)
    ),
    "comfedsv-chosen": Method("ComFedSV, chosen", "comfedsv", "#999999", "-.", "*", _chosen),
    "heard-round": Method("heard round", "heard-round", "#009E73", ":", "P"),
    "leave-one-out": Method("leave-one-out", "leave-one-out", "#CC79A7", "-.", "X"),
}

PAPERS = "comfedsv-counts"
"""Which of them stands for the paper's ComFedSV in verdicts: the penalty of the solver that the paper used."""

RIVAL = "fedsv"
"""What the paper holds it against."""
