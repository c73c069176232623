"""A recorded federation as a sequence of games: each round's participants, measured by one oracle.

In: a ledger, an oracle, a weighting. Out: `Recorded`, whose rounds are games that count what they measure. Coalitions
are aggregated as the ledger's own server would have, or the ledger is refused, as in `observe`.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedworth.arrays import Indices
from fedworth.errors import LedgerError
from fedworth.ledger.ledger import Ledger, Round
from fedworth.utility.games import RoundGame
from fedworth.utility.observe import participation, round_weights
from fedworth.utility.oracle import TaskOracle
from fedworth.utility.server import server_of
from fedworth.valuation.rivals.counted import CountedGame

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class PlayedRound:
    """One round: who took part, what each counts, and the game among them."""

    round_: Round
    members: Indices  # (n,)
    weights: Floats  # (n_clients,)
    game: CountedGame
    slopes: Callable[[], Floats]  # how steeply the utility rises from the global model towards each member

    @property
    def shares(self) -> Floats:
        """(n,): what each member counts in the average of all."""
        own = self.weights[self.members]
        return np.asarray(own / own.sum())


@dataclass(frozen=True)
class Recorded:
    """A ledger, what measures it, and how coalitions are averaged."""

    ledger: Ledger
    oracle: TaskOracle
    weighting: str
    notes: tuple[str, ...] = ()

    @property
    def clients(self) -> tuple[str, ...]:
        return self.ledger.clients

    @property
    def participants(self) -> NDArray[np.bool_]:
        """(n_rounds, n_clients): whose models were aggregated when."""
        return participation(self.ledger)

    def rounds(self) -> Iterator[PlayedRound]:
        """The rounds in order, one in memory at a time; a round without participants is left out."""
        for round_index, row in enumerate(self.participants):
            members = np.flatnonzero(row)
            if len(members) == 0:
                continue
            opened = self.ledger.open_round(round_index)
            weights = round_weights(self.ledger, round_index, self.weighting)
            game = RoundGame(self.oracle, opened, members, weights, self.weighting)
            yield PlayedRound(opened, members, weights, CountedGame(len(members), game), game.first_slopes)


def recorded(ledger: Ledger, oracle: TaskOracle, *, weighting: str | None = None, as_average: bool = False) -> Recorded:
    """The ledger's rounds as games; a server that did not follow its rule is refused, unless asked for by name."""
    if ledger.n_rounds == 0:
        raise LedgerError(f"{ledger.folder}: no recorded rounds in it, so there is nothing to value")
    weighting = weighting or ledger.default_weighting
    server = server_of(ledger, oracle, weighting, as_average=as_average)
    measured = server.oracle if isinstance(server.oracle, TaskOracle) else oracle
    return Recorded(ledger, measured, weighting, ledger.warnings() + server.notes)
