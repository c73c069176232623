"""Models (Section VII-A): the test accuracy that the models reach in 100 rounds, IID and non-IID, three of ten clients
a round. The paper says "up to", so we show the best of all rounds beside the first and the last."""

from functools import partial

import pandas as pd
from matplotlib.axes import Axes

from studies import figures
from studies.bars import SHARES, Claim, at_settings, bound_claim, mean_of
from studies.spectrum import over_seeds
from studies.study import Section, Study
from studies.tables import accuracy_of, data_of, kind_of, number, place_of, table

PAPERS_ACCURACIES = {
    ("synthetic", "non-IID"): 0.95,
    ("synthetic-iid", "IID"): 0.99,
    ("mnist", "non-IID"): 0.92,
    ("mnist", "IID"): 0.98,
}
NEAR = 0.03


def section(frame: pd.DataFrame) -> Section:
    """The accuracies on every data set."""
    places = [found for _, found in frame.groupby(["setup", "partition"], sort=False)]
    return Section(
        table(map(_line, places)),
        claims=at_settings(frame, claims_of, "partition"),
        panels=[partial(_draw, found) for _, found in frame.groupby("model", sort=False)],
        n_names=2,
    )


def _paper(frame: pd.DataFrame) -> float | None:
    return PAPERS_ACCURACIES.get((str(frame.data_set.iloc[0]), kind_of(frame)))


def _line(frame: pd.DataFrame) -> dict[str, str]:
    curve = over_seeds(frame, "accuracy")
    return {
        "data, steps × rate": place_of(frame),
        "": kind_of(frame),
        "rounds": str(frame.n_rounds.iloc[0]),
        "first accuracy": number(curve[1].mean()),
        "best accuracy": mean_of(curve[0], SHARES).text(),
        "last accuracy": number(accuracy_of(frame)),
        "paper": number(_paper(frame)),
        "seeds": str(len(curve)),
    }


def claims_of(frame: pd.DataFrame) -> list[Claim]:
    """Whether the best accuracy is at most three points below the paper's."""
    paper, best = _paper(frame), mean_of(over_seeds(frame, "accuracy")[0], SHARES)
    if paper is None:
        return []
    what = f"{data_of(frame)}, {kind_of(frame)}: the model reaches the paper's accuracy of {paper:.0%}, less 3 points"
    return [bound_claim(what, best, best.text(), least=paper - NEAR)]


def _draw(frame: pd.DataFrame, axes: Axes) -> None:
    for position, (_, found) in enumerate(frame.groupby(["setup", "partition"], sort=False)):
        curve = over_seeds(found, "accuracy").drop(columns=0)
        name = f"{place_of(found).partition(', ')[2]}, {kind_of(found)}"
        figures.means(axes, name, list(curve.columns), [mean_of(curve[t], SHARES) for t in curve], position)
    axes.set(title=data_of(frame), xlabel="round", ylabel="test accuracy", ylim=(0, 1.03))


STUDY = Study(
    "models",
    "Models: the accuracies they reach",
    "The federations are those of Example 2. Accuracies are those of the global model after a round.",
    section,
    claim="The models reach 99/95 (synthetic), 98/92 (MNIST), 98/90 (Fashion-MNIST) and 91/83 % (CIFAR-10), IID / "
    "non-IID.",
    source="spectrum",
)
