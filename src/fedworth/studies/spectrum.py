"""Example 2: is the utility matrix nearly of low rank?

The singular values of the full (100, 1024) matrix, relative to the largest: the paper's figure has σ₂/σ₁ of about
0.1 (synthetic), 0.06 (MNIST) and 0.04 (CIFAR-10), and less than 10⁻³ after about fifteen. It does not say whether
the data were IID, so both are shown.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from fedworth.studies.results.comparing import bound_claim
from fedworth.studies.results.outcome import Cell, Claim, Outcome, Panel, Series
from fedworth.studies.results.statistics import SHARES, Interval, mean_of
from fedworth.studies.results.study import Rows, Study
from fedworth.studies.trials.extents import Extent
from fedworth.studies.trials.settings import Setup
from fedworth.studies.trials.trial import Row, Trial

PAPERS_SECOND = {"synthetic": 0.1, "mnist": 0.06, "cifar10-cnn": 0.04}
AFTER = 15
COLUMNS = (
    "data_set", "partition", "n_rounds", "n_seeds", "second", "second_low", "second_high",
    "fifth", "fifth_low", "fifth_high", "sixteenth", "sixteenth_low", "sixteenth_high",
    "best_rank_5_error", "error_low", "error_high", "paper_second",
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
    """How fast the singular values fall, on every data set."""
    grouped = {(name, kind): found for name, all_ in rows.items() for kind, found in by_partition(all_).items()}
    return Outcome(
        study="spectrum",
        title="Example 2: singular values of the utility matrix",
        columns=COLUMNS,
        rows=tuple(_cells(*key, found) for key, found in grouped.items()),
        shown=SHOWN,
        lines=tuple(_line(*key, found) for key, found in grouped.items()),
        claims=tuple(claim for key, found in grouped.items() for claim in _claims(*key, found)),
        panels=tuple(_panel(name, found) for name, found in rows.items()),
    )


def _estimates(rows: Sequence[Row]) -> dict[str, Interval]:
    """σ₂, σ₅ and σ₁₆ relative to σ₁, and the best error of a matrix of rank 5."""
    positions = {"second": 1, "fifth": 4, "sixteenth": AFTER}
    found = {what: mean_of(_numbers(rows, "singular", position), SHARES) for what, position in positions.items()}
    return {**found, "error": mean_of(_numbers(rows, "best_errors", 4), SHARES)}


def _numbers(rows: Sequence[Row], what: str, position: int) -> list[float]:
    found = [row["reading"][what] for row in rows]
    return [numbers[position] for numbers in found if len(numbers) > position]


def _cells(name: str, kind: str, rows: Sequence[Row]) -> tuple[Cell, ...]:
    numbers = [number for found in _estimates(rows).values() for number in (found.value, found.low, found.high)]
    return (name, kind, rows[0]["federation"]["n_rounds"], len(rows), *numbers, PAPERS_SECOND.get(name))


def _line(name: str, kind: str, rows: Sequence[Row]) -> tuple[str, ...]:
    second, *others = (found.text(".2g") for found in _estimates(rows).values())
    paper = PAPERS_SECOND.get(name)
    known = "–" if paper is None else f"{paper:g}"
    return (name, kind, str(rows[0]["federation"]["n_rounds"]), second, known, *others, str(len(rows)))


def _claims(name: str, kind: str, rows: Sequence[Row]) -> list[Claim]:
    where, found, paper = f"{name}, {kind}", _estimates(rows), PAPERS_SECOND.get(name)
    second, late, left = found["second"], found["sixteenth"], found["error"]
    claims = []
    if left.n:
        why = f"{left.text('.1%')} of the norm is left"
        claims.append(bound_claim(f"{where}: five directions give all but a fifth", left, why, most=0.2))
    if paper is not None:
        why = f"{second.text('.3f')}, paper {paper}"
        claims.append(bound_claim(f"{where}: σ₂/σ₁ at most twice the paper's", second, why, most=2 * paper))
    if late.n:
        why = f"σ₁₆/σ₁ = {late.text('.2g')}"
        claims.append(bound_claim(f"{where}: below 1e-3 after {AFTER}", late, why, most=1e-3))
    return claims


def _panel(name: str, rows: Sequence[Row]) -> Panel:
    series = []
    for kind, found in by_partition(rows).items():
        n = min(len(row["reading"]["singular"]) for row in found)
        decay = np.array([row["reading"]["singular"][:n] for row in found])  # (n_seeds, n)
        series.append(Series(kind, list(range(1, n + 1)), decay.mean(axis=0), decay.min(axis=0), decay.max(axis=0)))
    if name in PAPERS_SECOND:
        series.append(Series("paper", [2], [PAPERS_SECOND[name]], is_papers=True))
    n_rounds = rows[0]["federation"]["n_rounds"]
    return Panel(f"{name} (T = {n_rounds})", "k", "σ_k / σ₁", tuple(series), logarithmic=True, limits=(1e-5, 1.3))


STUDY = Study(
    "spectrum",
    "In all cases the utility matrix is nearly of low rank.",
    trials,
    findings,
    (
        "The paper does not say whether these data were IID. Band: smallest to largest of the seeds; star: the "
        "paper's σ₂/σ₁.",
    ),
)
