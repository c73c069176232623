"""Sensitivity: how settings that the paper leaves open change the results, on seeds that no other study reports.

steps × rate       the federations of `fairness`, valued by FedSV only
noise strength     the federations of `noisy-data`, valued by FedSV only; `calibration` chooses by these two
relative penalty   ComFedSV on the federations of `fairness`, compared with the truth
rank               the same
permutations       a hundred clients, ten with flipped labels: ComFedSV from permutations that are drawn one by one
                   or in balanced squares
"""

import re
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from fedworth import FactorSettings
from studies import fairness, figures, noisy_data, noisy_labels, values
from studies.calibration import RATES, STRENGTHS, choices
from studies.federations import (
    Truth,
    accuracies,
    comfedsv,
    federation,
    measured,
    random_permutations,
    simulated,
)  # fmt: skip
from studies.setups import FIRST_CHOICE_SEED, Extent, Setup
from studies.study import Case, Row, Section, Study
from studies.tables import accuracy_of, data_of, mean, number, table, training_of
from studies.values import jaccard, measures

TRIED = ((1, 0.003), (1, 0.01), (1, 0.03), (1, 0.1), (1, 0.3), (1, 1.0), (10, 0.03), (10, 0.1), (10, 0.3), (50, 0.1))
TRIED_IN_NOISE = ((1, 0.1), (1, 0.3), (1, 1.0), (10, 0.1))
TRIED_STRENGTHS = {1: (10.0, 30.0, 100.0, 300.0), 10: (10.0, 30.0, 100.0)}  # ten steps diverge with more noise
SCANS: dict[str, tuple[float, ...]] = {"relative_penalty": (0.1, 0.01, 0.001, 0.0001), "rank": (1, 3, 5, 10)}
PERMUTATIONS = "permutations"


def cases(name: str, setup: Setup, extent: Extent, seeds: Sequence[int]) -> list[Case]:
    """What is varied on a setup depends on its extent."""
    fedsv: dict[str, Any] = {"reads": "fedsv", "only": "fedsv"}
    same: dict[str, Any] = {"n_rounds": extent.n_rounds, "with_truth": False}
    if extent.special == PERMUTATIONS:
        made = [noisy_labels.noisy(name, setup, extent, seed, percent=10) for seed in seeds]
        return [Case(case.setup, case.federation, {**case.options, "reads": PERMUTATIONS}) for case in made]
    if extent.special == STRENGTHS:
        kinds = [(setup.trained(*cell), strength) for cell in TRIED_IN_NOISE for strength in TRIED_STRENGTHS[cell[0]]]
        return [
            noisy_data.noisy(name, kind, seed, fedsv, noise_strength=strength, **same)
            for kind, strength in kinds
            for seed in seeds
        ]
    varied = [
        Case(name, setup.trained(*cell).federation(seed, copies=fairness.COPIES, **same), fedsv)
        for cell in TRIED
        for seed in seeds
    ]
    scanned = [case for case in fairness.cases(name, setup, extent, seeds) if case.federation.with_truth]
    return [*varied, *(Case(name, case.federation, {"reads": "scan"}) for case in scanned)]


def trial(case: Case, scratch: Path, data: Path | None) -> list[Row]:
    """The rows of every setting that is tried on this federation."""
    if case.options["reads"] == "scan":
        return _scan(case, scratch, data)
    if case.options["reads"] == PERMUTATIONS:
        return _permutations(case, scratch, data)
    settings = case.federation
    (row,) = values.trial(case, scratch, data)
    if settings.noise_shares:
        return [{**row, "what": STRENGTHS, "setting": f"{settings.noise_strength:g}"}]
    return [{**row, "what": RATES, "setting": f"{settings.n_steps} × {settings.rate:g}"}]


def _scan(case: Case, scratch: Path, data: Path | None) -> list[Row]:
    ledger, task = simulated(case.federation, scratch, data)
    of = federation(ledger, task)
    truth, accuracy = Truth(of).values, accuracies(ledger, task)[-1]
    rows = []
    for what, tried in SCANS.items():
        for setting in tried:
            for key, kind in (("comfedsv", "counts"), ("comfedsv-uniform", "uniform")):
                factors = FactorSettings(**{"penalty_kind": kind, what: setting})  # type: ignore[arg-type]
                found = measures(comfedsv(of.utility_matrix(), factors)[0], truth, case.federation)
                named = {"method": key, "what": what.replace("_", " "), "setting": f"{setting:g}"}
                rows.append({"accuracy": accuracy, **named, **found})
    return rows


def _permutations(case: Case, scratch: Path, data: Path | None) -> list[Row]:
    settings, n = case.federation, case.options["n_permutations"]
    ledger, task = simulated(settings, scratch, data)
    of = federation(ledger, task, permutations=n, seed=settings.seed)
    squares = of.utility_matrix()
    assert squares.permutations is not None
    drawn = random_permutations(settings.n_clients, len(squares.permutations), np.random.default_rng(settings.seed))
    noisy = np.flatnonzero(settings.flip_shares).tolist()
    same = {"accuracy": accuracies(ledger, task)[-1], "method": "comfedsv", "what": PERMUTATIONS}
    return [
        {**same, "setting": how, "jaccard": jaccard(comfedsv(matrix, FactorSettings())[0], noisy)}
        for how, matrix in (("squares", squares), ("random", measured(of, drawn)))
    ]


def section(frame: pd.DataFrame) -> Section:
    """One line a setting and method."""
    frame = frame.reindex(columns=dict.fromkeys([*frame.columns, *MEASURES]))
    names = ["setup", "what", "setting", "method", "n_steps", "rate"]
    return Section(
        table(_line(found) for _, found in frame.groupby(names, sort=False)),
        panels=[partial(_draw, found) for _, found in frame.groupby(["what", "data_set"], sort=False)],
        notes=[choice.sentence() for choice in choices(frame)],
        n_names=2,
    )


MEASURES = ("d", "noise_correlation", "jaccard", "rank_correlation", "value_error")


def _line(frame: pd.DataFrame) -> dict[str, str]:
    what, setting = str(frame.what.iloc[0]), str(frame.setting.iloc[0])
    d = frame.d.dropna()
    return {
        "data": data_of(frame),
        "what": what,
        "setting": f"{setting} ({training_of(frame)})" if what == STRENGTHS else setting,
        "accuracy": number(accuracy_of(frame)),
        "method": str(frame.method.iloc[0]),
        "median d": number(d.median() if len(d) else None),
        "P(d > .5)": number((d > 0.5).mean() if len(d) else None),
        "ρ with noise": mean(frame.noise_correlation),
        "Jaccard": mean(frame.jaccard),
        "ρ with truth": mean(frame.rank_correlation),
        "error": mean(frame.value_error),
        "seeds": str(frame.seed.nunique()),
    }


DRAWN = {
    RATES: ("d", "mean d"),
    STRENGTHS: ("noise_correlation", "Spearman with noise"),
    "relative penalty": ("value_error", "error of values"),
    "rank": ("value_error", "error of values"),
    PERMUTATIONS: ("jaccard", "Jaccard"),
}


def _draw(frame: pd.DataFrame, axes: Axes) -> None:
    what = str(frame.what.iloc[0])
    measure, up = DRAWN[what]
    settings = list(frame.setting.unique())
    by = ["n_steps", "rate"] if what == STRENGTHS else ["method"]
    for position, (_, found) in enumerate(frame.groupby(by, sort=False)):
        name = training_of(found) if what == STRENGTHS else str(found.method.iloc[0])
        means = found.groupby("setting", sort=False)[measure].mean()
        figures.line(axes, name, [settings.index(setting) for setting in means.index], means, position)
    figures.ticks(axes, [re.sub(r"(^|×)0\.", r"\1.", setting.replace(" × ", "×")) for setting in settings])
    axes.set(title=f"{data_of(frame)}: {what}", ylabel=up)


STUDY = Study(
    "sensitivity",
    "Sensitivity: how the settings were chosen",
    "These seeds start at 1000 and no other study reports them. *Steps × rate* and *noise strength* (in standard "
    "deviations of the features) show FedSV only. The paper-like setting is one step a round; of those whose model is "
    "not near chance, it is the one where FedSV's median *d* (or mean correlation with the noise) is nearest to the "
    "paper's. In the practical setting steps and rate are given, and the strength of the noise is chosen by the same "
    "rule. *Relative penalty* and *rank* show ComFedSV compared with the truth; nothing was chosen by them. "
    "*Permutations* compares the same number of permutations, each drawn by itself or in squares in which every client "
    "has every position equally often. Squares are the default everywhere.",
    section,
    scales={
        "page": {
            **dict.fromkeys(("mnist", "synthetic"), Extent(20, n_truth_seeds=5)),
            **dict.fromkeys(("mnist-noise", "synthetic-noise"), Extent(10, special=STRENGTHS)),
            "labels": Extent(10, n_clients=100, special=PERMUTATIONS),
        },
        "tiny": {
            "synthetic": Extent(1, 2),
            "synthetic-iid": Extent(1, 2, special=STRENGTHS),
            "digits": Extent(1, 2, n_clients=20, n_permutations=20, special=PERMUTATIONS),
        },
    },
    cases=cases,
    trial=trial,
    first_seed=FIRST_CHOICE_SEED,
)
