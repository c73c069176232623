"""Sensitivity: how the settings that the paper leaves open change what is found, on seeds reported nowhere else.

steps × rate      the federations of `fairness`, FedSV alone
noise strength    the federations of `noisy-data`, FedSV alone, by steps and rate too; by these two `calibration`
                  chooses
penalty, rank     ComFedSV on the federations of `fairness`, beside the truth
permutations      a hundred clients, ten of them with flipped labels: the heard round and ComFedSV by permutations drawn
                  one by one and in squares
"""

import re
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from fedworth.studies import fairness, noisy_data, noisy_labels
from fedworth.studies.results.calibration import RATES, STRENGTHS, choices
from fedworth.studies.results.comparing import DATA, accuracy_of, text_of, training_of
from fedworth.studies.results.outcome import Cell, Outcome, Panel, Series
from fedworth.studies.results.records import (
    Record,
    csv_of,
    federation_record,
    found_noisy,
    grouped,
    numbers,
    shortened,
    value_records,
)
from fedworth.studies.results.statistics import chance_of, mean_of
from fedworth.studies.results.study import Rows, Study
from fedworth.studies.trials.extents import Extent
from fedworth.studies.trials.settings import FIRST_CHOICE_SEED, Setup, trained
from fedworth.studies.trials.trial import Row, Trial

TRIED = ((1, 0.003), (1, 0.01), (1, 0.03), (1, 0.1), (1, 0.3), (1, 1.0), (10, 0.03), (10, 0.1), (10, 0.3), (50, 0.1))
"""Local steps and rates of the federations of `fairness`."""

TRIED_IN_NOISE = ((1, 0.1), (1, 0.3), (1, 1.0), (10, 0.1))
TRIED_STRENGTHS = {1: (10.0, 30.0, 100.0, 300.0), 10: (10.0, 30.0, 100.0)}
"""By local steps, of the federations of `noisy-data`: with more noise ten steps diverge."""

ALONE = "fedsv"
"""The reading of FedSV alone, by which settings are chosen."""

MEASURES = ("d", "rank_correlation", "value_error")
SHOWN = (
    "data", "what", "setting", "accuracy", "method", "median d", "P(d > .5)", "ρ with noise", "Jaccard",
    "ρ with truth", "error", "seeds",
)  # fmt: skip


def trials(setup: Setup, extent: Extent, seeds: Sequence[int]) -> list[Trial]:
    """What is varied on a setup, by what its extent says."""
    if extent.special == STRENGTHS:
        kinds = [(trained(setup, *cell), strength) for cell in TRIED_IN_NOISE for strength in TRIED_STRENGTHS[cell[0]]]
        return [_strong(kind, extent, seed, strength) for kind, strength in kinds for seed in seeds]
    if extent.special == "permutations":
        return [_orders(setup, extent, seed) for seed in seeds]
    without = replace(extent, n_truth_seeds=0)
    made = [trial for cell in TRIED for trial in fairness.trials(trained(setup, *cell), without, seeds)]
    scanned = [trial for trial in fairness.trials(setup, extent, seeds) if trial.federation.with_truth]
    return [*(replace(trial, reading=ALONE) for trial in made), *(replace(trial, reading="scan") for trial in scanned)]


def _strong(setup: Setup, extent: Extent, seed: int, strength: float) -> Trial:
    made = noisy_data.noisy(setup, seed, extent.n_rounds, with_truth=False, strength=strength)
    return replace(made, reading=ALONE)


def _orders(setup: Setup, extent: Extent, seed: int) -> Trial:
    """A tenth of the clients a round, everyone in the first."""
    return replace(noisy_labels.noisy(setup, extent, seed, percent=10), reading="orders")


def records_of(rows: Rows) -> list[Record]:
    """The numbers of every setting, a record a seed and method."""
    return [record for setup, found in rows.items() for row in found for record in _varied(setup, row)]


def _varied(setup: str, row: Row) -> list[Record]:
    reading, same = row["reading"], federation_record(setup, row)
    if "orders" in reading:
        named = {**same, "what": "permutations"}
        return [
            {**named, "method": method, "setting": how, "jaccard": found_noisy(values)}
            for how, found in reading["orders"].items()
            for method, values in found.items()
        ]
    if "scanned" in reading:
        return [record for scan in reading["scanned"] for record in _scanned(setup, row, scan)]
    if row["federation"]["noise_shares"]:
        found = value_records({setup: [row]}, ("noise_correlation",))
        named = {"what": STRENGTHS, "setting": row["federation"]["noise_strength"]}
        return [{**record, **named} for record in found]
    found = value_records({setup: [row]}, ("d",))
    return [{**record, "what": RATES, "setting": training_of(same)} for record in found]


def _scanned(setup: str, row: Row, scan: dict[str, Cell]) -> list[Record]:
    made = value_records({setup: [{**row, "reading": {**row["reading"], **scan}}]}, MEASURES)
    named = {"what": str(scan["what"]).replace("_", " "), "setting": scan["setting"]}
    return [{**record, **named} for record in made if record["method"] != "truth"]


def shown(records: Sequence[Record]) -> Outcome:
    """One line a setting and method."""
    columns, rows = csv_of(records)
    lines = tuple(_line(found) for found in grouped(records, *NAMES).values())
    return Outcome(
        study="sensitivity",
        title="Sensitivity: what the settings were chosen by",
        columns=columns,
        rows=rows,
        shown=SHOWN,
        lines=lines,
        claims=(),
        panels=_panels(records),
        notes=tuple(choice.sentence() for choice in choices(records)),
    )


NAMES = ("setup", "what", "setting", "method", "n_steps", "rate")


def _line(records: Sequence[Record]) -> tuple[str, ...]:
    first, d = records[0], numbers(records, "d")
    data = DATA.get(str(first["data_set"]), str(first["data_set"]))
    apart = (f"{np.median(d):.2f}", f"{chance_of([x > 0.5 for x in d]).value:.2f}") if d else ("–", "–")
    names = ("noise_correlation", "jaccard", "rank_correlation", "value_error")
    texts = [text_of(numbers(records, name)) for name in names]
    setting = first["setting"] if isinstance(first["setting"], str) else f"{first['setting']:g}"
    where = f"{setting} ({training_of(first)})" if first["what"] == STRENGTHS else setting
    start = (data, str(first["what"]), where, f"{accuracy_of(records):.2f}", str(first["method"]))
    return (*start, *apart, *texts, str(len({record["seed"] for record in records})))


def _panels(records: Sequence[Record]) -> tuple[Panel, ...]:
    return tuple(
        _panel(str(what), str(data), found) for (what, data), found in grouped(records, "what", "data_set").items()
    )


def _panel(what: str, data: str, records: Sequence[Record]) -> Panel:
    measure, up = DRAWN[what]
    settings = list(dict.fromkeys(record["setting"] for record in records))
    series = []
    for found in grouped(records, "method", *(("n_steps", "rate") if what == STRENGTHS else ())).values():
        of = grouped(found, "setting")
        name = training_of(found[0]) if what == STRENGTHS else str(found[0]["method"])
        y = [mean_of(numbers(of[setting,], measure)).value for setting in settings if (setting,) in of]
        series.append(Series(name, [settings.index(setting) for (setting,) in of], y))
    ticks = tuple(tick_of(setting) for setting in settings)
    return Panel(f"{DATA.get(data, data)}: {what}", "", up, tuple(series), ticks=ticks)


def tick_of(setting: Cell) -> str:
    """A setting below an axis, as short as can be."""
    text = setting if isinstance(setting, str) else f"{setting:g}"
    return re.sub(r"(^|×)0\.", r"\1.", text.replace(" × ", "×"))


DRAWN = {
    RATES: ("d", "mean d"),
    STRENGTHS: ("noise_correlation", "Spearman with noise"),
    "relative penalty": ("value_error", "error of values"),
    "rank": ("value_error", "error of values"),
    "permutations": ("jaccard", "Jaccard"),
}

STUDY = Study(
    "sensitivity",
    "(Not in the paper: it gives neither learning rate, nor noise strength, nor penalty.)",
    trials,
    lambda rows: shown(shortened(records_of(rows))),
    (
        "Seeds from 1000 on, reported nowhere else. *Steps × rate* and *noise strength* (in standard deviations of the "
        "features): FedSV alone. The paper-like setting has, of the federations of one step a round whose model is not "
        "near chance, the one whose median *d* of FedSV (whose mean correlation with the noise) comes nearest to the "
        "paper's; the practical one has its steps and rate given, and the strength of noise by the same rule. "
        "*Relative penalty* and *rank*: ComFedSV beside the truth; nothing was chosen by them. *Permutations*: the "
        "same number, each drawn by itself or in squares, in which every client has every place equally often; "
        "squares are the default everywhere.",
    ),
    first_seed=FIRST_CHOICE_SEED,
    shown=shown,
)
