"""The valuation: what each client is worth by one method, how sure that is, and what it rests on.

A client that cannot be valued has no value (NaN here, null in JSON): never a zero. `share` is for paying: what a
client's positive value is of all positive values, so that clients that did harm get nothing.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedworth.errors import UsageError, ValuationError, unknown_name
from fedworth.names import ValuedBy, checked_name
from fedworth.trail import Trail, trail_from
from fedworth.valuation.notebook import notebook_html
from fedworth.valuation.ranking import ranks_of
from fedworth.valuation.uncertainty import HALF_WIDTH, Uncertainty, uncertainty_from
from fedworth.valuation.worth import Covered, Worth, worth

BASES: dict[ValuedBy, str] = {
    "fedsv": "earned: what the client added in the rounds it took part in",
    "fedsv-later": "earned, without the rounds that heard everyone",
    "comfedsv": "potential: what the client would have added, had it always taken part",
    "comfedsv-factors": "potential, as the paper estimates it: by factors of the utilities alone",
    "truth": "truth: what the client would have added, measured with every client's model of every round",
    "heard-round": "baseline: the one round that heard everyone",
    "leave-one-out": "baseline: what the participants lose without the client, summed over its rounds",
    "banzhaf": "potential, every coalition of the others counting alike; the values do not add up to the whole",
    "beta-shapley": "potential, small coalitions counting most (Beta(16, 1)); the values do not add up to the whole",
    "least-core": "potential, paid so that no coalition has much to object",
    "tmc": "earned, by truncated permutations (TMC)",
    "gtg": "earned, by guided truncated permutations, rounds that changed little left out (GTG-Shapley)",
    "mr": "earned, later rounds counting less (MR)",
    "or": "earned over the whole training, from models rebuilt of the updates (OR)",
    "influence": "earned, to first order: how well the client's updates point where the test loss falls",
    "cosine": "reputation: how well the client's updates point where the average does (CGSV); no test set",
    "retraining": "truth of another kind: the federation trained anew for every coalition",
}
COLUMNS = ("client", "method", "value", "standard_error", "low", "high", "share", "rank", "rank_low", "rank_high")
"""Of `report.csv` and of data frames; low and high are the ends of the 90 % interval."""


@dataclass(frozen=True, eq=False, repr=False)
class Valuation:
    """Values of all clients by one method.

    `valuation["a"]` is the line of client a, iterating gives all lines in the clients' order, `sorted(valuation,
    reverse=True)` the most valuable first; two valuations are equal if their documents are.

    Example:
        valuation = fedworth.value(utilities, "fedsv")
        print(valuation["north"].value, max(valuation).client, valuation.shares)
    """

    method: ValuedBy
    clients: tuple[str, ...]
    values: NDArray[np.float64]  # (n_clients,), NaN where there is none
    standard_errors: NDArray[np.float64] | None = None  # (n_clients,), of Monte Carlo over permutations
    completion: dict[str, Any] | None = None
    warnings: tuple[str, ...] = ()
    uncertainty: Uncertainty | None = None
    trail: Trail | None = None

    def __post_init__(self) -> None:
        expected = (len(self.clients),)
        if self.values.shape != expected:
            raise ValuationError(f"{self.method}: values of shape {self.values.shape}, expected {expected}")
        if np.isinf(self.values).any():
            raise ValuationError(f"{self.method}: the value of a client is infinite")
        known = self.uncertainty
        if known is not None and not known.is_of(len(self.clients)):
            raise ValuationError(f"{self.method}: its uncertainty is of another number of clients than {expected[0]}")
        if self.standard_errors is not None and self.standard_errors.shape != expected:
            raise ValuationError(f"{self.method}: {len(self.standard_errors)} standard errors, expected {expected[0]}")

    @property
    def shares(self) -> NDArray[np.float64]:
        """(n_clients,): each client's part of all positive values; NaN without a value, or if none is positive."""
        positive = np.maximum(self.values, 0)
        total = float(np.nansum(positive))
        return positive / total if total > 0 else np.full(len(positive), np.nan)

    @property
    def ranks(self) -> tuple[int | None, ...]:
        """1 for the most valuable; values that differ by rounding alone share a rank; none without a value."""
        return tuple(None if math.isnan(rank) else int(rank) for rank in ranks_of(self.values))

    @property
    def covered(self) -> Covered:
        """What the intervals cover."""
        if self.uncertainty is not None and self.completion is not None:
            return Covered.ESTIMATES
        if self.uncertainty is not None or self.standard_errors is not None:
            return Covered.DRAWS
        return Covered.MEASURED if self.completion is None else Covered.UNKNOWN

    @property
    def intervals(self) -> NDArray[np.float64] | None:
        """(n_clients, 2): the ends of the 90 % intervals; NaN where one is not known, None where none is."""
        if self.uncertainty is not None:
            return self.uncertainty.intervals(self.values)
        if self.standard_errors is None:
            return None
        half = HALF_WIDTH * self.standard_errors
        return np.stack([self.values - half, self.values + half], axis=1)

    def __getitem__(self, client: str) -> Worth:
        if client not in self.clients:
            raise unknown_name("client", str(client), self.clients)
        return list(self)[self.clients.index(client)]

    def __iter__(self) -> Iterator[Worth]:
        known, n = self.intervals, len(self.clients)
        ranges = (None,) * n if self.uncertainty is None else self.uncertainty.rank_intervals
        intervals = [None] * n if known is None else known.tolist()
        lines = zip(
            self.clients, self.values.tolist(), intervals, self.shares.tolist(), self.ranks, ranges, strict=True
        )
        return (worth(*line) for line in lines)

    def __len__(self) -> int:
        return len(self.clients)

    def __eq__(self, other: object) -> bool:
        return self.document() == other.document() if isinstance(other, Valuation) else NotImplemented

    def __repr__(self) -> str:
        best = sorted(self, reverse=True)[:3]
        told = ", ".join(f"{line.client!r}: {line.value:+.4g}" for line in best if line.value is not None)
        return f"<Valuation by {self.method} of {len(self)} clients; {told}{', …' if len(self) > len(best) else ''}>"

    def _repr_html_(self) -> str:
        note = "" if self.uncertainty is None else self.uncertainty.sentence
        return notebook_html(f"{self.method} — {BASES[self.method]}", repr(self), list(self), note)

    def to_dataframe(self) -> Any:
        """A pandas data frame with a row a client, and the columns of `report.csv`.

        Example:
            fedworth.value(utilities, "fedsv").to_dataframe().sort_values("value")
        """
        try:
            import pandas
        except ImportError:
            raise UsageError("to_dataframe needs pandas: install it with  pip install 'fedworth[pandas]'") from None
        return pandas.DataFrame(self.rows(), columns=list(COLUMNS))

    def rows(self) -> list[tuple[Any, ...]]:
        """A row a client, in the order of `COLUMNS`; None where there is nothing to say."""
        errors = [None] * len(self) if self.standard_errors is None else _nullable(self.standard_errors)
        return [
            (line.client, self.method, line.value, error, line.low, line.high, line.share, line.rank, *_ends(line))
            for line, error in zip(self, errors, strict=True)
        ]

    def document(self) -> dict[str, Any]:
        """The valuation as JSON, in full precision."""
        return {
            "method": self.method,
            "clients": list(self.clients),
            "values": _nullable(self.values),
            "standard_errors": None if self.standard_errors is None else _nullable(self.standard_errors),
            "completion": self.completion,
            "warnings": list(self.warnings),
            "uncertainty": None if self.uncertainty is None else self.uncertainty.document(self.values),
            "trail": None if self.trail is None else self.trail.document(),
        }


def valuation_from(document: dict[str, Any]) -> Valuation:
    """The valuation that `document()` gave.

    Args:
        document: What `valuation.document()` gave.

    Returns:
        The valuation.

    Example:
        assert fedworth.valuation_from(valuation.document()) == valuation
    """
    try:
        errors, known = document["standard_errors"], document.get("uncertainty")
        return Valuation(
            checked_name("measure of worth", document["method"]),
            tuple(document["clients"]),
            _numbers(document["values"]),
            None if errors is None else _numbers(errors),
            document["completion"],
            tuple(document["warnings"]),
            None if known is None else uncertainty_from(known),
            trail_from(document.get("trail")),
        )
    except (KeyError, TypeError, ValueError, IndexError, UsageError) as error:
        raise ValuationError(f"not a valuation: {error!r}") from error


def _ends(line: Worth) -> tuple[int | None, int | None]:
    return (None, None) if line.ranks is None else line.ranks


def _nullable(numbers: NDArray[np.float64]) -> list[float | None]:
    return [None if math.isnan(number) else number for number in numbers.tolist()]


def _numbers(listed: list[float | None]) -> NDArray[np.float64]:
    return np.array([math.nan if number is None else number for number in listed], dtype=np.float64)
