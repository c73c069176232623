"""How the values came about, round by round: who took part, what each round gained, and what it added to whom."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedworth.completion.completion import Completion
from fedworth.errors import ArtefactError
from fedworth.games.matrix import UtilityMatrix
from fedworth.valuation.by_round import comfedsv_by_round, fedsv_by_round, gains
from fedworth.valuation.valuation import Valuation

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Rounds:
    """The rounds of a federation; `numbers` are the federation's own."""

    numbers: tuple[int, ...]
    participants: NDArray[np.bool_]  # (n_rounds, n_clients)
    gains: Floats | None = None  # (n_rounds,): what each round's participants gained together
    values: Mapping[str, Floats] = field(default_factory=dict)  # method → (n_rounds, n_clients), NaN: no value

    def __post_init__(self) -> None:
        shape = self.participants.shape
        wrong = [f"{method} of shape {found.shape}" for method, found in self.values.items() if found.shape != shape]
        if len(self.numbers) != shape[0] or (self.gains is not None and self.gains.shape != shape[:1]) or wrong:
            raise ArtefactError(f"rounds: {', '.join(wrong) or 'numbers or gains'} do not fit participants of {shape}")

    def document(self) -> dict[str, Any]:
        """The rounds as JSON: participants by their places among the clients."""
        return {
            "n_clients": self.participants.shape[1],
            "numbers": list(self.numbers),
            "participants": [np.flatnonzero(row).tolist() for row in self.participants],
            "gains": None if self.gains is None else self.gains.tolist(),
            "values": {method: [_nullable(row) for row in found] for method, found in self.values.items()},
        }


def rounds_from(document: Any) -> Rounds | None:
    """The rounds that `document()` gave; None if there were none."""
    if document is None:
        return None
    try:
        participants = np.zeros((len(document["numbers"]), int(document["n_clients"])), dtype=bool)
        for row, members in zip(participants, document["participants"], strict=True):
            row[members] = True
        made = {method: _numbers(rows, participants.shape) for method, rows in document["values"].items()}
        found = None if document["gains"] is None else np.array(document["gains"], dtype=np.float64)
        return Rounds(tuple(int(number) for number in document["numbers"]), participants, found, made)
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise ArtefactError(f"not the rounds of a report: {error!r}") from error


def rounds_of_report(
    matrix: UtilityMatrix,
    valuations: tuple[Valuation, ...],
    completed: Callable[[], Completion],
    *,
    numbers: tuple[int, ...] | None = None,
) -> Rounds:
    """The rounds behind these valuations; `completed` gives the completion of ComFedSV, and is asked only if that was
    valued."""
    methods = {valuation.method for valuation in valuations}
    values: dict[str, Floats] = {}
    if "comfedsv" in methods:
        found = comfedsv_by_round(matrix, completed())
        values |= {} if found is None else {"comfedsv": found}
    if "fedsv" in methods:
        values["fedsv"] = fedsv_by_round(matrix)
    return Rounds(numbers or tuple(range(1, matrix.n_rounds + 1)), matrix.participants, gains(matrix), values)


def _nullable(row: Floats) -> list[float | None]:
    return [None if math.isnan(number) else number for number in row.tolist()]


def _numbers(rows: list[list[float | None]], shape: tuple[int, ...]) -> Floats:
    return np.array([[math.nan if x is None else x for x in row] for row in rows], dtype=np.float64).reshape(shape)
