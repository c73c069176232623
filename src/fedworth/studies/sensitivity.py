"""Sensitivity: how the settings that the paper leaves open change what is found, on seeds reported nowhere else.

rate            the federations of `fairness` (d, correlation with the truth, how much the loss falls: the rate is
                chosen by that); of convolutional models those of `models` (accuracy alone)
noise strength  the federations of `noisy-data`
flipped labels  the federations of `noisy-labels` at a fifth of the clients a round
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import numpy as np

from fedworth.studies import fairness, models, noisy_data, noisy_labels
from fedworth.studies.results.comparing import listed, truth_correlations
from fedworth.studies.results.outcome import Cell, Outcome, Panel, Series
from fedworth.studies.results.statistics import chance_of, mean_of, rounded_correlation
from fedworth.studies.results.study import Rows, Study
from fedworth.studies.trials.extents import Extent
from fedworth.studies.trials.methods import METHODS
from fedworth.studies.trials.settings import (
    CONVOLUTIONAL_RATES,
    FIRST_CHOICE_SEED,
    FLIPS,
    RATES,
    STRENGTHS,
    Setup,
)
from fedworth.studies.trials.trial import Row, Trial

FLIPPED_PERCENT = 20  # of the clients a round
COLUMNS = (
    "data_set", "what", "setting", "method", "n_seeds", "share_above_half", "median_d", "truth_correlation",
    "matrix_error", "noise_correlation", "jaccard", "loss_fall", "accuracy",
)  # fmt: skip
SHOWN = ("data", "setting", "loss falls by", "accuracy", *(method.label for method in METHODS.values()), "seeds")

Record = dict[str, Cell]
"""A line of numbers by column; one that is missing is a number that there is none of."""


@dataclass(frozen=True, slots=True)
class Varied:
    """One setting that is varied: how it is read off a row, and what of it is shown."""

    setting: Callable[[Row], float]
    shown: tuple[tuple[str, str], ...] = ()  # columns by method, and what they are called
    drawn: tuple[str, str, tuple[float, float]] = ("accuracy", "accuracy in ten rounds", (0, 1))


FAIRNESS: Any = (
    (("share_above_half", "P(d > 0.5)"), ("truth_correlation", "ρ with truth")),
    ("median_d", "median d", (-0.05, 2)),
)

VARIED = {
    "rate": Varied(lambda row: float(row["federation"]["rate"]), *FAIRNESS),
    "relative penalty": Varied(lambda row: float(row["scanned"][1]), *FAIRNESS),
    "rank": Varied(lambda row: float(row["scanned"][1]), *FAIRNESS),
    "noise strength": Varied(
        lambda row: float(row["federation"]["noise_strength"]),
        (("noise_correlation", "ρ with noise"),),
        ("noise_correlation", "Spearman with the true order", (-1, 1.05)),
    ),
    "flipped labels": Varied(
        lambda row: max(row["federation"]["flip_shares"]),
        (("jaccard", "Jaccard"),),
        ("jaccard", "Jaccard coefficient", (0, 1.05)),
    ),
    "rate, by accuracy": Varied(lambda row: float(row["federation"]["rate"])),
}


def trials(setup: Setup, extent: Extent, seeds: Sequence[int]) -> list[Trial]:
    """Every learning rate, every noise strength and every share of flipped labels; of slow models the rates alone."""
    if setup.is_convolutional:
        at_rates = [models.trials(replace(setup, rate=rate), extent, seeds) for rate in CONVOLUTIONAL_RATES]
        return [trial for made in at_rates for trial in made]
    made = [trial for rate in RATES for trial in fairness.trials(replace(setup, rate=rate), extent, seeds)]
    made += [replace(trial, reading="scan") for trial in fairness.trials(setup, extent, seeds)]
    if setup.partition != "natural":  # clients with sources of their own are no ground for noise to show on
        made += [noisy_data.noisy(setup, seed, extent.n_rounds, strength=s) for s in STRENGTHS for seed in seeds]
        made += [
            noisy_labels.noisy(setup, extent, seed, percent=FLIPPED_PERCENT, flipped=flipped)
            for flipped in FLIPS
            for seed in seeds
        ]
    return made


def findings(rows: Rows) -> Outcome:
    """One line a setting, one column a method."""
    grouped = {(name, *key): found for name, all_ in rows.items() for key, found in _by_setting(all_).items()}
    records = {key: _records(*key, found) for key, found in grouped.items()}
    return Outcome(
        study="sensitivity",
        title="Sensitivity: learning rate, penalty, rank, noise strength, flipped labels",
        columns=COLUMNS,
        rows=tuple(tuple(record.get(column) for column in COLUMNS) for found in records.values() for record in found),
        shown=SHOWN,
        lines=tuple(line for found in records.values() for line in _lines(found)),
        claims=(),
        panels=tuple(_panel(name, what, records) for name, what in dict.fromkeys(key[:2] for key in grouped)),
    )


def _kind_of(row: Row) -> str:
    federation = row["federation"]
    if "accuracy" in row["reading"]:
        return "rate, by accuracy"
    if "scanned" in row:
        return str(row["scanned"][0])
    return "noise strength" if federation["noise_shares"] else "flipped labels" if federation["flip_shares"] else "rate"


def _by_setting(rows: Sequence[Row]) -> dict[tuple[str, float], list[Row]]:
    found: dict[tuple[str, float], list[Row]] = {}
    for row in chain.from_iterable(map(_one_by_one, rows)):
        kind = _kind_of(row)
        found.setdefault((kind, VARIED[kind].setting(row)), []).append(row)
    return found


def _one_by_one(row: Row) -> list[Row]:
    """A row that scanned several settings of the completion as a row for each."""
    if "scanned" not in row["reading"]:
        return [row]
    fall = row["reading"]["loss_fall"]
    return [
        {**row, "scanned": (scan["what"].replace("_", " "), scan["setting"]), "reading": {"loss_fall": fall, **scan}}
        for scan in row["reading"]["scanned"]
    ]


def _records(name: str, what: str, setting: float, rows: Sequence[Row]) -> list[Record]:
    """The numbers of one setting: a record a method, or a single one where only the accuracy was read."""
    same: Record = {"data_set": name, "what": what, "setting": setting, "n_seeds": len({row["seed"] for row in rows})}
    if "accuracy" in rows[0]["reading"]:
        best = [max(row["reading"]["accuracy"]) for row in rows]
        return [{**same, "accuracy": float(np.mean(best))}]
    same["loss_fall"] = float(np.mean([row["reading"]["loss_fall"] for row in rows]))
    return [{**same, "method": key, **numbers} for key, numbers in _by_method(what, rows).items()]


def _by_method(what: str, rows: Sequence[Row]) -> dict[str, Record]:
    agreeing = truth_correlations(rows, rounded_correlation)
    apart = fairness.differences(rows) if what in ("rate", "relative penalty", "rank") else {}
    noise = noisy_data.correlations(rows) if what == "noise strength" else {}
    found = noisy_labels.jaccards(rows) if what == "flipped labels" else {}
    made: dict[str, Record] = {}
    for key in METHODS:
        record: Record = {}
        if key in agreeing:
            record |= {"truth_correlation": mean_of(listed(agreeing[key])).value, "matrix_error": _off(key, rows)}
        if key in apart:
            d = listed(apart[key])
            record |= {"share_above_half": chance_of([x > 0.5 for x in d]).value, "median_d": float(np.median(d))}
        if key in noise:
            record["noise_correlation"] = mean_of(listed(noise[key])).value
        if key in found:
            record["jaccard"] = mean_of(listed(found[key])).value
        if record:
            made[key] = record
    return made


def _off(key: str, rows: Sequence[Row]) -> float | None:
    """How far a method's completion is from the truth."""
    errors = [found[key] for row in rows if key in (found := row["reading"]["matrix_error"])]
    return float(np.mean(errors)) if errors else None


def _lines(records: list[Record]) -> list[tuple[str, ...]]:
    """A line for each number that is shown of this setting."""
    first, mine = records[0], {record.get("method"): record for record in records}
    setting = f"{first['what']} {first['setting']:g}"
    start, end = (_text(first, "loss_fall", ".2f"), _text(first, "accuracy", ".1%")), str(first["n_seeds"])
    if "accuracy" in first:
        return [(str(first["data_set"]), setting, *start, *("–" for _ in METHODS), end)]
    made = []
    for column, called in VARIED[str(first["what"])].shown:
        texts = [_text(mine.get(key, {}), column, ".2f") for key in METHODS]
        made.append((str(first["data_set"]), f"{setting}: {called}", *start, *texts, end))
    return made


def _text(record: Record, column: str, style: str) -> str:
    return "–" if record.get(column) is None else format(record[column], style)


def _panel(name: str, what: str, records: dict[tuple[str, str, float], list[Record]]) -> Panel:
    column, up, limits = VARIED[what].drawn
    settings = [key[2] for key in records if key[:2] == (name, what)]
    mine = [record for setting in settings for record in records[name, what, setting]]
    series = []
    for method in dict.fromkeys(record.get("method") for record in mine):
        found = [(settings.index(r["setting"]), r[column]) for r in mine if r.get("method") == method and column in r]  # type: ignore[arg-type]
        series.append(Series(str(method or "accuracy"), [x for x, _ in found], [float(y or 0) for _, y in found]))
    return Panel(f"{name}: {what}", what, up, tuple(series), ticks=tuple(f"{x:g}" for x in settings), limits=limits)


STUDY = Study(
    "sensitivity",
    "(Not in the paper: it gives neither learning rate, nor noise strength, nor penalty.)",
    trials,
    findings,
    (
        "These runs chose the learning rate (the largest fall of the loss; of the convolutional models the best "
        "accuracy in ten rounds, mean of IID and not) and the noise strength (where the truth ranks best); the "
        "studies above are on other seeds. Rank and penalty, a share of $\\lambda_{\\text{collapse}}$, are the "
        "package's defaults (5 and 0.01), not chosen by these runs. *Flipped labels*: `noisy-labels` with fewer "
        "flips, ten rounds and a fifth of the clients a round. Few seeds: read trends, not digits.",
    ),
    first_seed=FIRST_CHOICE_SEED,
)
