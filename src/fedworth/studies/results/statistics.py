"""What is said over seeds: means and chances with intervals, paired tests, and one distribution against another.

Intervals are of 95 %: Student's t for means, Wilson's for chances. A paired test is Wilcoxon's signed-rank test,
one-sided (exact up to 50 pairs without ties); equal pairs say nothing and are left out.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

from fedworth.valuation import ranking

LEVEL = 0.95
FEWEST_FOR_INTERVAL = 3
FEWEST_TO_JUDGE = 5
"""Independent seeds below which no claim is judged."""
DIGITS = 12  # beyond them numbers that are equal on paper differ by rounding
CORRELATIONS, SHARES = (-1.0, 1.0), (0.0, 1.0)


@dataclass(frozen=True, slots=True)
class Interval:
    """A number over seeds with its interval; NaN where too few seeds give none."""

    value: float
    low: float
    high: float
    n: int

    def text(self, form: str = ".2f") -> str:
        """The number and its interval."""
        if self.n == 0:
            return "–"
        if math.isnan(self.low):
            return f"{self.value:{form}}"
        return f"{self.value:{form}} [{self.low:{form}}, {self.high:{form}}]"


def mean_of(numbers: Sequence[float], within: tuple[float, float] = (-math.inf, math.inf)) -> Interval:
    """The mean, with Student's interval cut to where such numbers can lie; two seeds are too few for one."""
    n = len(numbers)
    mean = float(np.mean(numbers)) if n else math.nan
    if n < FEWEST_FOR_INTERVAL:
        return Interval(mean, math.nan, math.nan, n)
    half = float(stats.t.ppf((1 + LEVEL) / 2, n - 1)) * float(np.std(numbers, ddof=1)) / math.sqrt(n)
    return Interval(mean, max(within[0], mean - half), min(within[1], mean + half), n)


def chance_of(claims: Sequence[bool]) -> Interval:
    """How often a claim is true, with Wilson's interval."""
    n = len(claims)
    if n == 0:
        return Interval(math.nan, math.nan, math.nan, 0)
    share, z = sum(claims) / n, float(stats.norm.ppf((1 + LEVEL) / 2))
    centre = (share + z**2 / (2 * n)) / (1 + z**2 / n)
    half = z / (1 + z**2 / n) * math.sqrt(share * (1 - share) / n + z**2 / (4 * n**2))
    return Interval(share, max(0.0, centre - half), min(1.0, centre + half), n)


def chance_of_less(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """The p-value of "ours are less than theirs", pair by pair; 1 where no pair differs."""
    pairs = np.round(np.subtract(ours, theirs), DIGITS)
    apart = pairs[pairs != 0]
    if len(apart) == 0:
        return 1.0
    return float(stats.wilcoxon(apart, alternative="less").pvalue)


def chances_of_crossing(ours: Sequence[float], theirs: Sequence[float]) -> tuple[float, float]:
    """p-values of "P(ours ≤ t) > P(theirs ≤ t) at some t" and of the reverse (Kolmogorov and Smirnov, one-sided)."""
    mine, others = np.round(ours, DIGITS), np.round(theirs, DIGITS)
    left = stats.ks_2samp(mine, others, alternative="greater")
    return float(left.pvalue), float(stats.ks_2samp(mine, others, alternative="less").pvalue)


def jaccard(first: set[int], second: set[int]) -> float:
    """|A ∩ B| / |A ∪ B|; two empty sets are the same."""
    return len(first & second) / len(first | second) if first | second else 1.0


def rounded_correlation(first: Sequence[float], second: Sequence[float]) -> float:
    """Spearman's correlation; 0 where one side is constant, since it then ranks nobody."""
    return round(ranking.rank_correlation(first, second) or 0.0, DIGITS)
