"""The bars that values and intervals are held to, and whether they were.

A bar is held by a median over seeds (a share over all clients and seeds), compared as it is: no test, no interval.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from fedworth.studies.fidelity.numbers import Table
from fedworth.studies.results.outcome import Cell, Claim
from fedworth.studies.results.statistics import rounded_correlation

Numbers = Mapping[str, Cell]
OURS, RIVALS = "models", ("fedsv", "factors")
COVERED = (0.85, 0.95)
PREDICTED = 0.8
SEEDS, FEW_SEEDS = 20, 5
"""That a bar asks for, and of convolutional models."""


@dataclass(frozen=True, slots=True)
class Bar:
    """A number of some settings that must lie between two others."""

    column: str
    what: str
    settings: tuple[str, ...]
    least: float | None = None
    most: float | None = None

    def claim(self, row: Numbers) -> Claim:
        """Whether one setting holds it."""
        number = float(row[self.column] or 0)
        wanted = [
            f"≥ {self.least:g}" if self.least is not None else "",
            f"≤ {self.most:g}" if self.most is not None else "",
        ]
        holds = (self.least is None or number >= self.least) and (self.most is None or number <= self.most)
        why = f"{number:.2f}, bar {' and '.join(filter(None, wanted))}, {_seeds(row)}"
        return Claim(f"{row['setting']}: {self.what}", holds, why)


def _seeds(row: Numbers) -> str:
    """How many seeds stand behind a number, and how many a bar asks for if these are fewer."""
    found, setting = int(row["n_seeds"] or 0), str(row["setting"])
    asked = FEW_SEEDS if "CNN" in setting else SEEDS
    return f"{found} seeds" if found >= asked else f"{found} of the {asked} seeds that it asks for"


OF_BETTER, RANKS, ERROR = "error over the better of FedSV and factors", "rank correlation with the truth", "error"
JACCARD = "Jaccard of the noisy and the least valued clients"
DIGITS, MNIST = "digits, two classes each, T = 10", "mnist, two classes each"
SYNTHETIC = ("synthetic, own sources, T = 10", "synthetic, own sources, T = 50")
CNNS = ("mnist CNN, two classes each, T = 10", "fashion-mnist CNN, two classes each, T = 10")
LABELS_100 = "mnist, noisy labels, N = 100, T = 100"
BARS = (
    Bar("of_better", OF_BETTER, (DIGITS, *SYNTHETIC, f"{MNIST}, T = 50"), most=0.4),
    Bar("of_better", OF_BETTER, (f"{MNIST}, T = 10", "mnist, noisy data, T = 10"), most=0.65),
    Bar("of_better", OF_BETTER, CNNS, most=0.6),
    Bar("correlation", RANKS, (DIGITS, *SYNTHETIC), least=0.95),
    Bar("correlation", RANKS, (f"{MNIST}, T = 50",), least=0.9),
    Bar("correlation", RANKS, (f"{MNIST}, T = 10",), least=0.8),
    Bar("error", ERROR, (f"{MNIST}, N = 30, T = 20", f"{MNIST}, N = 100, T = 20"), most=0.45),
    Bar("error", ERROR, (f"{MNIST}, N = 30, T = 50", f"{MNIST}, N = 100, T = 50"), most=0.3),
    Bar("error", ERROR, (LABELS_100,), most=0.25),
    Bar("jaccard", JACCARD, (LABELS_100,), least=0.95),
)


def claims_of(numbered: Sequence[Numbers], table: Table) -> tuple[Claim, ...]:
    """Every bar that these settings can be held to."""
    ours = {str(row["setting"]): row for row in numbered if row["method"] == OURS}
    made = [bar.claim(ours[setting]) for bar in BARS for setting in bar.settings if setting in ours]
    made += [_covered(row) for row in ours.values() if row["coverage"] is not None]
    made += _copies(numbered, ours)
    return (*made, *_predicted(table))


def _covered(row: Numbers) -> Claim:
    low, high = COVERED
    return Bar("coverage", "coverage of 90 % intervals", (), low, high).claim(row)


def _copies(numbered: Sequence[Numbers], ours: Mapping[str, Numbers]) -> Iterator[Claim]:
    """Equal copies are worth the same; copies with other batches are no farther apart than by the other methods."""
    for setting, row in ours.items():
        if row["gap"] is None:
            continue
        if "other batches" not in setting:
            yield Bar("share_d_above_half", "P(d > .5) of copies", (), most=0).claim(row)
            continue
        others = [float(r["gap"] or 0) for r in numbered if r["setting"] == setting and r["method"] in RIVALS]
        yield Bar("gap", "gap of copies", (), most=min(others)).claim(row)


def _predicted(table: Table) -> Iterator[Claim]:
    """Over all runs whose truth is exact."""
    runs = [one for found in table.values() for one in found.get(OURS, []) if one.truth_error == 0 and one.ratio]
    if len(runs) > 2:
        found = rounded_correlation([float(one.ratio or 0) for one in runs], [one.error for one in runs])
        why = f"{found:.2f}, bar ≥ {PREDICTED:g}, {len(runs)} runs"
        yield Claim("rank correlation of predicted and real error", found >= PREDICTED, why)
