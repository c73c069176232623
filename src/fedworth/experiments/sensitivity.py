"""Sensitivity: how the settings that the paper leaves open change what is found, on seeds reported nowhere else.

Learning rate × method on the federations of `fairness` (d, correlation with the truth, how much the loss falls: the
rate is chosen by that), and noise strength × method on those of `noisy-data`.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from fedworth.experiments import fairness, noisy_data
from fedworth.experiments.comparing import listed, truth_correlations
from fedworth.experiments.methods import METHODS
from fedworth.experiments.outcome import Cell, Outcome, Panel, Series
from fedworth.experiments.settings import FIRST_CHOICE_SEED, RATES, STRENGTHS, Extent, Setup
from fedworth.experiments.statistics import chance_of, mean_of, rank_correlation
from fedworth.experiments.study import Rows, Study
from fedworth.experiments.trial import Row, Trial

COLUMNS = (
    "data_set", "what", "setting", "method", "n_seeds", "share_above_half", "median_d", "truth_correlation",
    "matrix_error", "noise_correlation", "loss_fall",
)  # fmt: skip
SHOWN = ("data", "setting", "loss falls by", *(method.label for method in METHODS.values()), "seeds")


def trials(setup: Setup, extent: Extent, seeds: Sequence[int]) -> list[Trial]:
    """The federations of `fairness` at every learning rate, and those of `noisy-data` at every strength."""
    made = [trial for rate in RATES for trial in fairness.trials(replace(setup, rate=rate), extent, seeds)]
    if setup.partition != "natural":  # clients with sources of their own are no ground for noise to show on
        for strength in STRENGTHS:
            made += [noisy_data.noisy(setup, seed, extent.n_rounds, strength=strength) for seed in seeds]
    return made


def findings(rows: Rows) -> Outcome:
    """One line a setting, one column a method."""
    grouped = {(name, *key): found for name, all_ in rows.items() for key, found in _by_setting(all_).items()}
    cells = [cell for (name, what, x), found in grouped.items() for cell in _cells(name, what, x, found)]
    return Outcome(
        study="sensitivity",
        title="Sensitivity: learning rate, noise strength, penalty",
        columns=COLUMNS,
        rows=tuple(cells),
        shown=SHOWN,
        lines=tuple(line for key in grouped for line in _lines(key, cells)),
        claims=(),
        panels=tuple(_panel(name, what, cells) for name, what in dict.fromkeys(key[:2] for key in grouped)),
    )


def _by_setting(rows: Sequence[Row]) -> dict[tuple[str, float], list[Row]]:
    found: dict[tuple[str, float], list[Row]] = {}
    for row in rows:
        federation = row["federation"]
        is_noisy = bool(federation["noise_shares"])
        key = ("noise strength", federation["noise_strength"]) if is_noisy else ("rate", federation["rate"])
        found.setdefault(key, []).append(row)
    return found


def _cells(name: str, what: str, setting: float, rows: Sequence[Row]) -> list[tuple[Cell, ...]]:
    fall = float(np.mean([row["reading"]["loss_fall"] for row in rows]))
    noise = noisy_data.correlations(rows) if what != "rate" else {}
    apart = fairness.differences(rows) if what == "rate" else {}
    agreeing = truth_correlations(rows, rank_correlation)
    made: list[tuple[Cell, ...]] = []
    for key in agreeing:
        d = listed(apart.get(key, {}))
        fair = (chance_of([x > 0.5 for x in d]).value, float(np.median(d))) if d else (None, None)
        rho, found = mean_of(listed(agreeing[key])).value, mean_of(listed(noise.get(key, {}))).value
        made.append((name, what, setting, key, len(rows), *fair, rho, _matrix_error(key, rows), found, fall))
    return made


def _matrix_error(key: str, rows: Sequence[Row]) -> float | None:
    errors = [found[key] for row in rows if key in (found := row["reading"]["matrix_error"])]
    return float(np.mean(errors)) if errors else None


def _lines(key: tuple[str, str, float], cells: Sequence[tuple[Cell, ...]]) -> list[tuple[str, ...]]:
    """For a rate: P(d > 0.5), and the correlation with the truth; for a noise strength: that with the true order."""
    mine = {str(row[3]): dict(zip(COLUMNS, row, strict=True)) for row in cells if row[:3] == key}
    first = next(iter(mine.values()))
    shown = {"rate": ("share_above_half", "truth_correlation"), "noise strength": ("noise_correlation",)}
    names = {"share_above_half": "P(d > 0.5)", "truth_correlation": "ρ with truth", "noise_correlation": "ρ with noise"}
    made = []
    for column in shown[key[1]]:
        texts = [f"{mine[m][column]:.2f}" if m in mine else "–" for m in METHODS]
        named = (key[0], f"{key[1]} {key[2]:g}: {names[column]}", f"{first['loss_fall']:.2f}")
        made.append((*named, *texts, str(first["n_seeds"])))
    return made


def _panel(name: str, what: str, cells: Sequence[tuple[Cell, ...]]) -> Panel:
    column = COLUMNS.index("median_d" if what == "rate" else "noise_correlation")
    mine = [row for row in cells if row[:2] == (name, what)]
    settings = list(dict.fromkeys(float(row[2] or 0) for row in mine))
    series = []
    for key in METHODS:
        found = [float(row[column] or 0) for row in mine if row[3] == key]
        series.append(Series(key, list(range(len(found))), found))
    ticks = tuple(f"{x:g}" for x in settings)
    if what == "rate":
        return Panel(name, "learning rate", "median d", tuple(series), ticks=ticks, limits=(-0.05, 2))
    across, up = "noise strength (standard deviations)", "Spearman with the true order"
    return Panel(name, across, up, tuple(series), ticks=ticks, limits=(-0.6, 1.05))


STUDY = Study(
    "sensitivity",
    "(Not in the paper: it gives neither learning rate, nor noise strength, nor penalty.)",
    trials,
    findings,
    (
        "These runs chose the learning rate (the largest fall of the loss) and the noise strength (where the truth "
        "ranks best); the studies above are on other seeds. Few seeds: read trends, not digits.",
    ),
    first_seed=FIRST_CHOICE_SEED,
)
