"""One client's line of a valuation: its value, how sure that is, its share and its rank."""

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class Covered(StrEnum):
    """What the intervals of a valuation cover."""

    ESTIMATES = "what was estimated, because no round has shown it"
    DRAWS = "which coalitions were drawn to be measured"
    MEASURED = "nothing: every coalition that the values rest on was measured"
    UNKNOWN = "nothing: how far off the estimates may be is not known"


@dataclass(frozen=True, slots=True)
class Worth:
    """What one client is worth; None where there is no value, or where an error is not known.

    Sorting a valuation sorts these by value, clients without one first.

    Example:
        line = report["north"]
        print(line.value, line.low, line.high, line.share, line.rank, line.ranks)
    """

    client: str
    value: float | None
    low: float | None  # of the interval
    high: float | None
    share: float | None
    rank: int | None
    ranks: tuple[int, int] | None  # the rank's interval

    def __lt__(self, other: "Worth") -> bool:
        return _place(self) < _place(other)

    @property
    def helps(self) -> bool | None:
        """Whether the whole interval lies above zero, or below it; None if neither, or if that is not known."""
        if self.value is None:
            return None
        low, high = (self.value if end is None else end for end in (self.low, self.high))
        return True if low > 0 else False if high < 0 else None


def worth(client: str, value: float, interval: Any, share: float, rank: int | None, ranks: Any) -> Worth:
    """A line from numbers, some of which may be NaN."""
    low, high = (None, None) if interval is None else (number(end) for end in interval)
    return Worth(client, number(value), low, high, number(share), rank, ranks)


def number(value: float) -> float | None:
    """A number, or None for NaN."""
    return None if math.isnan(value) else float(value)


def _place(line: Worth) -> float:
    return -math.inf if line.value is None else line.value
