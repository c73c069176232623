"""Luck: how far values move if the same federation is trained again, with other batches and other participants.

Data, partition and starting model stay the same; only the seed of batches and participants changes. All values are
true values on the population (see `coverage`), so neither the completion nor the test set plays a part. One row a
federation, of eight runs:

    luck      rms over clients of the standard deviation over runs / sd of the mean true values
    printed   rms of the standard deviations that the runs print / the same; they leave training luck out
    one_run   share of the 90 % intervals of a single run that hold the mean true value over the other runs
    of_runs   the same of the intervals that the mean of three runs has (`fedworth report RUN1 RUN2 RUN3`)

The mean over runs is itself uncertain, and so is the population: the standard errors of both are added to the
half-width of an interval, by the root of the sum of squares.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

import fedworth
from studies import figures
from studies.coverage import FIRST_SEED, KINDS, OURS, by_kind, cases, divided, errors_of, held, rms, valued
from studies.federations import simulated
from studies.setups import Extent
from studies.study import Case, Row, Section, Study
from studies.tables import number, table

N_RUNS, N_MEAN = 8, 3
SIZE = 500  # test samples of the server


def trial(case: Case, scratch: Path, data: Path | None) -> list[Row]:
    """One row: the values of all runs against each other."""
    reports, truths, errors = [], [], []
    for run in range(N_RUNS):
        settings = replace(case.federation, training_seed=FIRST_SEED + run)
        ledger, whole = simulated(settings, scratch / str(run), data)
        tests, fresh = divided(whole, settings.seed)
        task = next((test for test in tests if len(test.labels) == SIZE), tests[0])
        population = valued(ledger, fresh, "truth").chosen
        reports.append(valued(ledger, task, OURS))
        truths.append(population.values)
        errors.append(errors_of(population))
    true, spread = np.stack(truths), float(np.mean(truths, axis=0).std())  # (n_runs, n_clients)
    printed = [errors_of(report.chosen) for report in reports]

    def covered(report: fedworth.Report, used: Sequence[int]) -> float:
        others = np.delete(true, list(used), axis=0)
        spare = np.hypot(others.std(axis=0, ddof=1) / np.sqrt(len(others)), np.mean(errors, axis=0))
        return held(report.chosen.intervals, others.mean(axis=0), spare)

    means = [range(start, start + N_MEAN) for start in range(0, N_RUNS - N_MEAN + 1, N_MEAN)]
    return [
        {
            "kind": KINDS.get(case.setup, KINDS["two-classes"]).name,
            "luck": rms(true.std(axis=0, ddof=1)) / spread,
            "printed": rms(printed) / spread,
            "one_run": float(np.mean([covered(report, [run]) for run, report in enumerate(reports)])),
            "of_runs": float(
                np.mean([covered(fedworth.Report.mean([reports[run] for run in used]), used) for used in means])
            ),
        }
    ]


def section(frame: pd.DataFrame) -> Section:
    """Luck beside what is printed, and how often intervals hold the mean over trainings."""
    groups = by_kind(frame)
    return Section(
        table(
            {
                "federations": kind,
                "take part": part,
                "training luck": number(rows.luck.mean()),
                "printed": number(rows.printed.mean()),
                "hold the mean over trainings: one run, %": f"{100 * rows.one_run.mean():.0f}",
                f"mean of {N_MEAN} runs, %": f"{100 * rows.of_runs.mean():.0f}",
                "federations × runs": f"{len(rows)} × {N_RUNS}",
            }
            for kind, part, rows in groups
        ),
        panels=[lambda axes: _draw(groups, axes)],
        n_names=2,
    )


def _draw(groups: Sequence[tuple[str, str, pd.DataFrame]], axes: Axes) -> None:
    names = {"printed": "printed by one run", "luck": "training luck"}
    figures.bars(axes, {name: [rows[column].mean() for _, _, rows in groups] for column, name in names.items()})
    axes.set_xticks(range(len(groups)), [str(place + 1) for place in range(len(groups))])
    axes.set(title="standard deviations", xlabel="line of the table", ylabel="over the spread of true values")


STUDY = Study(
    "luck",
    "Training luck",
    """Each federation was trained eight times, with the same data and the same starting model, but other batches \
and other participants. *Training luck* is the standard deviation of the true values over the eight runs, relative to \
the spread of the values between clients. The completion and the test set play no part in it. *Printed* is the \
standard deviation that a single run reports, with 500 test samples. Intervals of a single run do not include \
training luck, so fewer than 90 % of them contain the mean value over trainings. Intervals over several runs \
(`fedworth report RUN1 RUN2 RUN3`) include it. All runs of a federation share one test set and its error, so the last \
two shares are rough where a line has few federations.""",
    section,
    scales={
        "page": {
            name: Extent(3, first_seed=FIRST_SEED)
            for name in ("two-classes", "sizes", "label-skew", "feature-shift", "regression")
        },
        "tiny": {"digits": Extent(1, 3)},
    },
    cases=cases,
    trial=trial,
    page="coverage.md",
)
