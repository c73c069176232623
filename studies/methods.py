"""The methods that the studies compare, with their names and looks (colours of Okabe and Ito)."""

from collections.abc import Mapping
from dataclasses import dataclass

from fedworth import FactorSettings


@dataclass(frozen=True)
class Method:
    """A method: fedworth's name for it, its look in figures, and the settings of the factors if it has any."""

    label: str
    of: str
    colour: str
    dash: str
    marker: str
    factors: FactorSettings | None = None

    @property
    def reads_models(self) -> bool:
        """Whether its completion predicts models."""
        return self.of == "comfedsv-models"


def _factors(label: str, penalty: str, rank: int, colour: str, dash: str, marker: str) -> Method:
    settings = FactorSettings(penalty_kind=penalty, rank=rank)  # type: ignore[arg-type]
    return Method(label, "comfedsv", colour, dash, marker, settings)


METHODS: Mapping[str, Method] = {
    "truth": Method("truth", "truth", "#000000", "-", "o"),
    "fedsv": Method("FedSV", "fedsv", "#D55E00", "-", "s"),
    "fedsv-later": Method("FedSV, later rounds", "fedsv-later", "#E69F00", "--", "v"),
    "comfedsv": _factors("ComFedSV", "counts", 5, "#0072B2", "-", "D"),
    "comfedsv-rank-3": _factors("ComFedSV, rank 3", "counts", 3, "#0072B2", ":", "<"),
    "comfedsv-rank-1": _factors("ComFedSV, rank 1", "counts", 1, "#0072B2", ":", ">"),
    "comfedsv-uniform": _factors("ComFedSV, uniform", "uniform", 5, "#56B4E9", "--", "^"),
    "comfedsv-uniform-rank-3": _factors("ComFedSV, uniform, rank 3", "uniform", 3, "#56B4E9", ":", "<"),
    "comfedsv-uniform-rank-1": _factors("ComFedSV, uniform, rank 1", "uniform", 1, "#56B4E9", ":", ">"),
    "all-clients-round": Method("all-clients round", "all-clients-round", "#009E73", ":", "P"),
    "comfedsv-models": Method("ComFedSV by models", "comfedsv-models", "#CC79A7", "-", "*"),
    "leave-one-out": Method("leave-one-out", "leave-one-out", "#999999", "-.", "X"),
}
PAPERS = "comfedsv"
"""The paper's ComFedSV: rank 5, with the penalty by counts of the solver that the paper used."""

RIVAL = "fedsv"
FOUR = (RIVAL, PAPERS, "all-clients-round", "comfedsv-models")
"""What the page shows of every study. The appendix has all methods."""


def label(key: str) -> str:
    """A method's name for readers."""
    return METHODS[key].label
