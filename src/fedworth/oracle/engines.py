"""Engines: where the oracle works. In: batches of coalitions. Out: their utilities, in whatever order.

A batch is measured in one call of the oracle, whoever makes the call. A utility does not depend on its batch, so every
engine gives the same bits; batches are as large as memory and a minute allow because coalitions share work.
"""

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

from fedworth.oracle.batches import Batch, Measured, RoundOpener
from fedworth.oracle.oracle import Oracle
from fedworth.oracle.recheck import measured


class Engine(Protocol):
    """Has batches measured, here or elsewhere."""

    def measure(
        self, oracle: Oracle, open_round: RoundOpener, batches: Iterable[Batch]
    ) -> Iterator[tuple[Batch, Measured]]:
        """Each batch with its utilities, as they are finished; batches of a round come one after the other."""


@dataclass(frozen=True)
class LocalEngine:
    """The oracle in this process, with its own threads; one round in memory at a time."""

    def measure(
        self, oracle: Oracle, open_round: RoundOpener, batches: Iterable[Batch]
    ) -> Iterator[tuple[Batch, Measured]]:
        """Each batch with its utilities, in the order given."""
        for round_index, of_round in itertools.groupby(batches, key=lambda batch: batch.round_index):
            round_ = open_round(round_index)
            for batch in of_round:
                yield batch, measured(oracle, round_, batch)
            del round_  # let go before the next one is opened
