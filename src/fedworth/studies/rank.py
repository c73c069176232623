"""Example 3: how the rank of the completion changes its error, ‖U − WHᵀ‖ / ‖U‖, on MNIST with an MLP, T = 100.

The paper's error falls from .128 at rank 1 to .094 at rank 3 and rises again to .124 at rank 10. The matrices are
those of `spectrum`, so the page can also show the smallest error that any matrix of that rank could have.
"""

from collections.abc import Sequence

import numpy as np

from fedworth.studies.results.comparing import accuracy_of, all_of, at_setting, bound_claim, judged, kind_of, place_of
from fedworth.studies.results.outcome import Claim, Outcome, Panel, Series
from fedworth.studies.results.records import Record, csv_of, federation_record, grouped, numbers, shortened
from fedworth.studies.results.statistics import mean_of
from fedworth.studies.results.study import Rows, Study
from fedworth.studies.spectrum import trials
from fedworth.studies.trials.readings import RANKS

PAPERS_ERRORS = (0.128, 0.096, 0.094, 0.095, 0.102, 0.114, 0.122, None, None, 0.124)
MAIN, PRINTED, POSSIBLE = "counts 0.01", "uniform 0.01", "best possible"
TURN, MOST = 0.05, 0.15
COLUMNS = tuple(f"rank_{rank}" for rank in RANKS)
PAGE_RANKS = (1, 3, 5, 10)
SHOWN = ("data, steps × rate", "", "accuracy", *(f"r = {rank}" for rank in PAGE_RANKS), "seeds")
ALL_SHOWN = ("where", "completion", *(f"r = {rank}" for rank in RANKS))


def records_of(rows: Rows) -> list[Record]:
    """By completion: the error at every rank; and the best that any matrix of that rank can do."""
    made: list[Record] = []
    for setup, found in rows.items():
        for row in found:
            errors = {**row["reading"]["errors"], POSSIBLE: row["reading"]["best_errors"]}
            same = federation_record(setup, row)
            made += [
                {**same, "completion": kind, **dict(zip(COLUMNS, values, strict=False))}
                for kind, values in errors.items()
            ]
    return made


def shown(records: Sequence[Record]) -> Outcome:
    """The error by rank and penalty."""
    places = grouped(records, "setup", "partition")
    columns, rows = csv_of(records)
    return Outcome(
        study="rank",
        title="Example 3: the rank of the completion",
        columns=columns,
        rows=rows,
        shown=SHOWN,
        lines=tuple(_line(found) for found in places.values()),
        claims=tuple(at_setting(claim, found) for found in places.values() for claim in _claims(found)),
        panels=tuple(_panel(found) for found in places.values()),
        all_shown=ALL_SHOWN,
        all_lines=tuple(line for found in places.values() for line in _all(found)),
    )


def _where(record: Record) -> str:
    return f"{place_of(record)}, {kind_of(record)}"


def _by_rank(records: Sequence[Record], completion: str) -> list[list[float]]:
    """For every rank the errors over the seeds."""
    mine = grouped(records, "completion").get((completion,), [])
    return [found for name in COLUMNS if (found := numbers(mine, name))]


def _line(records: Sequence[Record]) -> tuple[str, ...]:
    """By rank, the error and in brackets the best possible one."""
    first = records[0]
    found, best = (_by_rank(records, completion) for completion in (MAIN, POSSIBLE))
    n_known = min(len(found), len(best))
    texts = [f"{np.mean(found[r - 1]):.2f} ({np.mean(best[r - 1]):.2f})" if r <= n_known else "–" for r in PAGE_RANKS]
    return (place_of(first), kind_of(first), f"{accuracy_of(records):.2f}", *texts, str(len(found[0])))


def _all(records: Sequence[Record]) -> list[tuple[str, ...]]:
    made = []
    for (completion,) in grouped(records, "completion"):
        texts = [f"{np.mean(found):.3f}" for found in _by_rank(records, str(completion))]
        made.append((_where(records[0]), str(completion), *texts, *["–"] * (len(RANKS) - len(texts))))
    return made


def _claims(records: Sequence[Record]) -> list[Claim]:
    by_rank = _by_rank(records, MAIN)
    best = int(np.argmin([np.mean(found) for found in by_rank]))
    lowest = mean_of(by_rank[best])
    where = f"{place_of(records[0]).partition(',')[0]}, {kind_of(records[0])}"
    why = f"{lowest.text()} at rank {best + 1}"
    return [
        bound_claim(f"{where}: error of about .1 (at most {MOST:g}) at the best rank", lowest, why, most=MOST),
        _turn_claim(f"{where}: the error falls by 5 %, then rises by as much, with the rank", by_rank, best),
    ]


def _turn_claim(what: str, by_rank: list[list[float]], best: int) -> Claim:
    """Whether the smallest and the largest rank are worse than the best, each by at least 5 %, seed by seed."""
    ends = [
        mean_of([end / low - 1 for end, low in zip(errors, by_rank[best], strict=True)])
        for errors in (by_rank[0], by_rank[-1])
    ]
    above = " and ".join(f"{end.value:+.0%} at rank {rank}" for rank, end in zip((1, len(by_rank)), ends, strict=True))
    return Claim(what, all_of([judged(end, least=TURN) for end in ends]), f"lowest at rank {best + 1}, {above}")


def _panel(records: Sequence[Record]) -> Panel:
    series = []
    for completion in (MAIN, PRINTED, POSSIBLE):
        found = _by_rank(records, completion)
        y, band = [float(np.mean(v)) for v in found], ([min(v) for v in found], [max(v) for v in found])
        series.append(Series(completion, RANKS[: len(found)], y, *band))
    known = [(rank, error) for rank, error in zip(RANKS, PAPERS_ERRORS, strict=True) if error is not None]
    series.append(Series("paper", [rank for rank, _ in known], [error for _, error in known], is_papers=True))
    lowest, highest = min(y for s in series for y in s.y), max(y for s in series for y in (*s.y, *s.high))
    limits = max(0.8 * lowest, 1e-3), 1.2 * highest
    up = "relative error"
    return Panel(_where(records[0]), "rank", up, tuple(series), logarithmic=True, limits=limits)


STUDY = Study(
    "rank",
    "The relative error falls to .094 at rank 3 and rises again: too large a rank overfits.",
    trials,
    lambda rows: shown(shortened(records_of(rows))),
    (
        "A cell has the error with the penalty of the solver that the paper used (*counts*, at a hundredth of "
        "$\\lambda_{\\text{collapse}}$), and in brackets the smallest that any matrix of that rank can have. "
        "*Uniform*, in the figure and the appendix, is the printed penalty. Most cells of later rounds are never seen, "
        "and no rank makes up for that.",
    ),
    shown=shown,
)
