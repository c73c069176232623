"""Comparing reports on the same clients: across seeds, methods or weeks, do they say the same?

A difference of two values d = s_i − s_i' is judged by its own interval: d ± 1.645 √(sd² + sd'²), as if the errors of
the two reports were independent. They may not be (the same ledger, another method), and then this is too wide: a
difference that is called clear is clear.
"""

import csv
import io
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fedworth.errors import UsageError
from fedworth.names import checked_name
from fedworth.report.report import Report
from fedworth.report.tables import Table, harmless
from fedworth.valuation.notebook import digits_of, signed
from fedworth.valuation.ranking import rank_correlation
from fedworth.valuation.uncertainty import LEVEL
from fedworth.valuation.worth import Worth

WORDS_OF_COMPARISON = (
    "(1), (2), …: a client's value in each report; ±: half of the difference's 90 % interval; clear: larger than that"
)


@dataclass(frozen=True)
class ClientRow:
    """One client in every report."""

    client: str
    worths: tuple[Worth, ...]
    digits: int

    @property
    def largest(self) -> tuple[float, float | None] | None:
        """The largest difference between two reports, and half of its interval if that is known."""
        pairs = [found for a, b in itertools.combinations(self.worths, 2) if (found := difference(a, b)) is not None]
        return max(pairs, key=lambda pair: abs(pair[0]), default=None)

    @property
    def sentence(self) -> str:
        """The largest difference in words."""
        if self.largest is None:
            return "–"
        apart, half = self.largest
        digits = self.digits + 1
        text = signed(abs(apart), digits).removeprefix("+")
        if half is None:
            return f"{text}, range not known"
        return f"{text} ± {half:.{digits}f}: {'clear' if abs(apart) > half else 'not clear'}"


@dataclass(frozen=True)
class Pair:
    """Two reports, and how far they agree."""

    first: str
    second: str
    correlation: float | None
    n_clear: int
    n_known: int

    @property
    def sentence(self) -> str:
        """How many clients differ clearly."""
        return f"{self.n_clear} of {self.n_known} clients" if self.n_known else "not known: no ranges"


@dataclass(frozen=True)
class Comparison:
    """Reports side by side.

    Example:
        comparison = fedworth.compare_reports([report, report], ["June", "July"])
        print(comparison.sentence, comparison.rows[0].worths)
    """

    names: tuple[str, ...]
    rows: tuple[ClientRow, ...]
    pairs: tuple[Pair, ...]
    digits: int
    level: str = f"{LEVEL:.0%}".replace("%", "\N{NO-BREAK SPACE}%")

    @property
    def sentence(self) -> str:
        """What the comparison says, in one sentence."""
        found = [pair.correlation for pair in self.pairs if pair.correlation is not None]
        n_clear, n_known = sum(pair.n_clear for pair in self.pairs), sum(pair.n_known for pair in self.pairs)
        agree = f"Their rankings agree with a correlation of {min(found):.2f} or more" if found else "They rank nobody"
        clear = f"; {n_clear} of {n_known} differences are clear" if n_known else "; no range is known"
        return f"{agree}{clear}."

    def document(self) -> dict[str, Any]:
        """The comparison as JSON."""
        return {
            "reports": list(self.names),
            "clients": [
                {
                    "client": row.client,
                    "values": [worth.value for worth in row.worths],
                    "intervals_90": [None if worth.low is None else [worth.low, worth.high] for worth in row.worths],
                    "largest_difference": None if row.largest is None else row.largest[0],
                    "half_width_90": None if row.largest is None else row.largest[1],
                }
                for row in self.rows
            ],
            "pairs": [
                {
                    "reports": [pair.first, pair.second],
                    "rank_correlation": pair.correlation,
                    "n_clear_differences": pair.n_clear,
                    "n_compared": pair.n_known,
                }
                for pair in self.pairs
            ],
        }


def compare_reports(reports: Sequence[Report], names: Sequence[str], *, methods: Sequence[str] = ()) -> Comparison:
    """Reports on the same clients, side by side.

    Args:
        reports: Two reports or more on the same clients, or one and two methods or more.
        names: What each report is called.
        methods: Compare by these methods; by each report's chosen one if there are none.

    Returns:
        How far the reports agree, and which differences are clear.

    Example:
        reports = [fedworth.read_report(f"{run}/report.json") for run in ("a", "b")]
        fedworth.compare_reports(reports, ["a", "b"])
    """
    columns = _columns(reports, names, methods)
    if len(columns) < 2:
        raise UsageError("one column of values cannot be compared; name two runs or more, or two methods with --method")
    first = [line.client for line in columns[0][1]]
    for name, lines in columns[1:]:
        if sorted(line.client for line in lines) != sorted(first):
            raise UsageError(
                f"{name}: has other clients than {columns[0][0]}; only reports on the same clients compare"
            )
    by_client = [{line.client: line for line in lines} for _, lines in columns]
    digits = max(digits_of(lines) for _, lines in columns)
    rows = tuple(ClientRow(client, tuple(found[client] for found in by_client), digits) for client in first)
    labels = tuple(name for name, _ in columns)
    places = itertools.combinations(range(len(columns)), 2)
    return Comparison(labels, rows, tuple(_pair(labels, rows, a, b) for a, b in places), digits)


def difference(first: Worth, second: Worth) -> tuple[float, float | None] | None:
    """How far two values are apart, and half of the interval of that, if it is known."""
    if first.value is None or second.value is None:
        return None
    if first.low is None or second.low is None:
        return second.value - first.value, None
    return second.value - first.value, math.hypot(first.value - first.low, second.value - second.low)


def comparison_table(comparison: Comparison) -> Table:
    """The comparison for a terminal."""
    headings = ("client", *(f"({k})" for k in range(1, len(comparison.names) + 1)), "largest difference")
    rows = tuple(
        (row.client, *(signed(worth.value, comparison.digits) for worth in row.worths), row.sentence)
        for row in comparison.rows
    )
    return Table("What each client is worth in each report", headings, rows, words=WORDS_OF_COMPARISON)


def comparison_csv(comparison: Comparison) -> str:
    """A line a client and report, in full precision; text that a spreadsheet would run as a formula is quoted."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(["client", "report", "value", "low", "high"])
    for row in comparison.rows:
        for name, worth in zip(comparison.names, row.worths, strict=True):
            numbers = ("" if number is None else number for number in (worth.value, worth.low, worth.high))
            writer.writerow([harmless(row.client), harmless(name), *numbers])
    return buffer.getvalue()


def _columns(reports: Sequence[Report], names: Sequence[str], methods: Sequence[str]) -> list[tuple[str, list[Worth]]]:
    columns = []
    for report, name in zip(reports, names, strict=True):
        for method in methods or (report.chosen.method,):
            found = report.valuation(checked_name("method", method))
            if found is None:
                known = ", ".join(made.method for made in report.valuations)
                raise UsageError(f"{name}: has no values by {method}; it has {known}")
            columns.append((f"{name}, {method}" if methods else name, list(found)))
    return columns


def _pair(labels: tuple[str, ...], rows: tuple[ClientRow, ...], a: int, b: int) -> Pair:
    first, second = ([math.nan if (v := row.worths[k].value) is None else v for row in rows] for k in (a, b))
    found = [difference(row.worths[a], row.worths[b]) for row in rows]
    known = [(apart, half) for apart, half in (pair for pair in found if pair is not None) if half is not None]
    n_clear = sum(abs(apart) > half for apart, half in known)
    return Pair(labels[a], labels[b], rank_correlation(first, second), n_clear, len(known))
