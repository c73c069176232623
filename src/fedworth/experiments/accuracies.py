"""Models (the paper's Section VII-A): the accuracy that the four models reach in 100 rounds, IID and non-IID.

The paper says "up to"; so the best of all rounds stands here beside the last. Three of ten clients take part a round.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from fedworth.experiments.outcome import Cell, Claim, Outcome, Panel, Series, claim_of
from fedworth.experiments.settings import Extent, Setup
from fedworth.experiments.spectrum import by_partition
from fedworth.experiments.statistics import SHARES, Estimate, mean_of
from fedworth.experiments.study import Rows, Study
from fedworth.experiments.trial import Row, Trial

PAPERS_ACCURACIES = {
    "synthetic": {"IID": 0.99, "non-IID": 0.95},
    "mnist": {"IID": 0.98, "non-IID": 0.92},
    "fashion-mnist": {"IID": 0.98, "non-IID": 0.90},
    "cifar10": {"IID": 0.91, "non-IID": 0.83},
}
NEAR = 0.03
COLUMNS = ("data_set", "partition", "n_rounds", "n_seeds", "best", "low", "high", "last", "paper")
SHOWN = ("data", "partition", "rounds", "best accuracy", "last accuracy", "paper", "seeds")


def trials(setup: Setup, extent: Extent, seeds: Sequence[int]) -> list[Trial]:
    """Plain federated learning, ten clients, three a round."""
    return [
        Trial(
            replace(
                kind.federation(seed),
                n_rounds=extent.n_rounds,
                with_truth=False,
                test_limit=None if setup.test_limit is None else max(setup.test_limit, 1_000),
            ),
            reading="accuracy",
        )
        for kind in (setup, setup.iid())
        for seed in seeds
    ]


def findings(rows: Rows) -> Outcome:
    """The accuracies on every data set."""
    grouped = {(name, kind): found for name, all_ in rows.items() for kind, found in by_partition(all_).items()}
    cells = [_cells(name, kind, found) for (name, kind), found in grouped.items()]
    return Outcome(
        study="models",
        title="Models: the accuracies they reach",
        columns=COLUMNS,
        rows=tuple(cells),
        shown=SHOWN,
        lines=tuple(_line(row) for row in cells),
        claims=tuple(_claim(row) for row in cells if row[-1] is not None),
        panels=tuple(_panel(name, found) for name, found in rows.items()),
    )


def _cells(name: str, kind: str, rows: Sequence[Row]) -> tuple[Cell, ...]:
    curves = [row["reading"]["accuracy"] for row in rows]
    best = mean_of([max(curve) for curve in curves], SHARES)
    last = mean_of([curve[-1] for curve in curves], SHARES)
    paper = PAPERS_ACCURACIES.get(name, {}).get(kind)
    return name, kind, len(curves[0]), best.n, best.value, best.low, best.high, last.value, paper


def _line(row: tuple[Cell, ...]) -> tuple[str, ...]:
    name, kind, n_rounds, n, best, low, high, last, paper = row
    reached = Estimate(best, low, high, n).text(".1%")  # type: ignore[arg-type]
    return str(name), str(kind), str(n_rounds), reached, f"{last:.1%}", "–" if paper is None else f"{paper:.0%}", str(n)


def _claim(row: tuple[Cell, ...]) -> Claim:
    name, kind, n_rounds, n_seeds, best, _, _, _, paper = row
    reached = isinstance(best, float) and isinstance(paper, float) and best >= paper - NEAR
    why = f"{best:.1%} in {n_rounds} rounds, paper {paper:.0%}"
    return claim_of(f"{name}, {kind}: within 3 points of the paper", reached, why, n_seeds=int(n_seeds or 0))


def _panel(name: str, rows: Sequence[Row]) -> Panel:
    series = []
    for kind, found in by_partition(rows).items():
        curves = np.array([row["reading"]["accuracy"] for row in found])  # (n_seeds, n_rounds)
        series.append(Series(kind, list(range(1, curves.shape[1] + 1)), curves.mean(axis=0)))
    return Panel(name, "round", "test accuracy", tuple(series), limits=(0, 1))


STUDY = Study(
    "models",
    "The four models reach 99/95, 98/92, 98/90 and 91/83 % (IID / non-IID).",
    trials,
    findings,
    (
        "Ten local steps a round on batches, three of ten clients; the paper says neither. VGG16 has batch "
        "normalisation here and no pre-training.",
    ),
)
