"""Models (the paper's Section VII-A): the accuracy that the four models reach in 100 rounds, IID and non-IID.

The paper says "up to"; so the best of all rounds stands here beside the first and the last. Three of ten clients take
part a round.
"""

from collections.abc import Sequence
from dataclasses import replace

from fedworth.studies.results.comparing import banded, bound_claim
from fedworth.studies.results.outcome import Cell, Claim, Outcome, Panel, Series
from fedworth.studies.results.statistics import SHARES, Interval, mean_of
from fedworth.studies.results.study import Rows, Study
from fedworth.studies.spectrum import by_partition
from fedworth.studies.trials.extents import Extent
from fedworth.studies.trials.settings import Setup
from fedworth.studies.trials.trial import Row, Trial

PAPERS_ACCURACIES = {
    "synthetic": {"IID": 0.99, "non-IID": 0.95},
    "mnist": {"IID": 0.98, "non-IID": 0.92},
    "fashion-mnist": {"IID": 0.98, "non-IID": 0.90},
    "cifar10": {"IID": 0.91, "non-IID": 0.83},
}
NEAR = 0.03
COLUMNS = ("data_set", "partition", "n_rounds", "n_seeds", "first", "best", "low", "high", "last", "paper")
SHOWN = ("data", "partition", "rounds", "first accuracy", "best accuracy", "last accuracy", "paper", "seeds")


def trials(setup: Setup, extent: Extent, seeds: Sequence[int]) -> list[Trial]:
    """A plain federation: ten clients, three a round."""
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
    return Outcome(
        study="models",
        title="Models: the accuracies they reach",
        columns=COLUMNS,
        rows=tuple(_cells(*key, found) for key, found in grouped.items()),
        shown=SHOWN,
        lines=tuple(_line(*key, found) for key, found in grouped.items()),
        claims=tuple(_claim(*key, found) for key, found in grouped.items() if _papers(*key) is not None),
        panels=tuple(_panel(name, found) for name, found in rows.items()),
    )


def _papers(name: str, kind: str) -> float | None:
    return PAPERS_ACCURACIES.get(name, {}).get(kind)


def _curves(rows: Sequence[Row]) -> list[list[float]]:
    return [row["reading"]["accuracy"] for row in rows]


def _estimates(rows: Sequence[Row]) -> tuple[Interval, Interval, Interval]:
    """The accuracy after the first round, in the best and after the last."""
    curves = _curves(rows)
    numbers = [(curve[0], max(curve), curve[-1]) for curve in curves]
    first, best, last = (mean_of(column, SHARES) for column in zip(*numbers, strict=True))
    return first, best, last


def _cells(name: str, kind: str, rows: Sequence[Row]) -> tuple[Cell, ...]:
    first, best, last = _estimates(rows)
    numbers = (first.value, best.value, best.low, best.high, last.value)
    return (name, kind, len(_curves(rows)[0]), best.n, *numbers, _papers(name, kind))


def _line(name: str, kind: str, rows: Sequence[Row]) -> tuple[str, ...]:
    first, best, last = _estimates(rows)
    paper = _papers(name, kind)
    texts = (f"{first.value:.1%}", best.text(".1%"), f"{last.value:.1%}", "–" if paper is None else f"{paper:.0%}")
    return (name, kind, str(len(_curves(rows)[0])), *texts, str(best.n))


def _claim(name: str, kind: str, rows: Sequence[Row]) -> Claim:
    _, best, _ = _estimates(rows)
    paper = PAPERS_ACCURACIES[name][kind]
    why = f"{best.text('.1%')} in {len(_curves(rows)[0])} rounds, paper {paper:.0%}"
    return bound_claim(f"{name}, {kind}: reaches the paper's less 3 points", best, why, least=paper - NEAR)


def _panel(name: str, rows: Sequence[Row]) -> Panel:
    series = []
    for kind, found in by_partition(rows).items():
        by_round = zip(*_curves(found), strict=True)
        n_rounds = len(_curves(found)[0])
        series.append(banded(kind, range(1, n_rounds + 1), [mean_of(numbers, SHARES) for numbers in by_round]))
        if paper := _papers(name, kind):
            series.append(Series(kind, [1, n_rounds], [paper, paper], is_papers=True))
    return Panel(name, "round", "test accuracy", tuple(series), limits=(0, 1.03))


STUDY = Study(
    "models",
    "The four models reach 99/95, 98/92, 98/90 and 91/83 % (IID / non-IID).",
    trials,
    findings,
    (
        "Ten local steps a round on batches, three of ten clients; the paper says neither. VGG16 has batch "
        "normalisation here and no pre-training. *First accuracy* is that after one round: where it is high "
        "already, before much is learned, the best says little.",
    ),
)
