"""Noisy labels (the paper's Section VII-C): are the ten clients with 30 % flipped labels the ten of lowest value?

N = 100, T = 100, m % of the clients a round, m = 10 … 50. Number: the Jaccard coefficient of the ten noisy clients and
the ten of lowest value; chance alone gives .05.
"""

import math
from collections.abc import Sequence
from dataclasses import replace

from fedworth.studies.results.comparing import (
    Numbers,
    accuracy_of,
    all_of,
    at_setting,
    banded,
    by_method,
    judged,
    label,
    listed,
    more_claim,
    place_of,
    text_of,
)
from fedworth.studies.results.outcome import Claim, Outcome, Panel, Series
from fedworth.studies.results.records import Record, csv_of, grouped, shortened, value_records
from fedworth.studies.results.statistics import CORRELATIONS, SHARES, mean_of, rounded_correlation
from fedworth.studies.results.study import Rows, Study
from fedworth.studies.trials.extents import Extent
from fedworth.studies.trials.methods import FOUR, PAPERS, RIVAL
from fedworth.studies.trials.settings import Setup
from fedworth.studies.trials.trial import Trial

SHARE, FLIPPED = 0.1, 0.3
PAPERS_JACCARDS = {
    ("mnist", RIVAL): {10: 0.18, 20: 0.33, 30: 0.43, 40: 0.43, 50: 0.54},
    ("mnist", PAPERS): {10: 0.54, 20: 0.67, 30: 0.67, 40: 0.82, 50: 1.0},
}
MOST_FOR_MODELS = 500
"""Rounds × percent of the clients a round up to which the completion by models is made."""

CHANCE, NEAR_CHANCE, SATURATED, ABOVE_ZERO = 0.05, 0.2, 0.99, 1e-9
ALL_SHOWN = ("data, steps × rate", "clients a round", "method", "Jaccard", "seeds")


def noisy(setup: Setup, extent: Extent, seed: int, *, percent: int) -> Trial:
    """A federation with so many percent of the clients a round; the first tenth of them has noisy labels."""
    n, n_noisy = extent.n_clients, round(SHARE * extent.n_clients)
    federation = replace(
        setup.iid().federation(seed),
        n_clients=n,
        n_participants=max(1, n * percent // 100),
        n_rounds=extent.n_rounds,
        flip_shares=(FLIPPED,) * n_noisy + (0.0,) * (n - n_noisy),
        with_truth=False,
    )
    # predicted models of a hundred clients and rounds take long: where few report a round alone
    is_long = extent.n_rounds * percent > MOST_FOR_MODELS
    return Trial(federation, monte_carlo=True, n_permutations=extent.n_permutations, without_models=is_long)


def trials(setup: Setup, extent: Extent, seeds: Sequence[int]) -> list[Trial]:
    """A federation for every seed and participation rate."""
    percents = range(10, 51, extent.rate_step)
    return [noisy(setup, extent, seed, percent=percent) for percent in percents for seed in seeds]


def records_of(rows: Rows) -> list[Record]:
    """How well each method's lowest values name the noisy clients."""
    return value_records(rows, ("jaccard",))


def shown(records: Sequence[Record]) -> Outcome:
    """Jaccard by participation rate at every setting."""
    places = grouped(records, "setup")
    columns, rows = csv_of(records)
    keys = [key for key in FOUR if key in by_method(records, "jaccard")]
    return Outcome(
        study="noisy-labels",
        title="Noisy labels: are the noisy clients the least valued?",
        columns=columns,
        rows=rows,
        shown=("data, steps × rate", "clients a round", "accuracy", *(label(key) for key in keys), "paper", "seeds"),
        lines=tuple(_line(mine, keys) for found in places.values() for mine in _rates(found).values()),
        claims=tuple(at_setting(claim, found) for found in places.values() for claim in _claims(found)),
        panels=tuple(_panel(found) for found in places.values()),
        all_shown=ALL_SHOWN,
        all_lines=tuple(line for found in places.values() for mine in _rates(found).values() for line in _all(mine)),
    )


def _percent(record: Record) -> int:
    return round(100 * float(record["n_participants"] or 0) / float(record["n_clients"] or 1))


def _rates(records: Sequence[Record]) -> dict[int, list[Record]]:
    """By participation rate in percent."""
    return {_percent(found[0]): found for found in grouped(records, "n_participants").values()}


def _line(records: Sequence[Record], keys: Sequence[str]) -> tuple[str, ...]:
    first, of = records[0], by_method(records, "jaccard")
    texts = [text_of(listed(of.get(key, {}))) for key in keys]
    known = [PAPERS_JACCARDS.get((str(first["data_set"]), key), {}).get(_percent(first)) for key in (RIVAL, PAPERS)]
    paper = " / ".join("–" if number is None else f"{number:.2f}" for number in known)
    n_seeds = str(len({record["seed"] for record in records}))
    return (place_of(first), f"{_percent(first)} %", f"{accuracy_of(records):.2f}", *texts, paper, n_seeds)


def _all(records: Sequence[Record]) -> list[tuple[str, ...]]:
    made: list[tuple[str, ...]] = []
    for key, found in by_method(records, "jaccard").items():
        mean = mean_of(listed(found), SHARES)
        made.append((place_of(records[0]), f"{_percent(records[0])} %", label(key), mean.text(), str(mean.n)))
    return made


def _claims(records: Sequence[Record]) -> list[Claim]:
    data = place_of(records[0]).partition(",")[0]
    rates = {percent: by_method(found, "jaccard") for percent, found in _rates(records).items()}
    return [
        _ahead_claim(f"{data}: ComFedSV finds noisy labels better than FedSV", rates),
        _trend_claim(f"{data}: both find more with more participation", rates),
    ]


def _unjudged(rates: dict[int, Numbers]) -> str:
    """Why nothing can be judged: all methods near chance, or all saturated."""
    means = [mean_of(listed(numbers[key])).value for numbers in rates.values() for key in (RIVAL, PAPERS)]
    if min(means) >= SATURATED:
        return "saturated: both find all noisy clients"
    return f"near chance: at best {max(means):.2f}" if max(means) < NEAR_CHANCE else ""


def _ahead_claim(what: str, rates: dict[int, Numbers]) -> Claim:
    """By seed, each with its mean over the rates."""
    found = more_claim(what, {key: _seed_means(key, rates) for key in (PAPERS, RIVAL)})
    reason = _unjudged(rates)
    return Claim(what, None, f"{found.why}; {reason}") if reason else found


def _seed_means(key: str, rates: dict[int, Numbers]) -> dict[int, float]:
    seeds = set.intersection(*(set(numbers[key]) for numbers in rates.values()))
    # fsum, so that equal numbers in another order are no difference
    return {seed: math.fsum(numbers[key][seed] for numbers in rates.values()) / len(rates) for seed in sorted(seeds)}


def _trend_claim(what: str, rates: dict[int, Numbers]) -> Claim:
    """By the rank correlation of rate and Jaccard in each seed: its interval must lie above 0 for both methods."""
    trends = {key: mean_of(_trends(key, rates), CORRELATIONS) for key in (RIVAL, PAPERS)}
    why = "ρ of rate and Jaccard: " + ", ".join(f"{label(key)} {trend.text('+.2f')}" for key, trend in trends.items())
    reason = _unjudged(rates)
    if reason:
        return Claim(what, None, reason)
    return Claim(what, all_of([judged(trend, least=ABOVE_ZERO) for trend in trends.values()]), why)


def _trends(key: str, rates: dict[int, Numbers]) -> list[float]:
    return [
        rounded_correlation(list(rates), [numbers[key][seed] for numbers in rates.values()])
        for seed in _seed_means(key, rates)
    ]


def _panel(records: Sequence[Record]) -> Panel:
    rates = {percent: by_method(found, "jaccard") for percent, found in _rates(records).items()}
    series = []
    for key in FOUR:
        known = [(percent, listed(found[key])) for percent, found in rates.items() if key in found]
        if not known:
            continue
        series.append(banded(key, [x for x, _ in known], [mean_of(found, SHARES) for _, found in known]))
        paper = PAPERS_JACCARDS.get((str(records[0]["data_set"]), key))
        series += [Series(key, list(paper), list(paper.values()), is_papers=True)] if paper else []
    return Panel(
        place_of(records[0]), "% of clients a round", "Jaccard", tuple(series),
        limits=(0, 1.05), levels=(("chance", CHANCE),),
    )  # fmt: skip


STUDY = Study(
    "noisy-labels",
    "ComFedSV outperforms FedSV in most cases; both perform better as more clients report in each round.",
    trials,
    lambda rows: shown(shortened(records_of(rows))),
    (
        "Jaccard coefficients, means over seeds; chance gives .05. ComFedSV rests on 500 permutations in which every "
        "client has every place equally often; FedSV and the heard round on the package's own estimate of each round's "
        "game (ten evaluations a client), which errs less than the permutations that the paper takes. Nearly every "
        "column is seen in the first round only. Completing by models takes long here and is left out: "
        "[fidelity](fidelity.md) has a setting like this one.",
    ),
    shown=shown,
)
