"""Example 2: is the utility matrix nearly of low rank?

The singular values of the full (100, 1024) matrix, relative to the largest: the paper's figure has σ₂/σ₁ of about
0.1 (synthetic) and 0.06 (MNIST). It does not say whether the data were IID, so both are shown.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from fedworth.studies.fairness import COPIES
from fedworth.studies.results.comparing import accuracy_of, at_setting, bound_claim, kind_of, place_of
from fedworth.studies.results.outcome import Claim, Outcome, Panel, Series
from fedworth.studies.results.records import Record, csv_of, federation_record, grouped, numbers, shortened
from fedworth.studies.results.statistics import SHARES, mean_of
from fedworth.studies.results.study import Rows, Study
from fedworth.studies.trials.extents import Extent
from fedworth.studies.trials.settings import Setup
from fedworth.studies.trials.trial import Trial

PAPERS_SECOND = {"mnist": 0.06, "synthetic": 0.1, "synthetic-iid": 0.1}
N_DRAWN, MANY_TIMES = 16, 2
SHOWN = ("data, steps × rate", "", "accuracy", "σ₂/σ₁", "paper", "σ₅/σ₁", "σ₁₆/σ₁", "best rank-5 error", "seeds")


def trials(setup: Setup, extent: Extent, seeds: Sequence[int]) -> list[Trial]:
    """Ten clients, the last a copy of the first, the full matrix measured, IID and not; `regime`, `rank` and `models`
    read the same trials."""
    return [
        Trial(replace(kind.federation(seed), copies=COPIES, n_rounds=extent.n_rounds, with_truth=True), "matrix")
        for kind in (setup, setup.iid())
        for seed in seeds
    ]


def records_of(rows: Rows) -> list[Record]:
    """The singular values of every matrix."""
    return [
        {**federation_record(setup, row), **_singular(row["reading"]["singular"]), "best_5": _fifth(row["reading"])}
        for setup, found in rows.items()
        for row in found
    ]


def _singular(found: Sequence[float]) -> dict[str, float]:
    return {f"s_{k + 1}": value for k, value in enumerate(found[:N_DRAWN])}


def _fifth(reading: dict[str, list[float]]) -> float | None:
    return reading["best_errors"][4] if len(reading["best_errors"]) > 4 else None


def shown(records: Sequence[Record]) -> Outcome:
    """How fast the singular values fall, on every data set."""
    places = grouped(records, "setup", "partition")
    columns, rows = csv_of(records)
    return Outcome(
        study="spectrum",
        title="Example 2: singular values of the utility matrix",
        columns=columns,
        rows=rows,
        shown=SHOWN,
        lines=tuple(_line(found) for found in places.values()),
        claims=tuple(at_setting(claim, found) for found in places.values() for claim in _claims(found)),
        panels=tuple(_panel(found) for found in grouped(records, "model").values()),
    )


def _paper(record: Record) -> float | None:
    return PAPERS_SECOND.get(str(record["data_set"]))


def _line(records: Sequence[Record]) -> tuple[str, ...]:
    first, paper = records[0], _paper(records[0])
    second, *others = (mean_of(numbers(records, name), SHARES).text(".2g") for name in ("s_2", "s_5", "s_16", "best_5"))
    known = "–" if paper is None else f"{paper:g}"
    start = (place_of(first), kind_of(first), f"{accuracy_of(records):.2f}")
    return (*start, second, known, *others, str(len(records)))


def _claims(records: Sequence[Record]) -> list[Claim]:
    first, second, paper = records[0], mean_of(numbers(records, "s_2"), SHARES), _paper(records[0])
    if paper is None:
        return []
    where = f"{place_of(first).partition(',')[0]}, {kind_of(first)}"
    most = MANY_TIMES * paper
    return [bound_claim(f"{where}: σ₂/σ₁ at most twice the paper's {paper:g}", second, second.text(), most=most)]


def _panel(records: Sequence[Record]) -> Panel:
    series = []
    for found in grouped(records, "setup", "partition").values():
        names = [f"s_{k}" for k in range(1, N_DRAWN + 1) if numbers(found, f"s_{k}")]
        decay = [numbers(found, name) for name in names]
        name = f"{found[0]['n_steps']} × {found[0]['rate']:g}, {kind_of(found[0])}"
        band = [min(values) for values in decay], [max(values) for values in decay]
        series.append(Series(name, list(range(1, len(decay) + 1)), [float(np.mean(v)) for v in decay], *band))
    if (paper := _paper(records[0])) is not None:
        series.append(Series("paper", [2], [paper], is_papers=True))
    title = f"{place_of(records[0]).partition(',')[0]}, T = {records[0]['n_rounds']}"
    return Panel(title, "k", "σ_k / σ₁", tuple(series), logarithmic=True, limits=(1e-5, 1.3))


STUDY = Study(
    "spectrum",
    "In all cases the utility matrix is nearly of low rank.",
    trials,
    lambda rows: shown(shortened(records_of(rows))),
    (
        "The paper does not say whether these data were IID. Client 9 is a copy of client 0, as in the regime map, "
        "whose federations these are. Band: smallest to largest of the seeds; star: the paper's.",
    ),
    shown=shown,
)
