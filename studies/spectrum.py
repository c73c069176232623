"""Example 2: is the utility matrix nearly of low rank?

We show the singular values of the full (100, 1024) matrix relative to the largest; on CIFAR-10 it is (10, 1024). In the
paper's figure σ₂/σ₁ is about 0.1 (synthetic) and 0.06 (MNIST). The paper does not say whether the data were IID, so we
show both.

The rows also serve `rank` and `models`. They are tidy, one number a row:

    quantity          k           value
    singular          1 … 20      σ_k / σ₁
    best possible     rank        the smallest relative error of any matrix of this rank
    counts 0.01, …    rank        the relative error of the completion with this penalty
    accuracy          round       test accuracy after every tenth round, and the best of all rounds as k = 0
"""

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

import fedworth
from fedworth import FactorSettings
from studies import figures
from studies.bars import SHARES, Claim, at_settings, bound_claim, mean_of
from studies.fairness import COPIES
from studies.federations import Truth, accuracies, federation, simulated
from studies.setups import Extent, Setup
from studies.study import Case, Row, Section, Study
from studies.tables import accuracy_of, data_of, kind_of, number, place_of, table

PAPERS_SECOND = {"mnist": 0.06, "synthetic": 0.1, "synthetic-iid": 0.1}
RANKS = tuple(range(1, 11))
N_SINGULAR, N_DRAWN, N_POINTS, MANY_TIMES = 20, 16, 10, 2
LONG = ("mnist-long-small", "mnist-long", "synthetic-small", "synthetic")


def cases(name: str, setup: Setup, extent: Extent, seeds: Sequence[int]) -> list[Case]:
    """Ten clients, the last a copy of the first; non-IID and IID."""
    changes = {"copies": COPIES, "n_rounds": extent.n_rounds, "with_truth": True}
    return [Case(name, kind.federation(seed, **changes)) for kind in (setup, setup.iid()) for seed in seeds]


def trial(case: Case, scratch: Path, data: Path | None) -> list[Row]:
    """Singular values, completion errors by rank and penalty, and accuracies of one federation."""
    ledger, task = simulated(case.federation, scratch, data)
    of = federation(ledger, task)
    truth, curve = Truth(of), accuracies(ledger, task)
    singular = truth.singular_values
    left = np.sqrt(np.maximum(1 - np.cumsum(singular**2) / (singular**2).sum(), 0))
    numbers = {"singular": dict(enumerate((singular / singular[0])[:N_SINGULAR], 1))}
    numbers["best possible"] = dict(enumerate(left[: len(RANKS)], 1))
    for kind in ("counts", "uniform"):
        for penalty in (0.01, 0.0001):
            errors = {}
            for rank in RANKS:
                factors = FactorSettings(penalty_kind=kind, relative_penalty=penalty, rank=rank)
                errors[rank] = truth.error_of(fedworth.complete(of.utility_matrix(), factors))
            numbers[f"{kind} {penalty:g}"] = errors
    points = sorted({1, *(round(len(curve) * k / N_POINTS) for k in range(1, N_POINTS + 1))} - {0})
    numbers["accuracy"] = {0: max(curve), **{t: curve[t - 1] for t in points}}
    return [
        {"accuracy": curve[-1], "quantity": quantity, "k": k, "value": value}
        for quantity, found in numbers.items()
        for k, value in found.items()
    ]


def over_seeds(frame: pd.DataFrame, quantity: str) -> pd.DataFrame:
    """A quantity as a table with a row a seed and a column a k."""
    return frame[frame.quantity == quantity].pivot_table(index="seed", columns="k", values="value")


def section(frame: pd.DataFrame) -> Section:
    """How fast the singular values fall."""
    places = [found for _, found in frame.groupby(["setup", "partition"], sort=False)]
    return Section(
        table(map(_line, places)),
        claims=at_settings(frame, claims_of, "partition"),
        panels=[partial(_draw, found) for _, found in frame.groupby("model", sort=False)],
        n_names=2,
    )


def _line(frame: pd.DataFrame) -> dict[str, str]:
    singular, best = over_seeds(frame, "singular"), over_seeds(frame, "best possible")

    def text(numbers: pd.DataFrame, k: int) -> str:
        return mean_of(numbers.get(k, []), SHARES).text(".2g")

    return {
        "data, steps × rate": place_of(frame),
        "": kind_of(frame),
        "accuracy": number(accuracy_of(frame)),
        "σ₂/σ₁": text(singular, 2),
        "paper": number(PAPERS_SECOND.get(str(frame.data_set.iloc[0])), "g"),
        "σ₅/σ₁": text(singular, 5),
        "σ₁₆/σ₁": text(singular, 16),
        "best rank-5 error": text(best, 5),
        "seeds": str(len(singular)),
    }


def claims_of(frame: pd.DataFrame) -> list[Claim]:
    """Whether σ₂/σ₁ is at most twice the paper's."""
    paper = PAPERS_SECOND.get(str(frame.data_set.iloc[0]))
    if paper is None:
        return []
    second = mean_of(over_seeds(frame, "singular")[2], SHARES)
    what = f"{data_of(frame)}, {kind_of(frame)}: σ₂/σ₁ at most twice the paper's {paper:g}"
    return [bound_claim(what, second, second.text(), most=MANY_TIMES * paper)]


def _draw(frame: pd.DataFrame, axes: Axes) -> None:
    for position, (_, found) in enumerate(frame.groupby(["setup", "partition"], sort=False)):
        decay = over_seeds(found, "singular").loc[:, :N_DRAWN]
        name, x = f"{place_of(found).partition(', ')[2]}, {kind_of(found)}", list(decay.columns)
        figures.line(axes, name, x, decay.mean(), position)
        figures.band(axes, x, decay.min(), decay.max(), name, position)
    paper = PAPERS_SECOND.get(str(frame.data_set.iloc[0]))
    if paper is not None:
        figures.line(axes, "paper", [2], [paper], **figures.PAPER)
    axes.set(title=f"{data_of(frame)}, T = {frame.n_rounds.iloc[0]}", xlabel="k", ylabel="σ_k / σ₁")
    figures.logarithmic(axes, 1e-5, 1.3)


STUDY = Study(
    "spectrum",
    "Example 2: singular values of the utility matrix",
    "The paper does not say whether these data were IID. Client 9 is a copy of client 0, as in the regime map. Bands "
    "reach from the smallest to the largest seed; the star is the paper's value.",
    section,
    claim="In all cases the utility matrix is nearly of low rank.",
    scales={
        "page": {**dict.fromkeys(LONG, Extent(5, 100)), "cifar10": Extent(5)},
        "tiny": {"digits": Extent(1, 4)},
    },
    cases=cases,
    trial=trial,
)
