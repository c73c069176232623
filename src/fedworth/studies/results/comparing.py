"""What the studies share: a measure by method over seeds, side by side, and the rules by which claims are judged.

"Ours less than theirs" holds if Wilcoxon's paired test says so at 5 %, does not hold if its reverse does (or no pair
differs at all), and is open otherwise. "At most a bound" holds if the whole interval of 95 % is on the right side,
does not hold if it is on the wrong side, and is open otherwise. One distribution lies left of another if Kolmogorov
and Smirnov's one-sided test says so and its reverse does not. Fewer than five independent seeds judge nothing. Nor does
a federation whose model is near chance.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from fedworth.studies.results.outcome import Claim, Series
from fedworth.studies.results.records import Record, grouped, numbers
from fedworth.studies.results.statistics import (
    FEWEST_TO_JUDGE,
    Interval,
    chance_of_less,
    chances_of_crossing,
    mean_of,
)
from fedworth.studies.trials.methods import METHODS, PAPERS, RIVAL
from fedworth.studies.trials.settings import setting_of_name

Numbers = dict[str, dict[int, float]]
"""By method and seed."""

LEVEL = 0.05
NEAR_CHANCE = 0.2
"""Accuracy of ten classes below which a model has hardly learned: twice that of guessing."""

DATA = {"mnist": "MNIST", "synthetic": "synthetic", "synthetic-iid": "synthetic", "fashion-mnist": "Fashion-MNIST"}


def by_method(records: Sequence[Record], measure: str) -> Numbers:
    """A measure for every method and seed that has it."""
    found: Numbers = {}
    for (method,), mine in grouped(records, "method").items():
        known = {int(record["seed"] or 0): numbers([record], measure) for record in mine}
        if any(known.values()):
            found[str(method)] = {seed: numbers[0] for seed, numbers in known.items() if numbers}
    return found


def pairs(numbers: Numbers, ours: str, theirs: str) -> tuple[list[float], list[float]]:
    """Two methods' numbers on the seeds that both have, in the order of the seeds."""
    seeds = sorted(set(numbers.get(ours, {})) & set(numbers.get(theirs, {})))
    return [numbers[ours][seed] for seed in seeds], [numbers[theirs][seed] for seed in seeds]


def more_claim(what: str, numbers: Numbers, *, ours: str = PAPERS, theirs: str = RIVAL) -> Claim:
    """Whether our numbers are more than theirs, seed by seed."""
    mine, others = pairs(numbers, ours, theirs)
    p, reverse = chance_of_less(others, mine), chance_of_less(mine, others)
    tests = f"p = {p:.1g}" if p <= reverse else f"p = {reverse:.1g} for less"
    why = f"{mean_of(mine).value:.2f} against {mean_of(others).value:.2f}, {tests}"
    return _enough(Claim(what, _decided(p, reverse), why), len(mine))


def left_claim(what: str, numbers: Numbers, *, ours: str = PAPERS, theirs: str = RIVAL) -> Claim:
    """Whether the distribution of our numbers lies left of that of theirs, and nowhere right of it."""
    mine, others = pairs(numbers, ours, theirs)
    left, right = chances_of_crossing(mine, others) if mine else (1.0, 1.0)
    holds = False if right < LEVEL else True if left < LEVEL else None
    why = f"left p = {left:.1g}, right p = {right:.1g}"
    return _enough(Claim(what, holds, why), len(mine))


def _decided(p: float, reverse: float) -> bool | None:
    """What a one-sided paired test at 5 % and its reverse say together; open where neither decides."""
    if p == reverse == 1:  # no pair differs
        return False
    return True if p < LEVEL else False if reverse < LEVEL else None


def _enough(claim: Claim, n_seeds: int) -> Claim:
    if n_seeds >= FEWEST_TO_JUDGE:
        return claim
    return replace(claim, holds=None, why=f"{claim.why}; {n_seeds} seeds judge nothing")


def judged(found: Interval, *, least: float = -math.inf, most: float = math.inf) -> bool | None:
    """Whether a number lies between two bounds: by its whole interval; open where that spans a bound or is missing, or
    where it is of too few seeds."""
    if math.isnan(found.low) or found.n < FEWEST_TO_JUDGE:
        return None
    if least <= found.low and found.high <= most:
        return True
    return False if found.high < least or found.low > most else None


def all_of(judgements: Sequence[bool | None]) -> bool | None:
    """Whether all hold: one that does not settles it, one that is open leaves it open."""
    return False if False in judgements else None if None in judgements else True


def bound_claim(what: str, found: Interval, why: str, *, least: float = -math.inf, most: float = math.inf) -> Claim:
    """A claim that a number lies between two bounds."""
    return _enough(Claim(what, judged(found, least=least, most=most), why), found.n)


def at_setting(claim: Claim, records: Sequence[Record]) -> Claim:
    """The claim with the setting that its records are of; open where their model is near chance."""
    found = replace(claim, setting=setting_of_name(str(records[0]["setup"])))
    accuracy = accuracy_of(records)
    if accuracy >= NEAR_CHANCE:
        return found
    return replace(found, holds=None, why=f"{found.why}; accuracy {accuracy:.2f} is near chance")


def accuracy_of(records: Sequence[Record]) -> float:
    """The mean accuracy after the last round, each federation once."""
    found = {
        (record["setup"], record["partition"], record["seed"], record["n_participants"]): record for record in records
    }
    return mean_of(numbers(found.values(), "accuracy")).value


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


def place_of(record: Record) -> str:
    """Data set, local steps and rate of a record's federation, for people."""
    data = str(record["data_set"])
    return f"{DATA.get(data, data)}, {training_of(record)}"


def training_of(record: Record) -> str:
    """Local steps and rate."""
    return f"{record['n_steps']} × {record['rate']:g}"


def kind_of(record: Record) -> str:
    """Whether the clients' data are alike."""
    return "IID" if record["partition"] == "iid" else "non-IID"


def text_of(found: Sequence[float], form: str = ".2f") -> str:
    """A mean for a table."""
    return "–" if not found else f"{mean_of(found).value:{form}}"
