"""Markdown tables from data frames, and numbers as text."""

from collections.abc import Iterable, Mapping
from typing import Any

import pandas as pd

NONE = "–"


def markdown(frame: pd.DataFrame, n_names: int = 1) -> str:
    """The frame as a Markdown table. The first columns are names, the others numbers (right-aligned).

    A name in the first column that repeats the line above is left blank.
    """
    cells = frame.astype(str)
    first = cells.iloc[:, 0].copy()
    cells.isetitem(0, first.where(first != first.shift(), ""))
    rule = [" --- "] * n_names + [" ---: "] * (cells.shape[1] - n_names)
    lines = ["| " + " | ".join(map(str, cells.columns)) + " |", "|" + "|".join(rule) + "|"]
    return "\n".join([*lines, *("| " + " | ".join(line) + " |" for line in cells.itertuples(index=False))])


def table(lines: Iterable[Mapping[str, Any]]) -> pd.DataFrame:
    """A frame of texts from one mapping a line."""
    return pd.DataFrame(list(lines))


def number(value: Any, form: str = ".2f") -> str:
    """A number as text; a dash if there is none."""
    return NONE if value is None or pd.isna(value) else format(float(value), form)


def mean(values: Any, form: str = ".2f") -> str:
    """The mean of a column as text; a dash if there are no numbers."""
    return number(values.mean() if len(values) else None, form)


DATA = {
    "mnist": "MNIST",
    "synthetic": "synthetic",
    "synthetic-iid": "synthetic",
    "fashion-mnist": "Fashion-MNIST",
    "cifar10": "CIFAR-10",
}


def data_of(frame: pd.DataFrame) -> str:
    """The name of the rows' data set."""
    name = str(frame.data_set.iloc[0])
    return DATA.get(name, name)


def training_of(frame: pd.DataFrame) -> str:
    """Local steps and learning rate of the rows' federations."""
    return f"{frame.n_steps.iloc[0]} × {frame.rate.iloc[0]:g}"


def place_of(frame: pd.DataFrame) -> str:
    """Data set, local steps and learning rate."""
    return f"{data_of(frame)}, {training_of(frame)}"


def kind_of(frame: pd.DataFrame) -> str:
    """Whether the clients' data is identically distributed."""
    return "IID" if frame.partition.iloc[0] == "iid" else "non-IID"


def accuracy_of(frame: pd.DataFrame) -> float:
    """The mean accuracy after the last round; each federation counts once."""
    names = ["setup", "partition", "seed", "n_participants"]
    return float(frame.drop_duplicates(names).accuracy.mean())
