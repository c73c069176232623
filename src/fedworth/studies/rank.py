"""Example 3: how the rank of the completion changes its error, ‖U − WHᵀ‖ / ‖U‖, on MNIST with an MLP, T = 100.

The paper's error falls from .128 at rank 1 to .094 at rank 3 and rises again to .124 at rank 10. The matrices are
those of `spectrum`, so the page can also show the smallest error that any matrix of that rank could have.
"""

from collections.abc import Sequence

import numpy as np

from fedworth.studies.results.comparing import all_of, bound_claim, judged
from fedworth.studies.results.outcome import Cell, Claim, Outcome, Panel, Series
from fedworth.studies.results.statistics import mean_of
from fedworth.studies.results.study import Rows, Study
from fedworth.studies.spectrum import by_partition, matrix_trials
from fedworth.studies.trials.extents import Extent
from fedworth.studies.trials.readings import RANKS
from fedworth.studies.trials.settings import Setup
from fedworth.studies.trials.trial import Row, Trial

PAPERS_ERRORS = (0.128, 0.096, 0.094, 0.095, 0.102, 0.114, 0.122, None, None, 0.124)
COLUMNS = ("data_set", "partition", "completion", "rank", "error", "low", "high", "n_seeds", "paper")
SHOWN = ("data", "completion", *(f"r = {rank}" for rank in RANKS))
MAIN, POSSIBLE, USUAL_RANK = "counts 0.01", "best possible", 5
TURN, MOST = 0.05, 0.15


def trials(setup: Setup, extent: Extent, seeds: Sequence[int]) -> list[Trial]:
    """The matrices of `spectrum`, completed at ranks 1 to 10."""
    return matrix_trials(setup, extent, seeds, "ranks")


def errors_of(rows: Sequence[Row]) -> dict[str, list[list[float]]]:
    """By completion: for every rank the errors over the seeds; and the best that any matrix of that rank can do."""
    found = {kind: [row["reading"]["errors"][kind] for row in rows] for kind in rows[0]["reading"]["errors"]}
    n = min(len(row["reading"]["best_errors"]) for row in rows)
    found[POSSIBLE] = [row["reading"]["best_errors"][:n] for row in rows]
    return {kind: [list(of_rank) for of_rank in zip(*errors, strict=True)] for kind, errors in found.items()}


def findings(rows: Rows) -> Outcome:
    """The error by rank and penalty."""
    grouped = {(name, kind): errors_of(f) for name, all_ in rows.items() for kind, f in by_partition(all_).items()}
    cells = [cell for (name, kind), errors in grouped.items() for cell in _cells(name, kind, errors)]
    return Outcome(
        study="rank",
        title="Example 3: the rank of the completion",
        columns=COLUMNS,
        rows=tuple(cells),
        shown=SHOWN,
        lines=(_papers_line(), *(line for (n, k), errors in grouped.items() for line in _lines(n, k, errors))),
        claims=tuple(claim for (n, k), errors in grouped.items() for claim in _claims(f"{n}, {k}", errors[MAIN])),
        panels=tuple(_panel(name, kind, errors) for (name, kind), errors in grouped.items()),
        notes=tuple(_note(f"{name}, {kind}", errors) for (name, kind), errors in grouped.items()),
    )


def _cells(name: str, kind: str, errors: dict[str, list[list[float]]]) -> list[tuple[Cell, ...]]:
    made: list[tuple[Cell, ...]] = []
    for completion, by_rank in errors.items():
        for rank, found in zip(RANKS, by_rank, strict=False):
            mean = mean_of(found)
            paper = PAPERS_ERRORS[rank - 1]
            made.append((name, kind, completion, rank, mean.value, mean.low, mean.high, mean.n, paper))
    return made


def _papers_line() -> tuple[str, ...]:
    return ("mnist", "paper", *("–" if error is None else f"{error:.3f}" for error in PAPERS_ERRORS))


def _lines(name: str, kind: str, errors: dict[str, list[list[float]]]) -> list[tuple[str, ...]]:
    made = []
    for completion, by_rank in errors.items():
        texts = [f"{np.mean(found):.3f}" for found in by_rank]
        made.append((f"{name}, {kind}", completion, *texts, *["–"] * (len(RANKS) - len(texts))))
    return made


def _claims(where: str, by_rank: list[list[float]]) -> list[Claim]:
    means = [float(np.mean(found)) for found in by_rank]
    best = int(np.argmin(means))
    lowest = mean_of(by_rank[best])
    why = f"{lowest.text()} at rank {best + 1}"
    return [
        _turn_claim(f"{where}: the error falls by 5 %, then rises by as much, with the rank", by_rank, best),
        bound_claim(f"{where}: error of about 0.1 (at most {MOST}) at the best rank", lowest, why, most=MOST),
    ]


def _turn_claim(what: str, by_rank: list[list[float]], best: int) -> Claim:
    """Whether the smallest and the largest rank are worse than the best, each by at least 5 %, seed by seed."""
    ends = [
        mean_of([end / low - 1 for end, low in zip(errors, by_rank[best], strict=True)])
        for errors in (by_rank[0], by_rank[-1])
    ]
    holds = all_of([judged(end, least=TURN) for end in ends])
    above = [
        f", above it by {end.text('.1%')} at rank {rank}"
        for rank, end in zip((1, len(by_rank)), ends, strict=True)
        if rank != best + 1
    ]
    why = f"lowest at rank {best + 1}" + "".join(above)
    return Claim(what, holds, why if holds is not None else f"{why}; no interval decides")


def _note(where: str, errors: dict[str, list[list[float]]]) -> str:
    """Where each completion is best and worst, and how far the usual one is from the best possible."""
    means = {completion: [float(np.mean(found)) for found in by_rank] for completion, by_rank in errors.items()}
    possible = means.pop(POSSIBLE)
    said = "; ".join(
        f"*{kind}* {min(found):.2f} (rank {found.index(min(found)) + 1}) to {max(found):.2f} "
        f"(rank {found.index(max(found)) + 1})"
        for kind, found in means.items()
    )
    known = zip(RANKS, PAPERS_ERRORS, possible, strict=False)
    below = [str(rank) for rank, error, least in known if error is not None and error < least]
    impossible = f"the paper's errors are below the best possible here at ranks {', '.join(below)}; " if below else ""
    at = min(USUAL_RANK, len(possible)) - 1
    gap = f"at rank {at + 1} the error of *{MAIN}* is {means[MAIN][at]:.2f}, the best possible {possible[at]:.2f}"
    return f"{where}: {impossible}{gap}. From the lowest error to the highest: {said}."


def _panel(name: str, kind: str, errors: dict[str, list[list[float]]]) -> Panel:
    series = []
    for completion, by_rank in errors.items():
        found = np.array(by_rank)  # (n_ranks, n_seeds)
        band = found.min(axis=1), found.max(axis=1)
        series.append(Series(completion, RANKS[: len(found)], found.mean(axis=1), *band))
    known = [(rank, error) for rank, error in zip(RANKS, PAPERS_ERRORS, strict=True) if error is not None]
    series.append(Series("paper", [rank for rank, _ in known], [error for _, error in known], is_papers=True))
    lowest, highest = min(y for s in series for y in s.y), max(y for s in series for y in (*s.y, *s.high))
    limits = max(0.8 * lowest, 1e-3), 1.2 * highest
    up = "relative error ‖U − WHᵀ‖ / ‖U‖"
    return Panel(f"{name}, {kind}", "rank", up, tuple(series), logarithmic=True, limits=limits)


STUDY = Study(
    "rank",
    "The relative error falls to .094 at rank 3 and rises again: too large a rank overfits.",
    trials,
    findings,
    (
        "No completion can have an error below the best possible of its rank; where the paper's is below ours, that "
        "points to data nearer to IID, or to other training. At a certified optimum a larger rank does not change "
        "the estimates of the seen cells ([theory](theory.md#4-completion)); most cells of later rounds are never "
        "seen, and no rank makes up for that. The number behind a penalty is its share of "
        "$\\lambda_{\\text{collapse}}$. Band: smallest to largest of the seeds.",
    ),
)
