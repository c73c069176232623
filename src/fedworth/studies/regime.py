"""The regime map: how near each method's values are to the truth, by local steps and learning rate.

Not in the paper, which gives neither. MNIST, N = 10, K = 3, client 9 a copy of client 0, two classes a client and IID,
an MLP and a logistic model. The theory speaks of small steps: the utility matrix is then nearly of rank one.
"""

from collections.abc import Sequence
from dataclasses import replace

from fedworth.studies.fairness import COPIES
from fedworth.studies.results.comparing import accuracy_of, by_method, kind_of, label, listed, text_of, training_of
from fedworth.studies.results.outcome import Cell, Outcome, Panel, Series
from fedworth.studies.results.records import Record, csv_of, grouped, numbers, shortened, value_records
from fedworth.studies.results.statistics import mean_of
from fedworth.studies.results.study import Rows, Study
from fedworth.studies.trials.extents import LONG, Extent
from fedworth.studies.trials.methods import FOUR, METHODS
from fedworth.studies.trials.settings import CELLS, LONG_CELLS, PAPER_SETUPS, Setup, trained
from fedworth.studies.trials.trial import Trial

MEASURES = ("value_error", "rank_correlation", "matrix_error", "d", "gap")
SHORT = 10
"""Federations of more rounds than these have fewer cells."""

MAPPED = FOUR
SHOWN = ("model, data, rounds", "steps × rate", "accuracy", "σ₂/σ₁", *(label(key) for key in MAPPED), "seeds")
ALL_SHOWN = ("where", "method", "matrix error", "value error", "ρ with truth", "median d", "gap", "seeds")
MOST_DRAWN = 3.0
BESIDE = "logistic"
"""The model that stands in the appendix."""


def trials(setup: Setup, extent: Extent, seeds: Sequence[int]) -> list[Trial]:
    """Every cell of steps and rates, two classes a client and IID."""
    is_short = extent.n_rounds <= SHORT
    kinds = [trained(setup, *cell) for cell in (CELLS if is_short else LONG_CELLS)]
    return [
        Trial(
            replace(kind.federation(seed), copies=COPIES, n_rounds=extent.n_rounds, with_truth=True),
            "values" if is_short or not _is_of_spectrum(kind) else "matrix",
        )
        for two_class in kinds
        for kind in (two_class, two_class.iid())
        for seed in seeds
    ]


def _is_of_spectrum(kind: Setup) -> bool:
    """Whether `spectrum` and `rank` look at the same federations, of which they want more."""
    theirs = [PAPER_SETUPS[name] for name in LONG[:2]]
    return (kind.model, kind.n_steps, kind.rate) in {(other.model, other.n_steps, other.rate) for other in theirs}


def records_of(rows: Rows) -> list[Record]:
    """Every method's measures in every cell, and σ₂/σ₁ of its matrix."""
    seconds: dict[tuple[Cell, ...], float] = {
        (setup, row["seed"], row["federation"]["partition"], row["federation"]["n_steps"], row["federation"]["rate"]):
        row["reading"]["singular"][1]
        for setup, found in rows.items()
        for row in found
    }  # fmt: skip
    names = ("setup", "seed", "partition", "n_steps", "rate")
    made = value_records(rows, MEASURES)
    return [{**record, "second_singular": seconds[tuple(record[name] for name in names)]} for record in made]


def shown(records: Sequence[Record]) -> Outcome:
    """The map: errors by steps and rates."""
    columns, rows = csv_of(records)
    places = grouped(records, "model", "partition", "n_rounds")
    return Outcome(
        study="regime",
        title="The regime map",
        columns=columns,
        rows=rows,
        shown=SHOWN,
        lines=tuple(
            _line(mine) for key, found in places.items() if key[0] != BESIDE for mine in _cells(found).values()
        ),
        claims=(),
        panels=tuple(_panel(found) for key, found in places.items() if key[0] != BESIDE),
        all_shown=ALL_SHOWN,
        all_lines=tuple(line for found in places.values() for mine in _cells(found).values() for line in _all(mine)),
        all_panels=tuple(_panel(found) for key, found in places.items() if key[0] == BESIDE),
    )


def _cells(records: Sequence[Record]) -> dict[tuple[Cell, ...], list[Record]]:
    """By steps and rate, from small to large."""
    found = grouped(records, "n_steps", "rate")
    return dict(sorted(found.items(), key=lambda cell: float(cell[0][0] or 0) * float(cell[0][1] or 0)))


def _place(record: Record) -> str:
    return f"{str(record['model']).replace('mlp', 'MLP')}, {kind_of(record)}, T = {record['n_rounds']}"


def _line(records: Sequence[Record]) -> tuple[str, ...]:
    """Of each method its error and its rank correlation, means over seeds."""
    of = grouped(records, "method")
    texts = [
        f"{text_of(numbers(of.get((key,), []), 'value_error'))}, "
        f"{text_of(numbers(of.get((key,), []), 'rank_correlation'))}"
        for key in MAPPED
    ]
    first, n_seeds = records[0], len({record["seed"] for record in records})
    second = text_of(numbers(of.get((FOUR[0],), []), "second_singular"))
    return (_place(first), training_of(first), f"{accuracy_of(records):.2f}", second, *texts, str(n_seeds))


def _all(records: Sequence[Record]) -> list[tuple[str, ...]]:
    where = f"{_place(records[0])}, {training_of(records[0])}"
    made = []
    for (key,), mine in grouped(records, "method").items():
        means = [text_of(numbers(mine, name)) for name in ("matrix_error", "value_error", "rank_correlation")]
        d, gap = sorted(numbers(mine, "d")), text_of(numbers(mine, "gap"))
        made.append((where, METHODS[str(key)].label, *means, f"{d[len(d) // 2]:.2f}", gap, str(len(mine))))
    return made


def _panel(records: Sequence[Record]) -> Panel:
    cells = _cells(records)
    series = []
    for key in MAPPED:
        found = [listed(by_method(mine, "value_error").get(key, {})) for mine in cells.values()]
        y = [min(mean_of(errors).value, MOST_DRAWN) for errors in found]
        series.append(Series(key, list(range(len(cells))), y))
    accuracy = [accuracy_of(mine) for mine in cells.values()]
    series.append(Series("accuracy", list(range(len(cells))), accuracy))
    ticks = tuple(f"{steps}×{rate:g}".replace("0.", ".") for steps, rate in cells)
    return Panel(
        _place(records[0]), "local steps × rate", "error of values; accuracy", tuple(series), ticks=ticks, limits=(0, 3)
    )


STUDY = Study(
    "regime",
    "(Not in the paper, which gives neither steps nor rate.)",
    trials,
    lambda rows: shown(shortened(records_of(rows))),
    (
        "A cell has a method's error (1: as good as saying that all clients are worth the same) and its rank "
        "correlation with the truth, means over seeds. Two classes a client (non-IID) or shared out at random (IID); "
        "client 9 is a copy of client 0. Drawn errors end at 3. A logistic model: [appendix](results-appendix.md).",
    ),
    shown=shown,
)
