"""Settling: permutations measured some at a time, until ComFedSV's values are settled.

A longer plan begins with the permutations of a shorter one, and what is measured is kept, so that stopping early
costs no more than having asked for so few at once. Permutations come in squares (`squares`), and so are they measured.
The rules are those of `stopping`.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from fedworth.completion.factors import FactorSettings, complete
from fedworth.errors import UsageError
from fedworth.games.matrix import UtilityMatrix
from fedworth.valuation.comfedsv import comfedsv_estimate
from fedworth.valuation.stopping import StoppingReason, StoppingRule

FIRST_SHARE, GROWTH = 0.1, 1.5
FEWEST = 4
"""Permutations below which a standard error says too little to stop on."""
FEWEST_SQUARES = 2
"""Squares below which there is no standard error of squares."""

Measure = Callable[[int], UtilityMatrix]
"""Measures the first n permutations; fewer if a budget runs out."""


@dataclass(frozen=True)
class SettledUtilities:
    """The last utilities, of how many permutations they are, and why they are the last."""

    matrix: UtilityMatrix
    n_permutations: int
    reasons: tuple[StoppingReason, ...]


def measure_until(
    measure: Measure,
    rule: StoppingRule,
    *,
    most: int,
    n_clients: int,
    settings: FactorSettings | None = None,
    growth: float = GROWTH,
) -> SettledUtilities:
    """Measure a tenth of `most` permutations, then `growth` times as many, …, in whole squares of `n_clients`
    permutations, until the rule holds of the values, all of `most` are measured, or `measure` gives fewer than it was
    asked for."""
    for count in _counts(most, n_clients, growth):
        matrix = measure(count)
        n_drawn = 0 if matrix.permutations is None else len(matrix.permutations)
        if n_drawn < count:
            return SettledUtilities(matrix, n_drawn, (StoppingReason.BUDGET,))
        reasons = rule(comfedsv_estimate(matrix, complete(matrix, settings)))
        if reasons:
            return SettledUtilities(matrix, n_drawn, reasons)
    return SettledUtilities(matrix, n_drawn, (StoppingReason.BUDGET,))


def _counts(most: int, square: int, growth: float) -> Iterator[int]:
    if growth <= 1 or most < FEWEST:
        raise UsageError(
            f"at most {most} permutations, growing {growth}-fold: expected {FEWEST} or more, growth above 1"
        )
    count = max(FEWEST, FEWEST_SQUARES * square, round(FIRST_SHARE * most))
    while (whole := -(-count // square) * square) < most:
        yield whole
        count = max(whole + 1, int(whole * growth))
    yield most
