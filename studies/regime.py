"""The regime map: how near each method's values are to the truth, by local steps and learning rate.

The paper gives neither steps nor rate. MNIST, N = 10, K = 3, client 9 a copy of client 0, two classes a client or IID,
an MLP and a logistic model. The theory is about small steps: the utility matrix is then nearly of rank one.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import pandas as pd
from matplotlib.axes import Axes

from studies import figures, values
from studies.fairness import COPIES
from studies.methods import FOUR, label
from studies.setups import Extent, Setup
from studies.study import Case, Section, Study
from studies.tables import accuracy_of, kind_of, mean, number, table, training_of
from studies.values import Column, by_method, of_method

CELLS = ((1, 0.01), (1, 0.03), (1, 0.1), (1, 0.3), (10, 0.3), (50, 0.1))
LONG_CELLS = ((1, 0.01), (1, 0.3), (10, 0.3))
"""Local steps and learning rates, from small steps to large; the latter for more than ten rounds."""

MOST_DRAWN = 3.0
IN_APPENDIX = "logistic"


def cases(name: str, setup: Setup, extent: Extent, seeds: Sequence[int]) -> list[Case]:
    """Every combination of steps and rate, two classes a client and IID."""
    changes = {"copies": COPIES, "n_rounds": extent.n_rounds, "with_truth": True}
    kinds = [setup.trained(*cell) for cell in (CELLS if extent.n_rounds <= 10 else LONG_CELLS)]
    return [
        Case(name, kind.federation(seed, **changes))
        for two_class in kinds
        for kind in (two_class, two_class.iid())
        for seed in seeds
    ]


def section(frame: pd.DataFrame) -> Section:
    """Errors by steps and rates."""
    frame = frame.assign(path=frame.n_steps * frame.rate)
    places = [(str(key[0]), found) for key, found in frame.groupby(["model", "partition", "n_rounds"], sort=False)]
    columns: dict[str, Column] = {
        "matrix error": lambda rows: mean(rows.matrix_error),
        "value error": lambda rows: mean(rows.value_error),
        "ρ with truth": lambda rows: mean(rows.rank_correlation),
        "median d": lambda rows: number(rows.d.median()),
        "gap": lambda rows: mean(rows.gap),
    }
    return Section(
        table(_line(cell) for model, found in places if model != IN_APPENDIX for cell in _cells(found)),
        panels=[partial(_draw, found) for model, found in places if model != IN_APPENDIX],
        appendix=by_method(
            [cell for _, found in places for cell in _cells(found)],
            {"where": lambda rows: f"{_place(rows)}, {training_of(rows)}"},
            columns,
        ),
        appendix_panels=[partial(_draw, found) for model, found in places if model == IN_APPENDIX],
        n_names=2,
    )


def _cells(frame: pd.DataFrame) -> list[pd.DataFrame]:
    """The rows by steps and rate, from small steps × rate to large."""
    return [found for _, found in frame.groupby(["path", "n_steps", "rate"])]


def _place(frame: pd.DataFrame) -> str:
    model = str(frame.model.iloc[0]).replace("mlp", "MLP")
    return f"{model}, {kind_of(frame)}, T = {frame.n_rounds.iloc[0]}"


def _line(frame: pd.DataFrame) -> dict[str, str]:
    cells = {}
    for key in FOUR:
        mine = of_method(frame, key)
        cells[label(key)] = f"{mean(mine.value_error)}, {mean(mine.rank_correlation)}"
    return {
        "model, data, rounds": _place(frame),
        "steps × rate": training_of(frame),
        "accuracy": number(accuracy_of(frame)),
        "σ₂/σ₁": mean(frame.drop_duplicates(["setup", "seed"]).second_singular),
        **cells,
        "seeds": str(frame.seed.nunique()),
    }


def _draw(frame: pd.DataFrame, axes: Axes) -> None:
    cells = _cells(frame)
    x = list(range(len(cells)))
    for key in FOUR:
        errors = [min(of_method(cell, key).value_error.mean(), MOST_DRAWN) for cell in cells]
        figures.line(axes, key, x, errors)
    dashes: dict[str, Any] = {"color": "#777777", "ls": (0, (4, 2)), "marker": ""}
    figures.line(axes, "accuracy", x, [accuracy_of(cell) for cell in cells], **dashes)
    axes.set(xlabel="local steps × rate", ylabel="error of values; accuracy", title=_place(frame), ylim=(0, 3))
    figures.ticks(axes, [training_of(cell).replace(" ", "").replace("0.", ".") for cell in cells])


STUDY = Study(
    "regime",
    "The regime map",
    "Each cell shows a method's error (1 is as good as saying that all clients are worth the same) and its rank "
    "correlation with the truth, averaged over seeds. Clients have two classes each (non-IID) or random samples (IID); "
    "client 9 is a copy of client 0. The figure cuts errors at 3. The [appendix](results-appendix.md) has a logistic "
    "model too.",
    section,
    scales={
        "page": {
            **dict.fromkeys(("regime", "regime-logistic"), Extent(10)),
            **dict.fromkeys(("regime-long", "regime-logistic-long"), Extent(10, 100)),
        },
        "tiny": {"digits": Extent(1, 3)},
    },
    cases=cases,
    trial=values.trial,
)
