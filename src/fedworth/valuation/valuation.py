"""The valuation: what each client is worth by one method, how sure that is, and what it rests on.

A client that cannot be valued has no value (NaN here, null in JSON): never a zero. `share` is for paying: what a
client's positive value is of all positive values, so that clients that did harm get nothing.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedworth.errors import UsageError, ValuationError
from fedworth.names import MethodName, checked_name
from fedworth.trail import Trail, trail_from
from fedworth.valuation.ranking import ranks_of
from fedworth.valuation.uncertainty import Uncertainty, uncertainty_from

BASES: dict[MethodName, str] = {
    "fedsv": "earned: what the client added in the rounds it took part in",
    "fedsv-later": "earned, without the rounds that heard everyone",
    "comfedsv": "potential: what the client would have added, had it always taken part",
    "comfedsv-factors": "potential, as the paper estimates it: by factors of the utilities alone",
    "truth": "truth: what the client would have added, measured with every client's model of every round",
    "heard-round": "baseline: the one round that heard everyone",
    "leave-one-out": "baseline: what the participants lose without the client, summed over its rounds",
}


@dataclass(frozen=True)
class Valuation:
    """Values of all clients by one method."""

    method: MethodName
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
    """The valuation that `document()` gave."""
    try:
        errors, known = document["standard_errors"], document.get("uncertainty")
        return Valuation(
            checked_name("method", document["method"]),
            tuple(document["clients"]),
            _numbers(document["values"]),
            None if errors is None else _numbers(errors),
            document["completion"],
            tuple(document["warnings"]),
            None if known is None else uncertainty_from(known),
            trail_from(document.get("trail")),
        )
    except (KeyError, TypeError, UsageError) as error:
        raise ValuationError(f"not a valuation: {error!r}") from error


def _nullable(numbers: NDArray[np.float64]) -> list[float | None]:
    return [None if math.isnan(number) else number for number in numbers.tolist()]


def _numbers(listed: list[float | None]) -> NDArray[np.float64]:
    return np.array([math.nan if number is None else number for number in listed], dtype=np.float64)
