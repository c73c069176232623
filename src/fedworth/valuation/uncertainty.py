"""How sure the values are: intervals, ranks with their range, who is worth more than whom, and what to make of it.

In: values and the covariance of their errors (of the completion, from held-out answers; of Monte Carlo, from draws).
Out: `Uncertainty`, which a valuation carries.

    90 % interval     value ± 1.645 sd
    P(i over j)       Φ((s_i − s_j) / sd(s_i − s_j)); ½ where two values are the same
    rank interval     1 + those above with P > .95,  up to  n − those below with P > .95
    trust             r = rms(sd) / sd(values): below .3 clients can be told apart, up to 1 roughly, above not at all

r predicts how far the values are from the truth; `docs/fidelity.md` has its rank correlation with the real error over
simulated federations.
"""

import math
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

import numpy as np
from scipy.special import ndtr, ndtri

from fedworth.arrays import Floats
from fedworth.completion.doubt import Doubt
from fedworth.errors import ValuationError
from fedworth.valuation.ranking import EQUAL

LEVEL = 0.9
HALF_WIDTH = float(ndtri((1 + LEVEL) / 2))
"""Of an interval, in standard deviations: 1.645."""
TOLD_APART, ROUGH = 0.3, 1.0
MOST_LISTED = 100
"""Up to so many clients every pair's chance is kept; beyond, only the rank intervals that follow from them."""


class Trust(StrEnum):
    """How far the order of the values can be trusted."""

    TOLD_APART = "told apart"
    ROUGH_ORDER = "rough order only"
    NOT_TOLD_APART = "cannot be told apart"


SENTENCES = {
    Trust.TOLD_APART: "The clients can be told apart: their values differ by much more than they may be wrong",
    Trust.ROUGH_ORDER: "Trust the rough order only: the best and the worst clients can be told apart, "
    "neighbours in the ranking mostly cannot",
    Trust.NOT_TOLD_APART: "The clients cannot be told apart: their values may be wrong by more than they differ, "
    "so treat them as worth the same",
}
NONE_APART = (
    "Trust the rough order only: the best and the worst clients likely differ, but no two can be told apart for sure"
)
SOME_APART = (
    "The clients cannot be told apart on the whole: their values may be wrong by more than they differ; only clients "
    "whose ranks do not overlap can"
)
SAME = "The clients cannot be told apart: their values are the same."
BY_NARROW = ", by intervals that are likely too narrow"
ALONE = "There is one client with a value, and so no order."


@dataclass(frozen=True)
class Uncertainty:
    """What is known of the errors of one valuation's values; NaN, or None, for clients without a value."""

    deviations: Floats  # (n_clients,): standard deviations of the errors
    rank_intervals: tuple[tuple[int, int] | None, ...]
    ratio: float  # r
    chances: Floats | None = None  # (n_clients, n_clients): P(row is worth more than column)
    doubts: tuple[Doubt, ...] = ()  # whose intervals may be too narrow, and why

    def is_of(self, n_clients: int) -> bool:
        """Whether it speaks of so many clients."""
        is_square = self.chances is None or self.chances.shape == (n_clients, n_clients)
        return self.deviations.shape == (n_clients,) and len(self.rank_intervals) == n_clients and is_square

    @property
    def trust(self) -> Trust:
        """What r says."""
        if self.ratio > ROUGH:
            return Trust.NOT_TOLD_APART
        return Trust.ROUGH_ORDER if self.ratio >= TOLD_APART else Trust.TOLD_APART

    @property
    def sentence(self) -> str:
        """Trust in a sentence for whoever runs the federation."""
        ranks = [pair for pair in self.rank_intervals if pair is not None]
        if math.isinf(self.ratio):
            return SAME if len(ranks) > 1 else ALONE
        some_apart, said = any(pair != (1, len(ranks)) for pair in ranks), SENTENCES[self.trust]
        if self.trust is Trust.ROUGH_ORDER and not some_apart:
            said = NONE_APART
        if self.trust is Trust.NOT_TOLD_APART and some_apart:
            said = SOME_APART
        of_all = any(doubt.client is None for doubt in self.doubts)
        return f"{said} (uncertainty {self.ratio:.2f} of the differences{BY_NARROW if of_all else ''})."

    def intervals(self, values: Floats) -> Floats:
        """(n_clients, 2): the lower and upper ends of the 90 % intervals around these values."""
        half = HALF_WIDTH * self.deviations
        return np.stack([values - half, values + half], axis=1)

    def document(self, values: Floats) -> dict[str, Any]:
        """What is known, as JSON, with everything that follows from it."""
        listed = [None if math.isnan(low) else [low, high] for low, high in self.intervals(values).tolist()]
        return {
            "standard_deviations": [None if math.isnan(x) else x for x in self.deviations.tolist()],
            "intervals_90": listed,
            "rank_intervals": [None if pair is None else list(pair) for pair in self.rank_intervals],
            "ratio": self.ratio if math.isfinite(self.ratio) else None,
            "trust": str(self.trust),
            "sentence": self.sentence,
            "chances": None if self.chances is None else _rows(self.chances),
            "doubts": [asdict(doubt) for doubt in self.doubts],
        }


def uncertainty(values: Floats, covariance: Floats, *, doubts: tuple[Doubt, ...] = ()) -> Uncertainty:
    """What a covariance of the values' errors, (n_clients, n_clients), says of the values; NaN where there is none."""
    if covariance.shape != (len(values), len(values)):
        raise ValuationError(f"a covariance of shape {covariance.shape} for {len(values)} values")
    known = ~np.isnan(values)
    variances = np.where(known, np.maximum(np.diag(covariance), 0), np.nan)
    above = chances_of(values, covariance)
    return Uncertainty(
        deviations=np.sqrt(variances),
        rank_intervals=_rank_intervals(above),
        ratio=_ratio(values[known], variances[known]),
        chances=above if len(values) <= MOST_LISTED else None,
        doubts=doubts,
    )


def uncertainty_from(document: dict[str, Any]) -> Uncertainty:
    """The uncertainty that `document()` gave."""
    pairs = (None if pair is None else (int(pair[0]), int(pair[1])) for pair in document["rank_intervals"])
    chances = document["chances"]
    return Uncertainty(
        deviations=_numbers(document["standard_deviations"]),
        rank_intervals=tuple(pairs),
        ratio=math.inf if document["ratio"] is None else float(document["ratio"]),
        chances=None if chances is None else np.array([_numbers(row) for row in chances]),
        doubts=tuple(Doubt(**doubt) for doubt in document["doubts"]),
    )


def chances_of(values: Floats, covariance: Floats) -> Floats:
    """(n, n): the chance that the row's client is worth more than the column's; ½ where their values are the same."""
    own = np.diag(covariance)
    spread = np.sqrt(np.maximum(own[:, None] + own - 2 * covariance, 0))
    apart = values[:, None] - values
    slack = EQUAL * np.nanmax(np.abs(values), initial=0)
    is_same = np.abs(apart) <= slack
    with np.errstate(divide="ignore", invalid="ignore"):
        chances = np.where(is_same, 0.5, ndtr(apart / spread))
    return np.asarray(chances)


def _rank_intervals(chances: Floats) -> tuple[tuple[int, int] | None, ...]:
    sure = (1 + LEVEL) / 2
    n_known = int((~np.isnan(np.diag(chances))).sum())
    n_above, n_below = (chances > sure).sum(axis=0), (chances > sure).sum(axis=1)
    ends = zip(n_above.tolist(), n_below.tolist(), np.isnan(np.diag(chances)).tolist(), strict=True)
    return tuple(None if is_unknown else (1 + above, n_known - below) for above, below, is_unknown in ends)


def _ratio(values: Floats, variances: Floats) -> float:
    """rms(sd) / sd(values); infinite where all values are the same."""
    if len(values) == 0 or np.ptp(values) <= EQUAL * np.abs(values).max():
        return math.inf
    return math.sqrt(float(np.mean(variances))) / float(np.std(values))


def _rows(table: Floats) -> list[list[float | None]]:
    return [[None if math.isnan(x) else round(x, 6) for x in row] for row in table.tolist()]


def _numbers(listed: list[float | None]) -> Floats:
    return np.array([math.nan if number is None else number for number in listed], dtype=np.float64)
