"""Noisy labels (the paper's Section VII-C): are the ten clients with 30 % flipped labels the ten of lowest value?

N = 100, T = 100, m % of the clients a round, m = 10 … 50; values by Monte Carlo. Number: the Jaccard coefficient of
the ten noisy clients and the ten of lowest value; chance alone gives .05.
"""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from fedworth.studies.results.comparing import (
    FEWEST_PAIRS,
    Numbers,
    all_of,
    banded,
    by_method,
    decided,
    judged,
    label,
    listed,
    more_claim,
    pairs,
)
from fedworth.studies.results.outcome import Cell, Claim, Outcome, Panel, Series, claim_of
from fedworth.studies.results.statistics import (
    CORRELATIONS,
    SHARES,
    chance_of_less,
    jaccard,
    mean_of,
    rounded_correlation,
)
from fedworth.studies.results.study import Rows, Study
from fedworth.studies.trials.extents import Extent
from fedworth.studies.trials.methods import PAPERS, RIVAL
from fedworth.studies.trials.settings import Setup
from fedworth.studies.trials.trial import Row, Trial

SHARE, FLIPPED, RATES = 0.1, 0.3, (10, 20, 30, 40, 50)
PAPERS_JACCARDS = {
    ("synthetic-iid", RIVAL): (0.54, 0.54, 0.67, 0.82, 0.82),
    ("synthetic-iid", PAPERS): (0.82, 0.67, 0.82, 1.0, 0.82),
    ("mnist", RIVAL): (0.18, 0.33, 0.43, 0.43, 0.54),
    ("mnist", PAPERS): (0.54, 0.67, 0.67, 0.82, 1.0),
    ("fashion-mnist", RIVAL): (0.54, 0.54, 0.54, 0.82, 1.0),
    ("fashion-mnist", PAPERS): (0.54, 0.54, 0.67, 0.82, 1.0),
    ("cifar10", RIVAL): (0.33, 0.43, 0.54, 0.67, 0.67),
    ("cifar10", PAPERS): (0.25, 0.33, 0.43, 0.67, 0.82),
}
CHANCE, NEAR_CHANCE, ABOVE_ZERO = 0.05, 0.2, 1e-9
COLUMNS = ("data_set", "method", "percent_a_round", "n_seeds", "jaccard", "low", "high", "paper")
SHOWN = ("data", "method", *(f"{rate} %" for rate in RATES), "seeds")


def noisy(setup: Setup, extent: Extent, seed: int, *, percent: int, flipped: float = FLIPPED) -> Trial:
    """A federation with so many percent of the clients a round; the first tenth of them has noisy labels."""
    n, n_noisy = extent.n_clients, round(SHARE * extent.n_clients)
    federation = replace(
        setup.iid().federation(seed),
        n_clients=n,
        n_participants=max(1, n * percent // 100),
        n_rounds=extent.n_rounds,
        test_limit=extent.test_limit or setup.test_limit,
        flip_shares=(flipped,) * n_noisy + (0.0,) * (n - n_noisy),
        with_truth=False,
    )
    return Trial(federation, monte_carlo=True, n_permutations=extent.n_permutations)


def trials(setup: Setup, extent: Extent, seeds: Sequence[int]) -> list[Trial]:
    """A federation for every seed and participation rate."""
    return [noisy(setup, extent, seed, percent=percent) for percent in RATES for seed in seeds]


def found_noisy(values: list[float]) -> float:
    """Jaccard of the noisy clients and the as many of lowest value; equal values in the order of the clients."""
    n_noisy = round(SHARE * len(values))
    # noisy clients come first, and must not win ties for it
    lowest = len(values) - 1 - np.argsort(values[::-1], kind="stable")[:n_noisy]
    return jaccard(set(range(n_noisy)), set(lowest.tolist()))


def jaccards(rows: Sequence[Row]) -> Numbers:
    """How well each method's lowest values name the noisy clients, by method and seed."""
    return by_method(rows, found_noisy)


def by_rate(rows: Sequence[Row]) -> dict[int, Numbers]:
    """Jaccard by participation rate, method and seed."""
    found: dict[int, list[Row]] = {}
    for row in rows:
        federation = row["federation"]
        found.setdefault(round(100 * federation["n_participants"] / federation["n_clients"]), []).append(row)
    return {rate: jaccards(of_rate) for rate, of_rate in found.items()}


def findings(rows: Rows) -> Outcome:
    """Jaccard by participation rate on every data set."""
    grouped = {name: by_rate(found) for name, found in rows.items()}
    return Outcome(
        study="noisy-labels",
        title="Noisy labels: are the noisy clients the least valued?",
        columns=COLUMNS,
        rows=tuple(row for name, rates in grouped.items() for row in _cells(name, rates)),
        shown=SHOWN,
        lines=tuple(line for name, rates in grouped.items() for line in _lines(name, rates)),
        claims=tuple(claim for name, rates in grouped.items() for claim in _claims(name, rates)),
        panels=tuple(_panel(name, rates) for name, rates in grouped.items()),
    )


def _cells(name: str, rates: dict[int, Numbers]) -> list[tuple[Cell, ...]]:
    made: list[tuple[Cell, ...]] = []
    for position, (rate, numbers) in enumerate(rates.items()):
        for key, found in numbers.items():
            mean, paper = mean_of(listed(found), SHARES), PAPERS_JACCARDS.get((name, key))
            printed = None if paper is None else paper[position]
            made.append((name, key, rate, mean.n, mean.value, mean.low, mean.high, printed))
    return made


def _lines(name: str, rates: dict[int, Numbers]) -> list[tuple[str, ...]]:
    made = []
    for key in next(iter(rates.values())):
        means = [mean_of(listed(numbers[key]), SHARES) for numbers in rates.values()]
        made.append((name, label(key), *(mean.text() for mean in means), str(means[0].n)))
        if (name, key) in PAPERS_JACCARDS:
            paper = [f"{number:.2f}" for number in PAPERS_JACCARDS[name, key]]
            made.append((name, f"*{label(key)}, paper*", *paper, "1"))
    return made


def _claims(name: str, rates: dict[int, Numbers]) -> list[Claim]:
    return [
        _ahead_claim(f"{name}: ComFedSV ahead of FedSV in most cases", rates),
        _trend_claim(f"{name}: both better with more participation", rates),
    ]


def _ahead_claim(what: str, rates: dict[int, Numbers]) -> Claim:
    """By seed if there are enough, each with its mean over the rates; else by all pairs of seed and rate."""
    together = [pairs(numbers, PAPERS, RIVAL) for numbers in rates.values()]
    gaps = [float(np.mean(ours)) - float(np.mean(theirs)) for ours, theirs in together]
    counts = f"ahead in {sum(g > 0 for g in gaps)}, behind in {sum(g < 0 for g in gaps)} of {len(gaps)} rates"
    if all(min(theirs) == 1 for _, theirs in together):
        return Claim(what, None, f"{counts}; FedSV finds all noisy clients at every rate: nothing can be ahead of it")
    n_seeds = len(together[0][0])
    if n_seeds >= FEWEST_PAIRS:
        found = more_claim(what, {key: _seed_means(key, rates) for key in (PAPERS, RIVAL)})
        return Claim(what, found.holds, f"{counts}; over seeds, each with its mean over the rates: {found.why}")
    ours, theirs = ([x for pair in together for x in pair[side]] for side in (0, 1))
    p, reverse = chance_of_less(theirs, ours), chance_of_less(ours, theirs)
    holds = None if p == reverse else decided(p, reverse, len(ours))
    why = f"{counts}; p = {p:.2g}, of the reverse {reverse:.2g}, over all pairs, of which those of one seed share data"
    return claim_of(what, holds, why if holds is not None else f"{why}; no test decides", n_seeds=n_seeds)


def _seed_means(key: str, rates: dict[int, Numbers]) -> dict[int, float]:
    seeds = set.intersection(*(set(numbers[key]) for numbers in rates.values()))
    # fsum, so that equal numbers in another order are no difference
    return {seed: math.fsum(numbers[key][seed] for numbers in rates.values()) / len(rates) for seed in sorted(seeds)}


def _trend_claim(what: str, rates: dict[int, Numbers]) -> Claim:
    """By the rank correlation of rate and Jaccard in each seed: its interval must lie above 0 for both methods."""
    means = {key: [float(np.mean(listed(n[key]))) for n in rates.values()] for key in (RIVAL, PAPERS)}
    trends = {key: mean_of(_trends(key, rates), CORRELATIONS) for key in (RIVAL, PAPERS)}
    said = ", ".join(f"{label(key)} {trend.text('+.2f')}" for key, trend in trends.items())
    why = f"rank correlation of rate and Jaccard, mean over seeds: {said}"
    for key, found in means.items():
        if max(found) < NEAR_CHANCE:
            return Claim(what, None, f"{why}; {label(key)} is at best {max(found):.2f}, near chance ({CHANCE})")
        if min(found) == 1:
            return Claim(what, None, f"{why}; {label(key)} finds all noisy clients at every rate")
    holds = all_of([judged(trend, least=ABOVE_ZERO) for trend in trends.values()])
    return Claim(what, holds, why if holds is not None else f"{why}; no interval decides")


def _trends(key: str, rates: dict[int, Numbers]) -> list[float]:
    return [
        rounded_correlation(list(rates), [numbers[key][seed] for numbers in rates.values()])
        for seed in _seed_means(key, rates)
    ]


def _panel(name: str, rates: dict[int, Numbers]) -> Panel:
    series = []
    for key in next(iter(rates.values())):
        means = [mean_of(listed(numbers[key]), SHARES) for numbers in rates.values()]
        series.append(banded(key, list(rates), means))
    for key in (RIVAL, PAPERS):
        if (name, key) in PAPERS_JACCARDS:
            series.append(Series(key, RATES, PAPERS_JACCARDS[name, key], is_papers=True))
    return Panel(
        name, "participants a round (% of clients)", "Jaccard coefficient", tuple(series),
        limits=(0, 1.05), levels=(("chance", CHANCE),),
    )  # fmt: skip


STUDY = Study(
    "noisy-labels",
    "ComFedSV outperforms FedSV in most cases; both perform better as more clients report in each round.",
    trials,
    findings,
    (
        "Values by Monte Carlo: ⌈N ln N⌉ = 461 permutations for ComFedSV, ⌈K ln K⌉ a round for FedSV (or as many "
        "as are stated below), each prefix measured once. At this size nearly every column is seen in the first "
        "round only, so ComFedSV rests on it. Where FedSV finds all noisy clients nothing can be ahead of it; "
        "`sensitivity` shows the study after ten rounds and with fewer flipped labels, where it does not. The "
        "convolutional models measure a hundred coalitions a second where a seed as in the paper takes two million: "
        "they have fewer rounds, permutations and test samples; `--scale paper` has them in full. Fewer permutations "
        "cost ComFedSV more: its values rest on the same ones in every round, while FedSV draws anew. What is near "
        "chance (.05, the dotted line) for every method says nothing of any.",
    ),
)
