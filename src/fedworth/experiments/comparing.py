"""What the studies of values share: numbers by method over seeds, side by side, with intervals and paired tests."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fedworth.experiments.methods import METHODS, PAPERS, RIVAL
from fedworth.experiments.outcome import Claim
from fedworth.experiments.statistics import chance_of_less, mean_of
from fedworth.experiments.trial import Row

Numbers = dict[str, dict[int, float]]
"""By method and seed."""

LEVEL = 0.05
FEWEST_SEEDS, FEWEST_TO_REFUSE = 5, 20
"""With fewer than 5 pairs no Wilcoxon test can reach 5 %; with fewer than 20 it may well miss what is there."""


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
    """Whether our numbers are less than theirs, by a paired test at 5 %.

    Open where the means say so but too few seeds were run for the test to say so too.
    """
    mine, others = pairs(numbers, ours, theirs)
    return _compared(what, mine, others, chance_of_less(mine, others), mean_of(mine).value < mean_of(others).value)


def more_claim(what: str, numbers: Numbers, *, ours: str = PAPERS, theirs: str = RIVAL) -> Claim:
    """The same, the other way round."""
    mine, others = pairs(numbers, ours, theirs)
    return _compared(what, mine, others, chance_of_less(others, mine), mean_of(mine).value > mean_of(others).value)


def _compared(what: str, mine: list[float], others: list[float], p: float, is_so: bool) -> Claim:
    why = f"mean {mean_of(mine).value:.2f} against {mean_of(others).value:.2f}, p = {p:.2g}, {len(mine)} seeds"
    if len(mine) < FEWEST_SEEDS or (is_so and p >= LEVEL and len(mine) < FEWEST_TO_REFUSE):
        return Claim(what, None, why)
    return Claim(what, p < LEVEL, why)


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
