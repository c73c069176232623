"""Models (the paper's Section VII-A): the accuracy that the models reach in 100 rounds, IID and non-IID.

The paper says "up to"; so the best of all rounds stands here beside the first and the last. Three of ten clients take
part a round.
"""

from collections.abc import Sequence

from fedworth.studies.results.comparing import at_setting, banded, bound_claim, kind_of, place_of
from fedworth.studies.results.outcome import Claim, Outcome, Panel
from fedworth.studies.results.records import Record, csv_of, federation_record, grouped, numbers, shortened
from fedworth.studies.results.statistics import SHARES, Interval, mean_of
from fedworth.studies.results.study import Rows, Study
from fedworth.studies.spectrum import trials

PAPERS_ACCURACIES = {
    ("synthetic", "non-IID"): 0.95,
    ("synthetic-iid", "IID"): 0.99,
    ("mnist", "non-IID"): 0.92,
    ("mnist", "IID"): 0.98,
    ("fashion-mnist", "non-IID"): 0.90,
    ("fashion-mnist", "IID"): 0.98,
}
NEAR, N_POINTS = 0.03, 10
SHOWN = ("data, steps × rate", "", "rounds", "first accuracy", "best accuracy", "last accuracy", "paper", "seeds")


def records_of(rows: Rows) -> list[Record]:
    """Accuracies after every tenth round, and the best of all."""
    made: list[Record] = []
    for setup, found in rows.items():
        for row in found:
            curve = row["reading"]["accuracy"]
            kept = {f"after_{t}": curve[t - 1] for t in _points(len(curve))}
            made.append({**federation_record(setup, row), "first": curve[0], "best": max(curve), **kept})
    return made


def _points(n_rounds: int) -> list[int]:
    return sorted({1, *(round(n_rounds * k / N_POINTS) for k in range(1, N_POINTS + 1))} - {0})


def shown(records: Sequence[Record]) -> Outcome:
    """The accuracies on every data set."""
    places = grouped(records, "setup", "partition")
    columns, rows = csv_of(records)
    return Outcome(
        study="models",
        title="Models: the accuracies they reach",
        columns=columns,
        rows=rows,
        shown=SHOWN,
        lines=tuple(_line(found) for found in places.values()),
        claims=tuple(at_setting(claim, found) for found in places.values() for claim in _claims(found)),
        panels=tuple(_panel(found) for found in grouped(records, "model").values()),
    )


def _paper(record: Record) -> float | None:
    return PAPERS_ACCURACIES.get((str(record["data_set"]), kind_of(record)))


def _of(records: Sequence[Record], name: str) -> Interval:
    return mean_of(numbers(records, name), SHARES)


def _line(records: Sequence[Record]) -> tuple[str, ...]:
    first, paper = records[0], _paper(records[0])
    texts = (f"{_of(records, 'first').value:.2f}", _of(records, "best").text(), f"{_of(records, 'accuracy').value:.2f}")
    known = "–" if paper is None else f"{paper:.2f}"
    return (place_of(first), kind_of(first), str(first["n_rounds"]), *texts, known, str(len(records)))


def _claims(records: Sequence[Record]) -> list[Claim]:
    paper, best = _paper(records[0]), _of(records, "best")
    if paper is None:
        return []
    where = f"{place_of(records[0]).partition(',')[0]}, {kind_of(records[0])}"
    what = f"{where}: the model reaches the paper's accuracy of {paper:.0%}, less 3 points"
    return [bound_claim(what, best, best.text(), least=paper - NEAR)]


def _panel(records: Sequence[Record]) -> Panel:
    series, points = [], _points(int(records[0]["n_rounds"] or 1))
    for found in grouped(records, "setup", "partition").values():
        name = f"{found[0]['n_steps']} × {found[0]['rate']:g}, {kind_of(found[0])}"
        series.append(banded(name, points, [_of(found, f"after_{t}") for t in points]))
    return Panel(place_of(records[0]).partition(",")[0], "round", "test accuracy", tuple(series), limits=(0, 1.03))


STUDY = Study(
    "models",
    "The models reach 99/95 (synthetic), 98/92 (MNIST), 98/90 (Fashion-MNIST) and 91/83 % (CIFAR-10), IID / non-IID.",
    trials,
    lambda rows: shown(shortened(records_of(rows))),
    ("The federations are those of `spectrum`; accuracies are of the whole model after a round.",),
    shown=shown,
)
