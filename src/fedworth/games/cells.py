"""The cells of a plan while they are being measured: which are known, and which batch is next.

A batch holds what is still missing of one round, since an oracle shares work among coalitions. A round is cut into
several batches, permutation by permutation, where its mixtures would not fit in memory, or where one would take longer
than a minute or so: what is measured is kept batch by batch, and between batches a time limit is looked at. Utilities
do not depend on it.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from fedworth.arrays import Indices, Memberships, Utilities
from fedworth.errors import UtilityError
from fedworth.games.planning.budget import arrivals
from fedworth.games.planning.plan import Plan
from fedworth.ledger.ledger import Ledger
from fedworth.names import Weighting
from fedworth.oracle.batches import Batch
from fedworth.oracle.weighting import round_weights

BATCH_NUMBERS = 1 << 24
"""Coefficients of the mixtures of one batch: 128 MB of them."""

BATCH_SECONDS = 60.0
"""What a batch may take, by the speed so far."""

FIRST_BATCH = 256
"""Cells of the first batch, before any speed is known: a minute of a large convolutional network."""


@dataclass(frozen=True)
class RoundCells:
    """One round's planned coalitions and their utilities, NaN as long as they are missing."""

    round_index: int
    coalitions: Memberships  # (n_cells, n_clients)
    utilities: Utilities  # (n_cells,)
    weights: NDArray[np.float64]  # (n_clients,)
    weighting: Weighting
    clients: tuple[str, ...]

    @property
    def missing(self) -> Indices:
        """Which cells are to be measured."""
        return np.flatnonzero(np.isnan(self.utilities))

    def batch(self, cells: Indices) -> Batch:
        """Some of the cells, to be measured together."""
        return Batch(self.round_index, cells, self.coalitions[cells], self.weights, self.weighting, self.clients)

    def fill(self, batch: Batch, utilities: Utilities) -> None:
        """Put measured utilities in their place; there is no default for one that failed."""
        bad = np.flatnonzero(~np.isfinite(utilities))
        if len(bad):
            raise UtilityError(f"{batch.where(bad[0])}: utility is {utilities[bad[0]]}, expected a finite number")
        self.utilities[batch.cells] = utilities


def planned_cells(ledger: Ledger, plan: Plan, weighting: Weighting) -> list[RoundCells]:
    """The cells of every round, none measured; U_t(∅) = 0 is known."""
    rounds = []
    for t, coalitions in enumerate(plan.cells):
        utilities = np.where(coalitions.any(axis=1), np.nan, 0.0)
        weights = round_weights(ledger, t, weighting)  # (n_clients,)
        rounds.append(RoundCells(t, coalitions, utilities, weights, weighting, ledger.clients))
    return rounds


@dataclass
class Pace:
    """The speed so far, and how many cells a batch may have by it."""

    n_measured: int = 0
    start: float = field(default_factory=time.monotonic)

    @property
    def most(self) -> int:
        """The most cells of the next batch."""
        speed = self.n_measured / max(time.monotonic() - self.start, 1e-9)
        return max(FIRST_BATCH, int(BATCH_SECONDS * speed))


def batches(plan: Plan, rounds: list[RoundCells], wanted: list[Indices], pace: Pace) -> Iterator[Batch]:
    """The wanted cells of each round, the round with most cells first; the pace is looked at for every batch."""
    for t in sorted(range(len(rounds)), key=lambda t: -len(plan.cells[t])):
        left, in_memory = wanted[t], max(1, BATCH_NUMBERS // plan.cells[t].shape[1])
        if len(left) > min(pace.most, in_memory):
            left = left[np.argsort(arrivals(plan, t)[left], kind="stable")]
        while len(left):
            n = min(pace.most, in_memory)
            yield rounds[t].batch(np.sort(left[:n]))
            left = left[n:]
