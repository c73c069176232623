"""Comparison of reports on the same clients: do they agree across seeds, methods or weeks?

A difference of two values d = s_i − s_i' is judged by its own interval d ± 1.645 √(sd² + sd'²), as if the errors of the
two reports were independent. If they are not (the same ledger, another method), the interval is too wide, so a
difference that is called clear is clear.
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedworth.errors import UsageError
from fedworth.records import differing
from fedworth.report.report import Report
from fedworth.report.tables import Table, csv_of
from fedworth.storage import Place, json_bytes, write_together
from fedworth.valuation.notebook import digits_of, signed
from fedworth.valuation.ranking import rank_correlation
from fedworth.valuation.valuation import ClientValue

if TYPE_CHECKING:
    from fedworth.report.settings import PageSettings

LEGEND = "(1), (2), …: value in each report; ±: half of the difference's 90 % interval; clear: larger than that"


@dataclass(frozen=True)
class ComparedClient:
    """One client in every report."""

    client: str
    values: tuple[ClientValue, ...]
    digits: int

    @property
    def largest(self) -> tuple[float, float | None] | None:
        """The largest difference between two reports, and half of its interval if that is known."""
        pairs = (_difference(a, b) for a, b in itertools.combinations(self.values, 2))
        return max((pair for pair in pairs if pair is not None), key=lambda pair: abs(pair[0]), default=None)

    @property
    def sentence(self) -> str:
        """The largest difference in words."""
        if self.largest is None:
            return "–"
        apart, half = self.largest
        text = f"{abs(apart):,.{self.digits + 1}f}"
        if half is None:
            return f"{text}, range not known"
        return f"{text} ± {half:.{self.digits + 1}f}: {'clear' if abs(apart) > half else 'not clear'}"


@dataclass(frozen=True)
class ComparedPair:
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
        comparison = fedworth.Comparison.of([report, report], ["June", "July"])
        print(comparison.sentence, comparison.rows[0].values)
    """

    names: tuple[str, ...]
    rows: tuple[ComparedClient, ...]
    pairs: tuple[ComparedPair, ...]
    digits: int
    differing: tuple[str, ...] = ()  # which reports are valued differently from the first, and how

    @staticmethod
    def of(reports: Sequence[Report], names: Sequence[str], *, methods: Sequence[str] = ()) -> "Comparison":
        """Compare reports on the same clients.

        Args:
            reports: Two or more reports on the same clients, or one report and two or more methods.
            names: A name for each report.
            methods: Compare by these methods; by default each report's chosen one.

        Returns:
            How far the reports agree, and which differences are clear.

        Example:
            reports = [fedworth.Report.read(run) for run in ("a", "b")]
            fedworth.Comparison.of(reports, ["a", "b"])
        """
        columns = [
            (f"{name}, {method}" if methods else name, list(report.valued_by(method)))
            for report, name in zip(reports, names, strict=True)
            for method in methods or (report.chosen.method,)
        ]
        if len(columns) < 2:
            raise UsageError("only one column of values; name two or more runs, or two or more methods with --method")
        clients = [line.client for line in columns[0][1]]
        for name, lines in columns[1:]:
            if sorted(line.client for line in lines) != sorted(clients):
                raise UsageError(f"{name}: has other clients than {columns[0][0]}; compare reports on the same clients")
        by_client = [{line.client: line for line in lines} for _, lines in columns]
        digits = max(digits_of(lines) for _, lines in columns)
        rows = tuple(ComparedClient(client, tuple(found[client] for found in by_client), digits) for client in clients)
        labels = tuple(name for name, _ in columns)
        places = itertools.combinations(range(len(columns)), 2)
        others = tuple(
            f"{name} is valued differently from {names[0]} ({found}), and their values may differ because of this"
            for report, name in zip(reports, names, strict=True)
            if (found := _differing(report, reports[0], methods))
        )
        return Comparison(labels, rows, tuple(_pair(labels, rows, a, b) for a, b in places), digits, others)

    @property
    def sentence(self) -> str:
        """The result in one sentence."""
        found = [pair.correlation for pair in self.pairs if pair.correlation is not None]
        n_clear, n_known = sum(pair.n_clear for pair in self.pairs), sum(pair.n_known for pair in self.pairs)
        agree = (
            f"Their rankings agree with a correlation of {min(found):.2f} or more" if found else "No ranking differs"
        )
        clear = f"; {n_clear} of {n_known} differences are clear" if n_known else "; no range is known"
        return " ".join([f"{agree}{clear}.", *(f"{text}." for text in self.differing)])

    def document(self) -> dict[str, Any]:
        """The comparison as JSON."""
        return {
            "reports": list(self.names),
            "differing": list(self.differing),
            "clients": [
                {
                    "client": row.client,
                    "values": [line.value for line in row.values],
                    "intervals_90": [None if line.low is None else [line.low, line.high] for line in row.values],
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

    def table(self) -> Table:
        """The comparison for a terminal."""
        headings = ("client", *(f"({k})" for k in range(1, len(self.names) + 1)), "largest difference")
        rows = tuple(
            (row.client, *(signed(line.value, self.digits) for line in row.values), row.sentence) for row in self.rows
        )
        return Table("What each client is worth in each report", headings, rows, legend=LEGEND)

    def csv_text(self) -> str:
        """A line for each client and report in full precision."""
        lines = ((row.client, name, x) for row in self.rows for name, x in zip(self.names, row.values, strict=True))
        rows = ((client, name, line.value, line.low, line.high) for client, name, line in lines)
        return csv_of(["client", "report", "value", "low", "high"], rows)

    def page_html(self, settings: "PageSettings | None" = None) -> str:
        """The page of the comparison: one HTML file that needs nothing else."""
        from fedworth.report.page.page import comparison_html

        return comparison_html(self, settings)

    def write(self, folder: Place, page: "PageSettings | None" = None) -> list[Path]:
        """Write `compare.html`, `compare.json` and `compare.csv`."""
        texts = {
            "html": self.page_html(page).encode(),
            "json": json_bytes(self.document()),
            "csv": self.csv_text().encode(),
        }
        return write_together(Path(folder), {f"compare.{ending}": text for ending, text in texts.items()})

    def plot(self, ax: Any = None) -> Any:
        """Each client's value in each report on matplotlib axes; returns the axes.

        Example:
            comparison.plot().figure.savefig("compare.svg")
        """
        from fedworth.report import plots

        return plots.comparison(self, ax)


def _differing(report: Report, first: Report, methods: Sequence[str]) -> str:
    """How two reports were valued differently; the seed does not count, since runs of several seeds are compared."""
    both: list[dict[str, Any]] = [{} if methods else {"method": made.chosen.method} for made in (report, first)]
    if report.provenance is not None and first.provenance is not None:  # else the settings are not known
        for settings, made in zip(both, (report.provenance, first.provenance), strict=True):
            settings.update(made.settings, seed=None)
    return differing(*both)


def _difference(first: ClientValue, second: ClientValue) -> tuple[float, float | None] | None:
    """The difference of two values, and half of its interval if that is known."""
    if first.value is None or second.value is None:
        return None
    if first.low is None or second.low is None:
        return second.value - first.value, None
    return second.value - first.value, math.hypot(first.value - first.low, second.value - second.low)


def _pair(labels: tuple[str, ...], rows: tuple[ComparedClient, ...], a: int, b: int) -> ComparedPair:
    first, second = ([math.nan if (v := row.values[k].value) is None else v for row in rows] for k in (a, b))
    found = [_difference(row.values[a], row.values[b]) for row in rows]
    known = [(apart, half) for apart, half in (pair for pair in found if pair is not None) if half is not None]
    n_clear = sum(abs(apart) > half for apart, half in known)
    return ComparedPair(labels[a], labels[b], rank_correlation(first, second), n_clear, len(known))
