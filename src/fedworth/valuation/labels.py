"""What readers are told about each valuation method: one table, used by tables, page, plots and the command line."""

from dataclasses import dataclass
from enum import Enum, auto


class Basis(Enum):
    """What a value is about."""

    POTENTIAL = auto()  # as if the client had taken part in every round
    EARNED = auto()  # the rounds in which the client took part
    ONE_ROUND = auto()  # one round only
    OTHER = auto()


@dataclass(frozen=True)
class MethodText:
    """The texts of one method."""

    label: str
    description: str
    basis: Basis = Basis.OTHER
    adds_up: bool = False  # whether the values add up to the total gain


METHOD_TEXTS = {
    "comfedsv-models": MethodText(
        "ComFedSV by models",
        "potential: what the client would have added, had it always taken part; absent clients' models are predicted",
        Basis.POTENTIAL,
        adds_up=True,
    ),
    "comfedsv": MethodText(
        "ComFedSV",
        "potential, as the paper estimates it: from the utility matrix completed by factors",
        Basis.POTENTIAL,
        adds_up=True,
    ),
    "fedsv": MethodText(
        "FedSV", "earned: what the client added in the rounds it took part in", Basis.EARNED, adds_up=True
    ),
    "fedsv-later": MethodText(
        "FedSV, later rounds", "earned, without the rounds in which all clients took part", Basis.EARNED
    ),
    "truth": MethodText(
        "Truth",
        "truth: what the client would have added, measured with every client's model of every round",
        Basis.POTENTIAL,
        adds_up=True,
    ),
    "all-clients-round": MethodText(
        "All-clients round", "baseline: the one round in which all clients took part", Basis.ONE_ROUND
    ),
    "leave-one-out": MethodText(
        "Leave-one-out", "baseline: what the participants lose without the client, summed over its rounds", Basis.EARNED
    ),
    "banzhaf": MethodText(
        "Banzhaf",
        "potential, all coalitions of the others weighted equally; the values do not add up to the total gain",
    ),
    "beta-shapley": MethodText(
        "Beta-Shapley",
        "potential, small coalitions weighted most (Beta(16, 1)); the values do not add up to the total gain",
    ),
    "least-core": MethodText("Least core", "potential: minimises the largest complaint of any coalition"),
    "tmc": MethodText("TMC", "earned, by truncated permutations (TMC)"),
    "gtg": MethodText(
        "GTG", "earned, by guided truncated permutations; rounds with little change are left out (GTG-Shapley)"
    ),
    "mr": MethodText("MR", "earned, later rounds weighted less (MR)"),
    "or": MethodText("OR", "earned over the whole training, from models rebuilt from the updates (OR)"),
    "influence": MethodText("Influence", "earned, to first order: how well the client's updates reduce the test loss"),
    "cosine": MethodText(
        "Cosine", "reputation: how well the client's updates agree with the average (CGSV); no test set"
    ),
    "retraining": MethodText("Retraining", "truth of another kind: the federation trained again for every coalition"),
}


def text_of(method: str) -> MethodText:
    """The texts of a method; of an unknown method its name."""
    return METHOD_TEXTS.get(method) or MethodText(method, method)


def label(method: str) -> str:
    """The name of a method in tables and figures."""
    return text_of(method).label


def description(method: str) -> str:
    """What a method measures, in one phrase."""
    return text_of(method).description
