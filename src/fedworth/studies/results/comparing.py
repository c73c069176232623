"""What the studies share: numbers by method over seeds, side by side, and the rules by which claims are judged.

"Ours less than theirs" holds if Wilcoxon's paired test says so at 5 %, does not hold if its reverse does (or no pair
differs at all), and is open otherwise. "At most a bound" holds if the whole interval of 95 % is on the right side,
does not hold if it is on the wrong side, and is open otherwise.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fedworth.studies.results.outcome import Claim, Series
from fedworth.studies.results.statistics import Interval, chance_of_less, mean_of
from fedworth.studies.trials.methods import METHODS, PAPERS, RIVAL
from fedworth.studies.trials.trial import Row

Numbers = dict[str, dict[int, float]]
"""By method and seed."""

LEVEL = 0.05
FEWEST_PAIRS = 5
"""With fewer no Wilcoxon test can reach 5 %."""


def by_method(rows: Sequence[Row], number: Callable[[list[float]], float]) -> Numbers:
    """A number made of each method's values, for every seed that has them."""
    found: Numbers = {key: {} for key in METHODS}
    for row in rows:
        for key, values in row["reading"]["values"].items():
            found[key][row["seed"]] = number(values)
    return {key: numbers for key, numbers in found.items() if numbers}


def pairs(numbers: Numbers, ours: str, theirs: str) -> tuple[list[float], list[float]]:
    """Two methods' numbers on the seeds that both have, in the order of the seeds."""
    seeds = sorted(set(numbers.get(ours, {})) & set(numbers.get(theirs, {})))
    return [numbers[ours][seed] for seed in seeds], [numbers[theirs][seed] for seed in seeds]


def less_claim(what: str, numbers: Numbers, *, ours: str = PAPERS, theirs: str = RIVAL) -> Claim:
    """Whether our numbers are less than theirs, seed by seed."""
    mine, others = pairs(numbers, ours, theirs)
    return _compared(what, mine, others, chance_of_less(mine, others), chance_of_less(others, mine))


def more_claim(what: str, numbers: Numbers, *, ours: str = PAPERS, theirs: str = RIVAL) -> Claim:
    """The same, the other way round."""
    mine, others = pairs(numbers, ours, theirs)
    return _compared(what, mine, others, chance_of_less(others, mine), chance_of_less(mine, others))


def decided(p: float, reverse: float, n_pairs: int) -> bool | None:
    """What a one-sided paired test at 5 % and its reverse say together; open where neither decides."""
    if n_pairs < FEWEST_PAIRS:
        return None
    if p == reverse == 1:  # no pair differs
        return False
    return True if p < LEVEL else False if reverse < LEVEL else None


def _compared(what: str, mine: list[float], others: list[float], p: float, reverse: float) -> Claim:
    holds, n = decided(p, reverse, len(mine)), len(mine)
    tests = f"p = {p:.2g}" if holds is not False else f"p = {p:.2g}, of the reverse {reverse:.2g}"
    why = f"mean {mean_of(mine).value:.2f} against {mean_of(others).value:.2f}, {tests}, {n} seeds"
    few = f"; {FEWEST_PAIRS} pairs are the fewest that a test can decide" if n < FEWEST_PAIRS else "; no test decides"
    return Claim(what, holds, why + few if holds is None else why)


def judged(found: Interval, *, least: float = -math.inf, most: float = math.inf) -> bool | None:
    """Whether a number lies between two bounds: by its whole interval; open where that spans a bound or is missing."""
    if math.isnan(found.low):
        return None
    if least <= found.low and found.high <= most:
        return True
    return False if found.high < least or found.low > most else None


def all_of(judgements: Sequence[bool | None]) -> bool | None:
    """Whether all hold: one that does not settles it, one that is open leaves it open."""
    return False if False in judgements else None if None in judgements else True


def bound_claim(what: str, found: Interval, why: str, *, least: float = -math.inf, most: float = math.inf) -> Claim:
    """A claim that a number lies between two bounds."""
    holds = judged(found, least=least, most=most)
    if holds is None:
        why += "; too few seeds for an interval" if math.isnan(found.low) else "; its interval spans the bound"
    return Claim(what, holds, why)


def banded(name: str, x: Sequence[float], found: Sequence[Interval]) -> Series:
    """Means as a line or as bars, with their intervals where there are any."""
    y = [mean.value for mean in found]
    if all(math.isnan(mean.low) for mean in found):
        return Series(name, x, y)
    low = [mean.value if math.isnan(mean.low) else mean.low for mean in found]
    return Series(name, x, y, low, [mean.value if math.isnan(mean.high) else mean.high for mean in found])


def listed(numbers: Mapping[int, float]) -> list[float]:
    """The numbers in the order of their seeds."""
    return [numbers[seed] for seed in sorted(numbers)]


def label(key: str) -> str:
    """A method's name for people."""
    return METHODS[key].label


def truth_correlations(rows: Sequence[Row], correlation: Callable[[Any, Any], float]) -> Numbers:
    """Each method's rank correlation with the truth, for the seeds whose truth is known."""
    known = [row for row in rows if "truth" in row["reading"]["values"]]
    found: Numbers = {key: {} for key in METHODS}
    for row in known:
        values = row["reading"]["values"]
        for key in values:
            found[key][row["seed"]] = correlation(values[key], values["truth"])
    return {key: numbers for key, numbers in found.items() if numbers}
