"""Engines: where the oracle works. Batches of coalitions go in, their utilities come out, in whatever order.

A batch is measured in one call of the oracle, whoever makes the call. A utility does not depend on its batch, so every
engine gives the same bits; batches are as large as memory and a minute allow because coalitions share work.
"""

import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from fedworth.arrays import Indices, Memberships, Utilities
from fedworth.ledger.ledger import Round
from fedworth.utility.oracle import Oracle
from fedworth.utility.weighting import Mixtures, mixtures

ENGINES = ("local", "ray")

OpenRound = Callable[[int], Round]


@dataclass(frozen=True)
class Batch:
    """Coalitions of one round that are measured together; `cells` says where they stand in the plan."""

    round_index: int
    cells: Indices  # (n_coalitions,)
    coalitions: Memberships  # (n_coalitions, n_clients)
    weights: NDArray[np.float64]  # (n_clients,), from `round_weights`
    weighting: str

    def mixtures(self) -> Mixtures:
        """The coalitions as mixtures of the round's models."""
        return mixtures(self.coalitions, self.weights, self.weighting)


class Engine(Protocol):
    """Has batches measured, here or elsewhere."""

    def measure(
        self, oracle: Oracle, open_round: OpenRound, batches: Iterable[Batch]
    ) -> Iterator[tuple[Batch, Utilities]]:
        """Each batch with its utilities, as they are finished; batches of a round come one after the other."""


@dataclass(frozen=True)
class LocalEngine:
    """The oracle in this process, with its own threads; one round in memory at a time."""

    def measure(
        self, oracle: Oracle, open_round: OpenRound, batches: Iterable[Batch]
    ) -> Iterator[tuple[Batch, Utilities]]:
        """Each batch with its utilities, in the order given."""
        for round_index, of_round in itertools.groupby(batches, key=lambda batch: batch.round_index):
            round_ = open_round(round_index)
            for batch in of_round:
                yield batch, oracle.utilities(round_, batch.mixtures())
            del round_  # let go before the next one is opened
