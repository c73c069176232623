"""How certain values are: intervals, rank intervals, pairwise probabilities and a verdict.

    90 % interval     value ± 1.645 sd
    P(i over j)       Φ((s_i − s_j) / sd(s_i − s_j)); ½ if the two values are equal
    rank interval     1 + those above with P > .95,  up to  n − those below with P > .95
    trust             r = rms(sd) / sd(values): below .3 clients are distinguishable, up to 1 roughly, above not at all

The covariance of the errors comes from the completion (held-out answers) and from the sampling of coalitions. r
predicts how far the values are from the truth; `docs/fidelity.md` has its rank correlation with the real error.
"""

import math
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from scipy.special import ndtr, ndtri

from fedworth.arrays import Floats
from fedworth.completion.completion import Caveat
from fedworth.errors import ValuationError
from fedworth.valuation.ranking import EQUAL

LEVEL = 0.9
HALF_WIDTH = float(ndtri((1 + LEVEL) / 2))
"""Half the width of an interval in standard deviations: 1.645."""
DISTINGUISHABLE, ROUGH = 0.3, 1.0
MOST_PAIRS_OF = 100
"""With more clients than this the pairwise probabilities are not kept, only the rank intervals."""


class Trust(StrEnum):
    """How far the order of the values can be trusted."""

    DISTINGUISHABLE = "distinguishable"
    ROUGH_ORDER = "rough order only"
    INDISTINGUISHABLE = "not distinguishable"


SENTENCES = {
    Trust.DISTINGUISHABLE: "The {clients} can be told apart: their values differ by much more than their errors",
    Trust.ROUGH_ORDER: "Trust the rough order only: the best and the worst {clients} can be told apart, "
    "neighbours in the ranking mostly cannot",
    Trust.INDISTINGUISHABLE: "The {clients} cannot be told apart: the errors of their values are larger than the "
    "differences, so treat them as worth the same",
}
NONE_APART = (
    "Trust the rough order only: the best and the worst {clients} probably differ, but no two can be told apart with "
    "confidence"
)
SOME_APART = (
    "Most {clients} cannot be told apart: the errors of their values are larger than the differences; only {clients} "
    "whose rank ranges do not overlap can"
)
EQUAL_VALUES = "The {clients} cannot be told apart: their values are equal."
ONE_VALUE = "Only one of the {clients} has a value, so there is no order."


@dataclass(frozen=True, eq=False)
class Uncertainty:
    """What is known about the errors of one valuation; NaN, or None, for clients without a value."""

    standard_deviations: Floats  # (n_clients,), of the errors
    rank_intervals: tuple[tuple[int, int] | None, ...]
    ratio: float | None  # r; None if all values are equal
    chances: Floats | None = None  # (n_clients, n_clients): P(row is worth more than column)
    caveats: tuple[Caveat, ...] = ()  # whose intervals may be too narrow, and why

    @property
    def trust(self) -> Trust:
        """The verdict on the order of the values."""
        if self.ratio is None or self.ratio > ROUGH:
            return Trust.INDISTINGUISHABLE
        return Trust.ROUGH_ORDER if self.ratio >= DISTINGUISHABLE else Trust.DISTINGUISHABLE

    @property
    def sentence(self) -> str:
        """The verdict in a sentence."""
        return self.sentence_about("clients")

    def sentence_about(self, clients: str) -> str:
        """The verdict in a sentence, with another noun for the clients."""
        ranks = [pair for pair in self.rank_intervals if pair is not None]
        if self.ratio is None:
            return (EQUAL_VALUES if len(ranks) > 1 else ONE_VALUE).format(clients=clients)
        some_apart, text = any(pair != (1, len(ranks)) for pair in ranks), SENTENCES[self.trust]
        if self.trust is Trust.ROUGH_ORDER and not some_apart:
            text = NONE_APART
        if self.trust is Trust.INDISTINGUISHABLE and some_apart:
            text = SOME_APART
        too_narrow = any(caveat.client is None for caveat in self.caveats)
        note = ", with intervals that are likely too narrow" if too_narrow else ""
        return f"{text.format(clients=clients)} (errors are {self.ratio:.2f} of the differences{note})."

    def intervals(self, values: Floats) -> Floats:
        """(n_clients, 2): the ends of the 90 % intervals around these values."""
        half = HALF_WIDTH * self.standard_deviations
        return np.stack([values - half, values + half], axis=1)


def uncertainty(values: Floats, covariance: Floats, *, caveats: tuple[Caveat, ...] = ()) -> Uncertainty:
    """The uncertainty of values whose errors have this covariance, (n_clients, n_clients)."""
    if covariance.shape != (len(values), len(values)):
        raise ValuationError(f"a covariance of shape {covariance.shape} for {len(values)} values")
    known = ~np.isnan(values)
    variances = np.where(known, np.maximum(np.diag(covariance), 0), np.nan)
    chances = chances_of(values, covariance)
    return Uncertainty(
        standard_deviations=np.sqrt(variances),
        rank_intervals=_rank_intervals(chances),
        ratio=_ratio(values[known], variances[known]),
        chances=chances.round(6) if len(values) <= MOST_PAIRS_OF else None,
        caveats=caveats,
    )


def chances_of(values: Floats, covariance: Floats) -> Floats:
    """(n, n): the probability that the row's client is worth more than the column's; ½ if their values are equal."""
    own = np.diag(covariance)
    spread = np.sqrt(np.maximum(own[:, None] + own - 2 * covariance, 0))
    apart = values[:, None] - values
    is_equal = np.abs(apart) <= EQUAL * np.nanmax(np.abs(values), initial=0)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(np.where(is_equal, 0.5, ndtr(apart / spread)))


def _rank_intervals(chances: Floats) -> tuple[tuple[int, int] | None, ...]:
    is_unknown = np.isnan(np.diag(chances))
    is_above = chances > (1 + LEVEL) / 2
    n_known = int((~is_unknown).sum())
    ends = zip(is_above.sum(axis=0).tolist(), is_above.sum(axis=1).tolist(), is_unknown.tolist(), strict=True)
    return tuple(None if unknown else (1 + above, n_known - below) for above, below, unknown in ends)


def _ratio(values: Floats, variances: Floats) -> float | None:
    """rms(sd) / sd(values); None if all values are equal."""
    if len(values) == 0 or np.ptp(values) <= EQUAL * np.abs(values).max():
        return None
    return math.sqrt(float(np.mean(variances))) / float(np.std(values))
