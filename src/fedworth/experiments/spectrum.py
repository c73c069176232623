"""Example 2: is the utility matrix nearly of low rank?

The singular values of the full (100, 1024) matrix, relative to the largest: the paper's figure has σ₂/σ₁ of about
0.1 (synthetic), 0.06 (MNIST) and 0.04 (CIFAR-10), and less than 10⁻³ after about fifteen. It does not say whether
the data were IID, so both are shown.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from fedworth.experiments.outcome import Cell, Claim, Outcome, Panel, Series, claim_of
from fedworth.experiments.settings import Extent, Setup
from fedworth.experiments.statistics import SHARES, mean_of
from fedworth.experiments.study import Rows, Study
from fedworth.experiments.trial import Row, Trial

PAPERS_SECOND = {"synthetic": 0.1, "mnist": 0.06, "cifar10-cnn": 0.04}
AFTER = 15
COLUMNS = (
    "data_set", "partition", "n_rounds", "n_seeds", "second", "second_low", "second_high", "fifth", "sixteenth",
    "best_rank_5_error", "paper_second",
)  # fmt: skip
SHOWN = ("data", "partition", "T", "σ₂/σ₁", "paper", "σ₅/σ₁", "σ₁₆/σ₁", "best rank-5 error", "seeds")


def matrix_trials(setup: Setup, extent: Extent, seeds: Sequence[int], reading: str) -> list[Trial]:
    """Ten different clients, the full matrix measured, IID and not."""
    return [
        Trial(replace(kind.federation(seed), n_rounds=extent.n_rounds, with_truth=True), reading)
        for kind in (setup, setup.iid())
        for seed in seeds
    ]


def trials(setup: Setup, extent: Extent, seeds: Sequence[int]) -> list[Trial]:
    """The full matrices, read for their singular values."""
    return matrix_trials(setup, extent, seeds, "spectrum")


def by_partition(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """The rows under "non-IID" and "IID"."""
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault("IID" if row["federation"]["partition"] == "iid" else "non-IID", []).append(row)
    return found


def findings(rows: Rows) -> Outcome:
    """The decay of the singular values on every data set."""
    grouped = {(name, kind): found for name, all_ in rows.items() for kind, found in by_partition(all_).items()}
    cells = [_cells(name, kind, found) for (name, kind), found in grouped.items()]
    return Outcome(
        study="spectrum",
        title="Example 2: singular values of the utility matrix",
        columns=COLUMNS,
        rows=tuple(cells),
        shown=SHOWN,
        lines=tuple(_line(row) for row in cells),
        claims=tuple(claim for row in cells for claim in _claims(row)),
        panels=tuple(_panel(name, found) for name, found in rows.items()),
    )


def _numbers(rows: Sequence[Row], position: int) -> list[float]:
    found = [row["reading"]["singular"] for row in rows]
    return [singular[position] for singular in found if len(singular) > position]


def _cells(name: str, kind: str, rows: Sequence[Row]) -> tuple[Cell, ...]:
    second = mean_of(_numbers(rows, 1), SHARES)
    later = [mean_of(_numbers(rows, position)).value for position in (4, AFTER)]
    best = [row["reading"]["best_errors"] for row in rows]
    error = mean_of([errors[4] for errors in best if len(errors) > 4]).value
    n_rounds = rows[0]["federation"]["n_rounds"]
    numbers = (second.value, second.low, second.high, *later, error)
    return (name, kind, n_rounds, len(rows), *numbers, PAPERS_SECOND.get(name))


def _line(row: tuple[Cell, ...]) -> tuple[str, ...]:
    cell = dict(zip(COLUMNS, row, strict=True))
    second = f"{cell['second']:.3f}"
    if not np.isnan(cell["second_low"]):  # type: ignore[arg-type]
        second += f" [{cell['second_low']:.3f}, {cell['second_high']:.3f}]"
    texts = [_text(cell[key]) for key in ("fifth", "sixteenth", "best_rank_5_error")]
    paper = _text(cell["paper_second"])
    return (
        str(cell["data_set"]),
        str(cell["partition"]),
        str(cell["n_rounds"]),
        second,
        paper,
        *texts,
        str(cell["n_seeds"]),
    )


def _text(number: Cell) -> str:
    return "–" if not isinstance(number, float) or np.isnan(number) else f"{number:.2g}"


def _claims(row: tuple[Cell, ...]) -> list[Claim]:
    cell = dict(zip(COLUMNS, row, strict=True))
    where, n_seeds = f"{cell['data_set']}, {cell['partition']}", int(cell["n_seeds"] or 0)
    second, late, paper, left = (cell[key] for key in ("second", "sixteenth", "paper_second", "best_rank_5_error"))
    claims = []
    if isinstance(left, float) and not np.isnan(left):
        why = f"{left:.1%} of the norm is left"
        claims.append(claim_of(f"{where}: five directions give all but a fifth", left <= 0.2, why, n_seeds=n_seeds))
    if isinstance(paper, float) and isinstance(second, float):
        why = f"{second:.3f}, paper {paper}"
        claims.append(claim_of(f"{where}: σ₂/σ₁ at most twice the paper's", second <= 2 * paper, why, n_seeds=n_seeds))
    if isinstance(late, float) and not np.isnan(late):
        why = f"σ₁₆/σ₁ = {late:.2g}"
        claims.append(claim_of(f"{where}: below 1e-3 after {AFTER}", late < 1e-3, why, n_seeds=n_seeds))
    return claims


def _panel(name: str, rows: Sequence[Row]) -> Panel:
    series = []
    for kind, found in by_partition(rows).items():
        n = min(len(row["reading"]["singular"]) for row in found)
        decay = np.array([row["reading"]["singular"][:n] for row in found])  # (n_seeds, n)
        series.append(Series(kind, list(range(1, n + 1)), decay.mean(axis=0), decay.min(axis=0), decay.max(axis=0)))
    n_rounds = rows[0]["federation"]["n_rounds"]
    return Panel(f"{name} (T = {n_rounds})", "k", "σ_k / σ₁", tuple(series), logarithmic=True, limits=(1e-4, 1.3))


STUDY = Study(
    "spectrum",
    "In all cases the utility matrix is nearly of low rank.",
    trials,
    findings,
    ("The paper does not say whether these data were IID. Band: smallest to largest of the seeds.",),
)
