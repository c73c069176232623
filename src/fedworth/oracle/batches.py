"""A batch: what an engine has measured in one call of the oracle, and what comes back.

A batch holds coalitions of one round, since an oracle shares work among them.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedworth.arrays import Indices, Memberships, Utilities
from fedworth.coalitions import names
from fedworth.ledger.ledger import Round
from fedworth.names import Weighting
from fedworth.oracle.weighting import Mixtures, mixtures

RoundOpener = Callable[[int], Round]
"""What opens a round by its index."""


@dataclass(frozen=True)
class Witness:
    """What a round's global model loses on the test set, in a few numbers: by it another run knows the same task."""

    projections: NDArray[np.float64]  # (n_projections,)
    tolerance: float  # how far rounding may bring them

    def agrees(self, projections: NDArray[np.float64]) -> bool:
        """Whether no number differs by more than rounding."""
        return bool((np.abs(self.projections - projections) <= self.tolerance).all())


@dataclass(frozen=True)
class Batch:
    """Coalitions of one round that are measured together; `cells` says where they stand in the plan."""

    round_index: int
    cells: Indices  # (n_coalitions,)
    coalitions: Memberships  # (n_coalitions, n_clients)
    weights: NDArray[np.float64]  # (n_clients,), from `round_weights`
    weighting: Weighting
    clients: tuple[str, ...]  # their names

    def mixtures(self) -> Mixtures:
        """The coalitions as mixtures of the round's models."""
        return mixtures(self.coalitions, self.weights, self.weighting)

    def where(self, row: int) -> str:
        """Round and coalition, for a person to read."""
        return f"round {self.round_index}, coalition {names(self.coalitions[row], self.clients)}"


@dataclass(frozen=True)
class Measured:
    """A batch's utilities, and the witness of the task that they were measured on."""

    utilities: Utilities  # (n_coalitions,)
    witness: Witness | None  # None if the oracle does not say what it measures on

    @property
    def checked_witness(self) -> Witness:
        """The witness of what an oracle with a task has measured."""
        assert self.witness is not None
        return self.witness
