"""Noisy labels (Section VII-C): do the ten clients with 30 % flipped labels have the ten lowest values?

N = 100, T = 100, m % of the clients a round, m = 10 … 50; on CIFAR-10 N = 30, T = 20, m = 10. A tenth of the clients is
noisy. We show the Jaccard coefficient of the noisy clients and the equally many of lowest value; guessing gives .05.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import pandas as pd
from matplotlib.axes import Axes

from studies import figures, values
from studies.bars import (
    CORRELATIONS,
    SHARES,
    Claim,
    all_of,
    at_settings,
    judged,
    mean_of,
    more_claim,
    rank_correlation,
)  # fmt: skip
from studies.methods import FOUR, PAPERS, RIVAL, label
from studies.setups import Extent, Setup
from studies.study import Case, Section, Study
from studies.tables import accuracy_of, data_of, mean, number, place_of, table
from studies.values import Column, by_method, of_method

SHARE, FLIPPED = 0.1, 0.3
PAPERS_JACCARDS = {
    "MNIST": {
        RIVAL: {10: 0.18, 20: 0.33, 30: 0.43, 40: 0.43, 50: 0.54},
        PAPERS: {10: 0.54, 20: 0.67, 30: 0.67, 40: 0.82, 50: 1.0},
    },
    "CIFAR-10": {
        RIVAL: {10: 0.33, 20: 0.43, 30: 0.54, 40: 0.67, 50: 0.67},
        PAPERS: {10: 0.25, 20: 0.33, 30: 0.43, 40: 0.67, 50: 0.82},
    },
}
"""By data set, method and percent of clients a round; N = 100."""

MOST_FOR_MODELS = 500  # rounds × percent of clients a round; above this, predicting models takes too long
CHANCE, NEAR_CHANCE, SATURATED, ABOVE_ZERO = 0.05, 0.2, 0.99, 1e-9


def noisy(name: str, setup: Setup, extent: Extent, seed: int, percent: int) -> Case:
    """A federation in which the first tenth of the clients has flipped labels."""
    n, n_noisy = extent.n_clients, round(SHARE * extent.n_clients)
    federation = setup.iid().federation(
        seed,
        n_clients=n,
        n_participants=max(1, n * percent // 100),
        n_rounds=extent.n_rounds,
        flip_shares=(FLIPPED,) * n_noisy + (0.0,) * (n - n_noisy),
        with_truth=False,
    )
    too_long = extent.n_rounds * percent > MOST_FOR_MODELS or setup.is_convolutional
    return Case(name, federation, {"n_permutations": extent.n_permutations, "without_models": too_long})


def cases(name: str, setup: Setup, extent: Extent, seeds: Sequence[int]) -> list[Case]:
    """A federation for every seed and participation rate."""
    percents = range(10, 51, extent.step)
    return [noisy(name, setup, extent, seed, percent) for percent in percents for seed in seeds]


def section(frame: pd.DataFrame) -> Section:
    """Jaccard coefficients by participation rate."""
    frame = frame.assign(percent=(100 * frame.n_participants / frame.n_clients).round().astype(int))
    keys = [key for key in FOUR if len(of_method(frame, key))]
    cells = [found for _, found in frame.groupby(["setup", "percent"], sort=False)]
    names: dict[str, Column] = {
        "data, steps × rate": place_of,
        "clients a round": lambda rows: f"{rows.percent.iloc[0]} %",
    }
    return Section(
        table(_line(found, keys) for found in cells),
        claims=at_settings(frame, claims_of),
        panels=[partial(_draw, found) for _, found in frame.groupby("setup", sort=False)],
        appendix=by_method(cells, names, {"Jaccard": lambda rows: mean_of(rows.jaccard, SHARES).text()}),
    )


def _line(frame: pd.DataFrame, keys: Sequence[str]) -> dict[str, str]:
    percent = int(frame.percent.iloc[0])
    paper = PAPERS_JACCARDS.get(data_of(frame), {})
    known = [paper.get(key, {}).get(percent) for key in (RIVAL, PAPERS)]
    return {
        "data, steps × rate": place_of(frame),
        "clients a round": f"{percent} %",
        "accuracy": number(accuracy_of(frame)),
        **{label(key): mean(of_method(frame, key).jaccard) for key in keys},
        "paper": " / ".join(map(number, known)),
        "seeds": str(frame.seed.nunique()),
    }


def claims_of(frame: pd.DataFrame) -> list[Claim]:
    """Whether ComFedSV is better, and whether both improve with participation; open near chance or at saturation."""
    data = data_of(frame)
    by_seed = {
        key: of_method(frame, key).pivot_table(index="seed", columns="percent", values="jaccard").dropna()
        for key in (RIVAL, PAPERS)
    }
    means = [value for wide in by_seed.values() for value in wide.mean()]
    unclear = (
        "saturated: both find all noisy clients" if min(means) >= SATURATED
        else f"near chance: at best {max(means):.2f}" if max(means) < NEAR_CHANCE else ""
    )  # fmt: skip
    both = by_seed[PAPERS].index.intersection(by_seed[RIVAL].index)
    ours, theirs = (by_seed[key].loc[both].mean(axis=1).to_numpy() for key in (PAPERS, RIVAL))
    ahead = more_claim(f"{data}: ComFedSV finds noisy labels better than FedSV", ours, theirs)
    trends = {
        key: mean_of([rank_correlation(wide.columns, row) for row in wide.to_numpy()], CORRELATIONS)
        for key, wide in by_seed.items()
    }
    if frame.percent.nunique() == 1:
        return [Claim(ahead.what, None, f"{ahead.why}; {unclear}") if unclear else ahead]
    what = f"{data}: both find more with more participation"
    why = "ρ of rate and Jaccard: " + ", ".join(f"{label(key)} {trend.text('+.2f')}" for key, trend in trends.items())
    if unclear:
        return [Claim(ahead.what, None, f"{ahead.why}; {unclear}"), Claim(what, None, unclear)]
    return [ahead, Claim(what, all_of([judged(trend, least=ABOVE_ZERO) for trend in trends.values()]), why)]


def _draw(frame: pd.DataFrame, axes: Axes) -> None:
    for key in FOUR:
        by_rate = of_method(frame, key).groupby("percent").jaccard
        if not len(by_rate):
            continue
        figures.means(axes, key, list(by_rate.groups), [mean_of(found, SHARES) for _, found in by_rate])
        paper = PAPERS_JACCARDS.get(data_of(frame), {}).get(key)
        if paper is not None:
            looks: dict[str, Any] = {
                "label": f"{label(key)}, paper",
                "ls": (0, (1, 1.5)),
                "lw": 1.1,
                "markerfacecolor": "white",
            }
            figures.line(axes, key, list(paper), list(paper.values()), **looks)
    axes.axhline(CHANCE, color="#555555", lw=1.1, ls=":", label="chance")
    axes.set(title=place_of(frame), xlabel="% of clients a round", ylabel="Jaccard", ylim=(0, 1.05))


LABELS = ("labels-small", "labels")
STUDY = Study(
    "noisy-labels",
    "Noisy labels: do the noisy clients have the lowest values?",
    "Each cell shows a Jaccard coefficient, averaged over seeds; guessing gives .05. ComFedSV uses 500 permutations "
    "in which every client has every position equally often. FedSV and the all-clients round use fedworth's estimate "
    "of each round's game, which has smaller errors than the permutations of the paper. Nearly every column of the "
    "utility matrix is observed in the first round only. ComFedSV by models takes too long here; "
    "[fidelity](fidelity.md) has a similar setting. On CIFAR-10 there are 30 clients and 20 rounds, since 100 clients "
    "take too long there, too.",
    section,
    claim="ComFedSV outperforms FedSV in most cases; both perform better as more clients report in each round.",
    scales={
        "page": {
            **dict.fromkeys(LABELS, Extent(10, 100, n_clients=100)),
            "cifar10-labels": Extent(5, 20, n_clients=30, n_permutations=100, step=50),
        },
        "tiny": {"digits": Extent(1, 3, n_clients=20, n_permutations=20, step=20)},
    },
    cases=cases,
    trial=values.trial,
)
