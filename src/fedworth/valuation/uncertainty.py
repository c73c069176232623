"""The uncertainty of values: intervals, rank intervals, pairwise probabilities and a verdict.

The errors of values have three sources, and their covariances add up:

    Σ = Σ_estimates + Σ_sampling + Σ_test

the estimation of coalitions that no round has shown (the completion), the sampling of coalitions, and the test set,
which is a sample of the data that a value is meant for (`task.cells`). The first two are errors of the value on this
test set; all three of the value on data like the test set. Which of the two is asked for is a setting (`Interval`).

    90 % interval     value ± t sd,  t Student's quantile: 1.645 if the test set's part is small, 1.696 if it is all
    P(i over j)       T((s_i − s_j) / √(e² + q (1 + q/ω²))); ½ if the two values are equal
    rank interval     1 + those above with P > .95,  up to  n − those below with P > .95
    trust             r = rms(sd) / sd(values): below .3 clients are distinguishable, up to 1 roughly, above not at all

The test set's variance is estimated from B blocks. A sum of variances V with the part V_test from the test set then has
(B − 1) (V / V_test)² degrees of freedom (Welch and Satterthwaite). r predicts how far the values are from the truth;
`docs/fidelity.md` has its rank correlation with the real error.

Of the difference d of two values, e² is the variance of errors of estimates, q that of errors of samples (coalitions,
test set, runs). The probability of an order has to allow for selection: where clients hardly differ, the largest
differences are mostly errors. True differences are therefore taken to be N(0, ω²), with ω² the smaller of d² − q and
its mean over all pairs, and given d the true one is N(d ω²/(ω² + q), q ω²/(ω² + q)); with ω² ≤ 0 nothing is known of
its sign. An estimate is already the mean of what is possible given what was seen, so e² adds to the variance and needs
no such allowance.

Training is not in Σ: other batches and other participants would have given other models, and one run does not show how
different. The mean of several runs has a part for it (`report.runs`), in place of the first two.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np
from scipy.special import ndtr, ndtri, stdtr, stdtridf, stdtrit

from fedworth.arrays import Floats
from fedworth.completion.completion import Caveat
from fedworth.errors import ValuationError
from fedworth.names import Interval
from fedworth.valuation.ranking import EQUAL

LEVEL = 0.9
TAIL = (1 + LEVEL) / 2
HALF_WIDTH = float(ndtri(TAIL))
"""Half the width of an interval in standard deviations, if these are known exactly: 1.645."""
LEAST_WIDER = 1e-4
"""Student's quantile exceeds the normal one by less than this from 15,000 degrees of freedom on."""
DISTINGUISHABLE, ROUGH = 0.3, 1.0
PAIRS_APART = 0.5
"""Clients are distinguishable if r is below the first limit, and half of all pairs have rank ranges apart."""
MOST_PAIRS_OF = 100
"""With more clients than this the pairwise probabilities are not kept, only the rank intervals."""


class Source(StrEnum):
    """Where errors of values come from."""

    ESTIMATES = "estimates"
    SAMPLING = "sampling"
    TEST_SET = "test set"
    RUNS = "runs"


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
EXACT = "On exactly this test set the values are measured without error; on other data they would differ."

ORIGINS = {
    Source.ESTIMATES: "coalitions that no round has shown and that were estimated",
    Source.SAMPLING: "the sampling of coalitions",
    Source.TEST_SET: "the test set",
    Source.RUNS: "differences between the runs",
}
REMEDIES = {
    Source.ESTIMATES: "more rounds with everyone would reduce it most",
    Source.SAMPLING: "more evaluations would reduce it most",
    Source.TEST_SET: "more test samples would reduce it most",
    Source.RUNS: "more runs would reduce it most",
}


@dataclass(frozen=True, eq=False)
class Uncertainty:
    """What is known about the errors of one valuation; NaN, or None, for clients without a value."""

    standard_deviations: Floats  # (n_clients,), of the errors
    half_widths: Floats  # (n_clients,), of the 90 % intervals
    rank_intervals: tuple[tuple[int, int] | None, ...]
    ratio: float | None  # r; None if all values are equal
    parts: dict[Source, Floats] = field(default_factory=dict)  # (n_clients,) each: standard deviations by source
    interval: Interval = "new-data"  # what the intervals hold
    n_test_samples: int | None = None
    chances: Floats | None = None  # (n_clients, n_clients): P(row is worth more than column)
    caveats: tuple[Caveat, ...] = ()  # whose intervals may be too narrow, and why

    @property
    def trust(self) -> Trust:
        """The verdict on the order of the values."""
        if self.ratio is None or self.ratio > ROUGH:
            return Trust.INDISTINGUISHABLE
        is_clear = self.ratio < DISTINGUISHABLE and self._part_apart >= PAIRS_APART
        return Trust.DISTINGUISHABLE if is_clear else Trust.ROUGH_ORDER

    @property
    def _part_apart(self) -> float:
        """The part of all pairs whose rank ranges do not overlap: one outlier alone makes r small."""
        ranks = np.array([pair for pair in self.rank_intervals if pair is not None]).reshape(-1, 2)
        n_apart = int((ranks[:, None, 1] < ranks[None, :, 0]).sum())
        return n_apart / max(len(ranks) * (len(ranks) - 1) / 2, 1)

    @property
    def sentence(self) -> str:
        """The verdict in a sentence."""
        return self.sentence_about("clients")

    def sentence_about(self, clients: str) -> str:
        """The verdict in a sentence, with another noun for the clients."""
        ranks = [pair for pair in self.rank_intervals if pair is not None]
        if self.ratio is None:
            return (EQUAL_VALUES if len(ranks) > 1 else ONE_VALUE).format(clients=clients)
        if self.ratio == 0 and not self.caveats:
            return EXACT
        some_apart, text = any(pair != (1, len(ranks)) for pair in ranks), SENTENCES[self.trust]
        if self.trust is Trust.ROUGH_ORDER and not some_apart:
            text = NONE_APART
        if self.trust is Trust.INDISTINGUISHABLE and some_apart:
            text = SOME_APART
        too_narrow = any(caveat.is_of_all for caveat in self.caveats)
        note = ", with intervals that are likely too narrow" if too_narrow else ""
        return f"{text.format(clients=clients)} (errors are {self.ratio:.2f} of the differences{note})."

    @property
    def shares(self) -> dict[Source, float]:
        """The part of each source in the mean variance of all clients; sources that add nothing are left out."""
        means = {source: float(np.nanmean(part**2)) for source, part in self.parts.items() if np.nansum(part) > 0}
        return {source: mean / sum(means.values()) for source, mean in means.items()}

    @property
    def advice(self) -> str:
        """Where most of the uncertainty comes from, and what would reduce it, in a sentence; nothing if there is none.

        With n test samples and a part p of the variance from the test set, n p / (p − ¾) samples halve the width.
        """
        shares = self.shares
        if not shares:
            return ""
        source = max(shares, key=lambda name: shares[name])
        part, n = shares.get(Source.TEST_SET, 0.0), self.n_test_samples
        remedy = REMEDIES[source]
        if source is Source.TEST_SET and n is not None and part > 0.75:
            needed = n * part / (part - 0.75)
            remedy = f"about {_rounded(needed):,} test samples, instead of {n:,}, would make the intervals half as wide"
        elif source is Source.TEST_SET and n is not None:
            least = math.sqrt(1 - part)
            remedy = f"with a test set of any size, the intervals would still be {least:.2f} times as wide as they are"
        return f"{shares[source]:.0%} of the uncertainty comes from {ORIGINS[source]}: {remedy}."

    def chances_below_zero(self, values: Floats) -> Floats:
        """(n_clients,): the probability that a value is below zero, for each client by itself."""
        with np.errstate(divide="ignore", invalid="ignore"):
            ratios, far = self.half_widths / self.standard_deviations, -values / self.standard_deviations
        degrees = stdtridf(TAIL, np.maximum(ratios, HALF_WIDTH + LEAST_WIDER))
        return np.where(ratios > HALF_WIDTH + LEAST_WIDER, stdtr(degrees, far), ndtr(far))

    def intervals(self, values: Floats) -> Floats:
        """(n_clients, 2): the ends of the 90 % intervals around these values."""
        return np.stack([values - self.half_widths, values + self.half_widths], axis=1)


def uncertainty(
    values: Floats,
    estimates: Floats,
    *,
    sampling: Floats | None = None,
    test_set: Floats | None = None,
    runs: Floats | None = None,
    degrees: float = math.inf,
    n_test_samples: int | None = None,
    caveats: tuple[Caveat, ...] = (),
) -> Uncertainty:
    """The uncertainty of values whose errors have these covariances, (n_clients, n_clients), by source.

    Without a covariance of the test set's part the intervals hold on this test set only; `degrees` are the degrees of
    freedom that it is estimated with.
    """
    given = {Source.ESTIMATES: estimates, Source.SAMPLING: sampling, Source.TEST_SET: test_set, Source.RUNS: runs}
    parts = {source: part for source, part in given.items() if part is not None}
    for part in parts.values():
        if part.shape != (len(values), len(values)):
            raise ValuationError(f"a covariance of shape {part.shape} for {len(values)} values")
    known = ~np.isnan(values)
    variances = {source: np.where(known, np.maximum(np.diag(part), 0), np.nan) for source, part in parts.items()}
    whole = np.sum(list(variances.values()), axis=0)
    chances = _chances(values, parts, degrees)
    return Uncertainty(
        standard_deviations=np.sqrt(whole),
        half_widths=np.sqrt(whole) * stdtrit(freedom(whole, variances.get(Source.TEST_SET), degrees), TAIL),
        rank_intervals=_rank_intervals(chances),
        ratio=_ratio(values[known], whole[known]),
        parts={source: np.sqrt(variance) for source, variance in variances.items()},
        interval="test-set" if test_set is None else "new-data",
        n_test_samples=n_test_samples,
        chances=chances.round(6) if len(values) <= MOST_PAIRS_OF else None,
        caveats=caveats,
    )


def freedom(variances: Floats, of_test_set: Floats | None, degrees: float) -> Floats:
    """Degrees of freedom of variances that are partly the test set's; infinite where that part is 0."""
    if of_test_set is None:
        return np.full(variances.shape, np.inf)
    with np.errstate(divide="ignore", invalid="ignore"):
        found = degrees * (variances / of_test_set) ** 2
    return np.asarray(np.where(of_test_set > 0, found, np.inf))


def _chances(values: Floats, parts: Mapping[Source, Floats], degrees: float) -> Floats:
    """(n, n): the probability that the row's client is worth more than the column's; ½ if their values are equal."""
    apart_by = {source: _of_differences(part) for source, part in parts.items()}
    of_estimates, of_test_set = apart_by.pop(Source.ESTIMATES), apart_by.get(Source.TEST_SET)
    drawn = sum(apart_by.values(), 0 * of_estimates)
    apart = values[:, None] - values
    is_equal = np.abs(apart) <= EQUAL * np.nanmax(np.abs(values), initial=0)
    with np.errstate(divide="ignore", invalid="ignore"):
        far = apart / np.sqrt(of_estimates + _with_selection(drawn, apart))
        chances = stdtr(freedom(of_estimates + drawn, of_test_set, degrees), far)
    return np.asarray(np.where(is_equal, 0.5, chances))


def _with_selection(variances: Floats, found: Floats) -> Floats:
    """q (1 + q/ω²): variances of samples' errors for the sign of what was found; see the module. Zeros found are left
    out of the mean."""
    excess = found**2 - variances
    counted = excess[(found != 0) & ~np.isnan(excess)]
    true = np.maximum(np.minimum(excess, counted.mean() if len(counted) else 0.0), 0)  # ω²
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(np.where(variances > 0, variances * (1 + variances / true), variances))


def _of_differences(covariance: Floats) -> Floats:
    """(n, n): the variance of the difference of each two."""
    own = np.diag(covariance)
    return np.maximum(own[:, None] + own - 2 * covariance, 0)


def _rank_intervals(chances: Floats) -> tuple[tuple[int, int] | None, ...]:
    is_unknown = np.isnan(np.diag(chances))
    is_above = chances > TAIL
    n_known = int((~is_unknown).sum())
    ends = zip(is_above.sum(axis=0).tolist(), is_above.sum(axis=1).tolist(), is_unknown.tolist(), strict=True)
    return tuple(None if unknown else (1 + above, n_known - below) for above, below, unknown in ends)


def _ratio(values: Floats, variances: Floats) -> float | None:
    """rms(sd) / sd(values); None if all values are equal."""
    if len(values) == 0 or np.ptp(values) <= EQUAL * np.abs(values).max():
        return None
    return math.sqrt(float(np.mean(variances))) / float(np.std(values))


def _rounded(number: float) -> int:
    """Two digits are enough for a number of test samples."""
    unit: int = 10 ** max(0, math.floor(math.log10(number)) - 1)
    return math.ceil(number / unit) * unit
