"""Claims and bars: a number over seeds with its interval, and whether it holds against a bound or another method.

Rules for the paper's claims, at a level of 5 %:

- "more than the other method": Wilcoxon's one-sided paired test says so. If the reverse test says so, or no pair
  differs, the claim does not hold.
- "the distribution lies to the left": Kolmogorov and Smirnov's one-sided test says so and its reverse does not.
- "at most, at least a bound": the whole 95 % interval lies on the right side (Student's for means, Wilson's for
  shares). If it lies on the wrong side, the claim does not hold.

Everything else is open: fewer than five seeds, or a model near chance.
A bar of fedworth's own is compared with the number itself, without a test.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats

from studies.setups import setting_of
from studies.tables import accuracy_of, number

LEVEL, FEWEST_FOR_INTERVAL, FEWEST_TO_JUDGE = 0.05, 3, 5
NEAR_CHANCE = 0.2
"""Accuracy on ten classes below which a model has hardly learned: twice that of guessing."""

DIGITS = 12  # differences beyond this many digits are rounding
EQUAL_DIGITS = 7  # float32 models of copies differ beyond this many digits
SHARES, CORRELATIONS, ANYWHERE = (0.0, 1.0), (-1.0, 1.0), (-math.inf, math.inf)


@dataclass(frozen=True)
class Interval:
    """A number over seeds with its 95 % interval, which is NaN for too few seeds."""

    value: float
    low: float
    high: float
    n: int

    def text(self, form: str = ".2f") -> str:
        """The number and its interval."""
        ends = "" if math.isnan(self.low) else f" [{self.low:{form}}, {self.high:{form}}]"
        return number(self.value, form) + ends


def mean_of(numbers: Any, within: tuple[float, float] = ANYWHERE) -> Interval:
    """The mean with Student's interval, cut to the range that such numbers can have."""
    found = np.asarray(numbers, dtype=float)
    found = found[np.isfinite(found)]
    if len(found) < FEWEST_FOR_INTERVAL:
        return Interval(float(found.mean()) if len(found) else math.nan, math.nan, math.nan, len(found))
    mean, error = float(found.mean()), float(stats.sem(found))
    half = error * float(stats.t.ppf(1 - LEVEL / 2, len(found) - 1))
    return Interval(mean, max(within[0], mean - half), min(within[1], mean + half), len(found))


def share_of(events: Any) -> Interval:
    """The share of true events with Wilson's interval."""
    found = np.asarray(events, dtype=bool)
    if not len(found):
        return Interval(math.nan, math.nan, math.nan, 0)
    ends = stats.binomtest(int(found.sum()), len(found)).proportion_ci(1 - LEVEL, "wilson")
    return Interval(float(found.mean()), float(ends.low), float(ends.high), len(found))


def p_less(ours: Any, theirs: Any) -> float:
    """The p-value of "ours are less than theirs", pair by pair; 1 if no pair differs."""
    apart = np.round(np.subtract(ours, theirs), DIGITS)
    apart = apart[apart != 0]
    return float(stats.wilcoxon(apart, alternative="less").pvalue) if len(apart) else 1.0


def p_left_and_right(ours: Any, theirs: Any) -> tuple[float, float]:
    """p-values of "our distribution function is above theirs somewhere" and of the reverse."""
    mine, others = np.round(ours, DIGITS), np.round(theirs, DIGITS)
    left, right = (stats.ks_2samp(mine, others, alternative=side).pvalue for side in ("greater", "less"))
    return float(left), float(right)


def rank_correlation(first: Any, second: Any) -> float:
    """Spearman's correlation; 0 if one side is constant. Numbers that differ only by rounding are ties."""
    sides = [np.asarray(side, dtype=float) for side in (first, second)]
    sides = [np.round(side / max(np.abs(side).max(), 1e-300), EQUAL_DIGITS) for side in sides]
    if any(np.ptp(side) == 0 for side in sides):
        return 0.0
    return round(float(stats.spearmanr(sides[0], sides[1]).statistic), DIGITS)


@dataclass(frozen=True)
class Claim:
    """A statement, whether it holds (None: open), and the evidence."""

    what: str
    holds: bool | None
    why: str
    setting: str = ""  # paper-like or practical, if it is judged at both

    @property
    def mark(self) -> str:
        """✔, ✘ or ?."""
        return "?" if self.holds is None else "✔" if self.holds else "✘"


def paired(frame: pd.DataFrame, measure: str, ours: str, theirs: str) -> tuple[Any, Any]:
    """Two methods' numbers on the seeds that both have."""
    wide = frame.pivot_table(index="seed", columns="method", values=measure).reindex(columns=[ours, theirs]).dropna()
    return wide[ours].to_numpy(), wide[theirs].to_numpy()


def more_claim(what: str, ours: Any, theirs: Any) -> Claim:
    """Whether our numbers are larger than theirs, pair by pair."""
    p, reverse = p_less(theirs, ours), p_less(ours, theirs)
    holds = False if p == reverse == 1 else True if p < LEVEL else False if reverse < LEVEL else None
    tested = f"p = {p:.1g}" if p <= reverse else f"p = {reverse:.1g} for less"
    why = f"{mean_of(ours).value:.2f} against {mean_of(theirs).value:.2f}, {tested}"
    return enough(Claim(what, holds, why), len(ours))


def left_claim(what: str, ours: Any, theirs: Any) -> Claim:
    """Whether the distribution of our numbers lies to the left of theirs, and nowhere to the right."""
    left, right = p_left_and_right(ours, theirs) if len(ours) else (1.0, 1.0)
    holds = False if right < LEVEL else True if left < LEVEL else None
    return enough(Claim(what, holds, f"left p = {left:.1g}, right p = {right:.1g}"), len(ours))


def judged(found: Interval, *, least: float = -math.inf, most: float = math.inf) -> bool | None:
    """Whether a number lies between two bounds, judged by its whole interval; None if that is open."""
    if math.isnan(found.low) or found.n < FEWEST_TO_JUDGE:
        return None
    if least <= found.low and found.high <= most:
        return True
    return False if found.high < least or found.low > most else None


def bound_claim(what: str, found: Interval, why: str, *, least: float = -math.inf, most: float = math.inf) -> Claim:
    """Whether a number lies between two bounds."""
    return enough(Claim(what, judged(found, least=least, most=most), why), found.n)


def bar(what: str, value: float, seeds: str, *, least: float | None = None, most: float | None = None) -> Claim:
    """Whether a number meets a bar, as it is."""
    wanted = [f"{sign} {limit:g}" for sign, limit in (("≥", least), ("≤", most)) if limit is not None]
    holds = (least is None or value >= least) and (most is None or value <= most)
    return Claim(what, holds, f"{value:.2f}, bar {' and '.join(wanted)}, {seeds}")


def all_of(judgements: Sequence[bool | None]) -> bool | None:
    """Whether all hold: False if one does not, else None if one is open."""
    return False if False in judgements else None if None in judgements else True


def enough(claim: Claim, n_seeds: int) -> Claim:
    """The claim; open if there are too few seeds."""
    if n_seeds >= FEWEST_TO_JUDGE:
        return claim
    return replace(claim, holds=None, why=f"{claim.why}; {n_seeds} seeds are too few")


def at_setting(claim: Claim, setting: str, frame: pd.DataFrame) -> Claim:
    """The claim with the setting of its rows; open if their model is near chance."""
    accuracy = accuracy_of(frame)
    if accuracy >= NEAR_CHANCE:
        return replace(claim, setting=setting)
    return replace(claim, setting=setting, holds=None, why=f"{claim.why}; accuracy {accuracy:.2f} is near chance")


def at_settings(frame: pd.DataFrame, claims_of: Callable[[pd.DataFrame], Sequence[Claim]], *by: str) -> list[Claim]:
    """The claims about every setup, or every setup and partition."""
    groups = [(str(key[0]), found) for key, found in frame.groupby(["setup", *by], sort=False)]
    return [at_setting(claim, setting_of(name), found) for name, found in groups for claim in claims_of(found)]


def claims_table(claims: Sequence[Claim]) -> pd.DataFrame:
    """One line a claim, with both settings side by side, the verdict, and what it depends on."""
    by_what: dict[str, dict[str, Claim]] = {}
    for claim in claims:
        by_what.setdefault(claim.what, {})[claim.setting] = claim
    lines = []
    for what, found in by_what.items():
        texts = ["not run", "not run"]
        for place, setting in enumerate(("paper-like", "practical")):
            claim_here = found.get(setting)
            if claim_here is not None:
                texts[place] = f"{claim_here.mark} {claim_here.why}"
        if "" in found:
            texts = [f"{found[''].mark} {found[''].why}", "the same"]
        lines.append((what, *texts, *verdict_of([claim.holds for claim in found.values()])))
    return pd.DataFrame(lines, columns=["the paper says", "paper-like", "practical", "verdict", "depends on"])


def verdict_of(judgements: Sequence[bool | None]) -> tuple[str, str]:
    """The verdict over the settings, and whether it depends on the method or on the setting."""
    known = {holds for holds in judgements if holds is not None}
    if not known:
        return "open", "undecided"
    if known == {True, False}:
        return "differs", "setting"
    partly = " where judged" if None in judgements else ""
    return ("**holds**" if known == {True} else "**does not hold**") + partly, "method"
