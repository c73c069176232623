"""Records: a study's numbers, one line a seed and method. They are what the CSV holds, and all that a page is made of.

    value_error        ‖centred values − centred truth‖ / ‖centred truth‖; 1 is as good as "all are worth the same"
    rank_correlation   Spearman's with the truth
    d, gap             of client 0 and its copy 9: |s_0 − s_9| / max(|s_0|, |s_9|), and the same over mean |truth|
    noise_correlation  Spearman's with the order from clean to noisy
    jaccard            of the noisy clients and the equally many least valued

The heard round's values stand for all rounds, so they count T times.
"""

import csv
import io
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from fedworth.studies.results.outcome import Cell
from fedworth.studies.results.statistics import jaccard, rounded_correlation
from fedworth.studies.results.study import Rows
from fedworth.studies.trials.methods import METHODS
from fedworth.studies.trials.trial import Row
from fedworth.theory.fairness import relative_difference

Record = Mapping[str, Cell]
DIGITS = 6
SAME = (
    "setup", "data_set", "model", "partition", "n_clients", "n_participants", "n_rounds", "n_steps", "rate", "seed",
    "accuracy",
)  # fmt: skip
"""What every record of every study says of its federation; `accuracy` is that after the last round."""


def federation_record(setup: str, row: Row) -> dict[str, Cell]:
    """What a record says of the federation that it is of."""
    federation, reading = row["federation"], row["reading"]
    known = {**federation, "setup": setup, "data_set": federation["dataset"], "seed": row["seed"]}
    return {**{name: known[name] for name in SAME[:-1]}, "accuracy": reading["accuracy"][-1]}


def value_records(rows: Rows, measures: Sequence[str]) -> list[Record]:
    """A record for every trial and method, with those of the measures that it has."""
    made: list[Record] = []
    for setup, found in rows.items():
        for row in found:
            same = federation_record(setup, row)
            made += [{**same, "method": key, **_measured(row, key, measures)} for key in _valued(row)]
    return made


def _valued(row: Row) -> list[str]:
    return [key for key in METHODS if key in row["reading"]["values"]]


def _measured(row: Row, key: str, measures: Sequence[str]) -> dict[str, Cell]:
    reading, n_rounds = row["reading"], row["federation"]["n_rounds"]
    values = np.array(reading["values"][key]) * (n_rounds if key == "heard-round" else 1)
    truth = reading["values"].get("truth")
    found = {name: MEASURES[name](values, None if truth is None else np.array(truth)) for name in measures}
    error = reading["matrix_error"].get(key) if "matrix_error" in measures else None
    return {**found, **({"matrix_error": error} if "matrix_error" in measures else {})}


def value_error(values: Any, truth: Any) -> float | None:
    """The distance of centred values from centred true ones, over the length of the latter."""
    if truth is None:
        return None
    centred = truth - truth.mean()
    return float(np.linalg.norm(values - values.mean() - centred) / np.linalg.norm(centred))


def found_noisy(values: Sequence[float]) -> float:
    """Jaccard of the noisy tenth and the as many of lowest value; equal values in the order of the clients."""
    n_noisy = round(0.1 * len(values))
    # noisy clients come first, and must not win ties for it
    lowest = len(values) - 1 - np.argsort(np.asarray(values)[::-1], kind="stable")[:n_noisy]
    return jaccard(set(range(n_noisy)), set(lowest.tolist()))


MEASURES: Mapping[str, Callable[[Any, Any], float | None]] = {
    "value_error": value_error,
    "rank_correlation": lambda v, truth: None if truth is None else rounded_correlation(v.tolist(), truth.tolist()),
    "d": lambda v, _: relative_difference(float(v[0]), float(v[9])),
    "gap": lambda v, truth: None if truth is None else float(abs(v[0] - v[9]) / np.abs(truth).mean()),
    "noise_correlation": lambda v, _: rounded_correlation(v.tolist(), [-client for client in range(len(v))]),
    "jaccard": lambda v, _: found_noisy(v.tolist()),
    "matrix_error": lambda _, __: None,  # read off the completion, not off values
}


def csv_of(records: Sequence[Record]) -> tuple[tuple[str, ...], tuple[tuple[Cell, ...], ...]]:
    """Columns and rows of a CSV; a measure that a record lacks is an empty cell."""
    columns = tuple(dict.fromkeys(name for record in records for name in record))
    return columns, tuple(tuple(_short(record.get(name)) for name in columns) for record in records)


def records_from(text: str) -> list[Record]:
    """The records that a study's CSV holds."""
    return [{name: _cell(cell) for name, cell in line.items()} for line in csv.DictReader(io.StringIO(text))]


def shortened(records: Sequence[Record]) -> list[Record]:
    """The records as their CSV will hold them, so that a page made now and one made later are the same."""
    return [{name: _short(cell) for name, cell in record.items()} for record in records]


def numbers(records: Iterable[Record], name: str) -> list[float]:
    """One column, without what is missing."""
    found = [record.get(name) for record in records]
    return [float(cell) for cell in found if isinstance(cell, int | float) and math.isfinite(cell)]


def grouped(records: Iterable[Record], *names: str) -> dict[tuple[Cell, ...], list[Record]]:
    """The records by what they say under these names, in the order in which they come."""
    found: dict[tuple[Cell, ...], list[Record]] = {}
    for record in records:
        found.setdefault(tuple(record.get(name) for name in names), []).append(record)
    return found


def _short(cell: Cell) -> Cell:
    return float(f"{cell:.{DIGITS}g}") if isinstance(cell, float) and math.isfinite(cell) else cell


def _cell(text: str) -> Cell:
    if text == "":
        return None
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
