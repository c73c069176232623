"""What a study found: numbers, which of the paper's claims held, and pictures described without a plotting library.

A claim that these runs do not decide is open. A study's verdict follows from its claims: all hold — holds; some hold,
the others not or open — holds in part; none holds and one or more does not — does not hold; all open — open.
"""

import csv
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

Cell = str | int | float | None


class Verdict(StrEnum):
    """Whether the paper's claim held."""

    HOLDS = "holds"
    IN_PART = "holds in part"
    FAILS = "does not hold"
    OPEN = "open"


@dataclass(frozen=True, slots=True)
class Claim:
    """One thing the paper says, whether it held here (None: cannot be judged from these runs), and the evidence."""

    what: str
    holds: bool | None
    why: str
    setting: str = ""  # paper-like or practical, where a claim is judged at both

    @property
    def verdict(self) -> Verdict:
        """The claim's own verdict."""
        return Verdict.OPEN if self.holds is None else Verdict.HOLDS if self.holds else Verdict.FAILS

    @property
    def named(self) -> str:
        """What is claimed, and at which setting."""
        return f"{self.what}, {self.setting}" if self.setting else self.what


@dataclass(frozen=True, slots=True)
class Series:
    """One line or one set of bars: named by a method's key, or by its own label."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float] = ()
    high: Sequence[float] = ()
    is_papers: bool = False  # the paper's own numbers for what is named so


@dataclass(frozen=True, slots=True)
class Panel:
    """One pair of axes. `kind`: line, points, steps or bars; `ticks` name the places on the horizontal axis, `levels`
    are horizontal lines with a name each."""

    title: str
    across: str
    up: str
    series: tuple[Series, ...]
    kind: str = "line"
    logarithmic: bool = False
    ticks: tuple[str, ...] = ()
    limits: tuple[float, float] | None = None
    levels: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True)
class Outcome:
    """A study's findings."""

    study: str
    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    shown: tuple[str, ...]  # headings of the page's table
    lines: tuple[tuple[str, ...], ...]  # its cells
    claims: tuple[Claim, ...]
    panels: tuple[Panel, ...]
    notes: tuple[str, ...] = ()
    all_shown: tuple[str, ...] = ()  # headings and cells of the appendix's table
    all_lines: tuple[tuple[str, ...], ...] = ()
    all_panels: tuple[Panel, ...] = ()  # pictures of the appendix

    @property
    def verdict(self) -> Verdict:
        """The verdict over all claims."""
        return verdict_of(self.claims)

    def sentence(self) -> str:
        """One line that says whether the paper's claim held, and why."""
        said = "; ".join(f"{claim.named}: {claim.verdict} ({claim.why})" for claim in self.claims)
        return f"{self.study}: {self.verdict} — {said}" if said else f"{self.study}: no claim of the paper's"

    def csv_text(self) -> str:
        """The numbers in full precision, one line a row; an empty cell is a number that there is none of."""
        buffer = io.StringIO()
        writer = csv.writer(buffer, lineterminator="\n")
        writer.writerow(self.columns)
        writer.writerows([_written(cell) for cell in row] for row in self.rows)
        return buffer.getvalue()

    def document(self) -> dict[str, Any]:
        """The findings as JSON."""
        rows = [dict(zip(self.columns, map(_plain, row), strict=True)) for row in self.rows]
        claims = [{"claim": c.named, "verdict": str(c.verdict), "why": c.why} for c in self.claims]
        return {"study": self.study, "verdict": str(self.verdict), "claims": claims, "rows": rows}


def verdict_of(claims: Sequence[Claim]) -> Verdict:
    """What the claims add up to."""
    found = {claim.verdict for claim in claims}
    if Verdict.HOLDS in found:
        return Verdict.HOLDS if len(found) == 1 else Verdict.IN_PART
    return Verdict.FAILS if Verdict.FAILS in found else Verdict.OPEN


def _plain(cell: Cell) -> Cell:
    return None if isinstance(cell, float) and not math.isfinite(cell) else cell


def _written(cell: Cell) -> str:
    plain = _plain(cell)
    return "" if plain is None else repr(plain) if isinstance(plain, float) else str(plain)
