"""Noisy data (Section VII-C): do values fall as noise rises?

N = 10, K = 3, T = 10, IID, with Gaussian noise on 5i % of the samples of client i. We show Spearman's correlation of
the values with the true order (client 0 is the cleanest). The paper shows one run and does not say how strong
its noise is; here are means over seeds, and `setups` says how the strength was chosen.
"""

from collections.abc import Sequence
from functools import partial

import pandas as pd
from matplotlib.axes import Axes

from studies import figures, values
from studies.bars import CORRELATIONS, Claim, at_settings, bound_claim, mean_of, more_claim, paired
from studies.methods import FOUR, PAPERS, RIVAL, label
from studies.setups import SETUPS, SMALL, Extent, Setup
from studies.study import Case, Section, Study
from studies.tables import accuracy_of, data_of, mean, number, place_of, table
from studies.values import Column, by_method, of_method

STEP = 0.05
PAPERS_CORRELATIONS = {
    "synthetic-iid": (0.75, 1.0),
    "mnist": (0.96, 1.0),
    "fashion-mnist": (0.85, 0.98),
    "cifar10": (0.81, 0.84),
}
"""FedSV's and ComFedSV's; the truth has 1, on CIFAR-10 .92."""

ALMOST = 0.1  # ComFedSV "almost matches" the truth if its correlation is at most this much lower, on average
SEES_NOISE = 0.5  # if the truth's own correlation is lower, matching it says nothing
NOISY = ("mnist-noise-small", "mnist-noise", "synthetic-noise-small", "synthetic-noise")


def noisy(name: str, setup: Setup, seed: int, options: dict[str, object], **changes: object) -> Case:
    """Ten clients with IID data, the i-th with noise on 5i % of its samples."""
    shares = tuple(round(STEP * client, 2) for client in range(10))
    return Case(name, setup.iid().federation(seed, noise_shares=shares, **changes), options)


def cases(name: str, setup: Setup, extent: Extent, seeds: Sequence[int]) -> list[Case]:
    """One federation a seed."""
    options: dict[str, object] = {"without_models": True} if setup.is_convolutional else {}
    return [
        noisy(name, setup, seed, options, n_rounds=extent.n_rounds, with_truth=extent.has_truth(position))
        for position, seed in enumerate(seeds)
    ]


def section(frame: pd.DataFrame) -> Section:
    """Spearman's correlation on every data set."""
    frame = frame.reindex(columns=dict.fromkeys([*frame.columns, "rank_correlation", "value_error"]))
    places = [found for _, found in frame.groupby("setup", sort=False)]
    columns: dict[str, Column] = {
        "Spearman with noise": lambda rows: mean_of(rows.noise_correlation, CORRELATIONS).text(),
        "ρ with truth": lambda rows: mean(rows.rank_correlation),
        "error": lambda rows: mean(rows.value_error),
    }
    return Section(
        table(map(_line, places)),
        claims=at_settings(frame, _claims),
        panels=[partial(_draw, places)],
        appendix=by_method(places, {"data, steps × rate": place_of}, columns),
    )


def _line(frame: pd.DataFrame) -> dict[str, str]:
    paper = PAPERS_CORRELATIONS.get(str(frame.data_set.iloc[0]))
    return {
        "data, steps × rate": place_of(frame),
        "accuracy": number(accuracy_of(frame)),
        **{label(key): mean(of_method(frame, key).noise_correlation) for key in ("truth", *FOUR)},
        "paper": " / ".join(map(number, paper)) if paper else "–",
        "seeds": str(frame.seed.nunique()),
    }


def _claims(frame: pd.DataFrame) -> list[Claim]:
    data = data_of(frame)
    what = f"{data}: ComFedSV ranks by noise better than FedSV"
    claims = [more_claim(what, *paired(frame, "noise_correlation", PAPERS, RIVAL))]
    if len(of_method(frame, "truth")):
        claims.append(match_claim(f"{data}: ComFedSV almost matches the truth (at most {ALMOST} lower)", frame))
    return claims


def match_claim(what: str, frame: pd.DataFrame) -> Claim:
    """Whether ComFedSV's correlation is at most a little lower than the truth's."""
    ours, truth = paired(frame, "noise_correlation", PAPERS, "truth")
    below = mean_of(truth - ours)
    why = f"truth {truth.mean():.2f}, ComFedSV {below.text()} lower"
    if truth.mean() < SEES_NOISE:
        return Claim(what, None, f"{why}; a truth below {SEES_NOISE} says nothing")
    return bound_claim(what, below, why, most=ALMOST)


def _draw(places: list[pd.DataFrame], axes: Axes) -> None:
    found = {
        key: [mean_of(of_method(frame, key).noise_correlation, CORRELATIONS) for frame in places]
        for key in ("truth", *FOUR)
    }
    heights = {key: [one.value for one in mine] for key, mine in found.items()}
    figures.bars(axes, heights, {key: figures.ends(mine) for key, mine in found.items()})
    axes.set(ylabel="Spearman with the true order", ylim=(-0.3, 1.05))
    figures.ticks(axes, [place_of(frame).replace(", ", "\n") for frame in places])


def _strengths() -> str:
    setups = SETUPS["page"]
    return ", ".join(
        f"{setups[name + SMALL].noise_strength:g} / {setups[name].noise_strength:g}"
        for name in ("mnist-noise", "synthetic-noise")
    )


STUDY = Study(
    "noisy-data",
    "Noisy data: do values fall as noise rises?",
    "Each cell shows Spearman's correlation with the order from clean to noisy clients, averaged over seeds; *paper*: "
    f"FedSV / ComFedSV. The noise has {_strengths()} standard deviations of the features (MNIST, synthetic, each "
    "paper-like / practical; Fashion-MNIST and CIFAR-10 as MNIST); the paper does not say how strong its noise is. "
    "Here all clients' *synthetic* data has one source (*v* = 0), unlike the paper's α = β = 0.",
    section,
    claim="ComFedSV outperforms FedSV and almost matches the ground truth on all four data sets.",
    scales={
        "page": {
            **dict.fromkeys(NOISY, Extent(50)),
            "fashion-mnist-noise": Extent(20, n_truth_seeds=0),
            "cifar10-noise": Extent(10, n_truth_seeds=0),
        },
        "tiny": {"synthetic-iid": Extent(1, 3), "digits": Extent(2, 3, n_truth_seeds=1)},
    },
    cases=cases,
    trial=values.trial,
)
