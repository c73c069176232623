"""A recorded federation as a sequence of games: each round's participants, measured by one oracle.

In: a ledger, an oracle, a weighting. Out: `Recorded`, whose rounds are games that count what they measure. Coalitions
are aggregated as the ledger's own server would have, or the ledger is refused, as in `observe`.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedworth.arrays import Floats, Indices, Memberships, Utilities
from fedworth.errors import LedgerError
from fedworth.games import RoundGame
from fedworth.ledger.ledger import Ledger, Model, Round
from fedworth.names import Weighting
from fedworth.oracle.oracle import TaskOracle
from fedworth.oracle.server import server_of
from fedworth.oracle.weighting import Mixtures, participation, round_weights
from fedworth.storage import Place
from fedworth.valuation.rivals.counted import CountedGame

TOGETHER = 64
"""Models of coalitions in memory at once."""


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
    oracle: TaskOracle  # as the server aggregates
    plain: TaskOracle  # of models as they are
    weighting: Weighting
    notes: tuple[str, ...] = ()
    data_folder: Place | None = None  # where the data sets of simulated federations are

    @property
    def clients(self) -> tuple[str, ...]:
        return self.ledger.clients

    @property
    def participants(self) -> NDArray[np.bool_]:
        """(n_rounds, n_clients): whose models were aggregated when."""
        return participation(self.ledger)

    @property
    def heard(self) -> Indices:
        """The clients that some round has heard."""
        return np.flatnonzero(self.participants.any(axis=0))

    def game_of_models(self, models_of: Callable[[Memberships], Iterable[Model]]) -> CountedGame:
        """The game among the heard in which a coalition has the model that `models_of` makes of it: how much smaller
        its loss is than the first global model's."""

        def measure(rows: Memberships) -> Utilities:
            coalitions = np.zeros((len(rows), len(self.clients)), dtype=bool)
            coalitions[:, self.heard] = rows
            parts = [
                self._utilities(models_of(part)) for part in np.split(coalitions, range(TOGETHER, len(rows), TOGETHER))
            ]
            return np.concatenate(parts)

        return CountedGame(len(self.heard), measure)

    def _utilities(self, models: Iterable[Model]) -> Utilities:
        """Each model stands for one client of a round that starts at the first global model."""
        first, made = self.ledger.open_round(0), dict(enumerate(models))
        alone = Mixtures(np.eye(len(made), dtype=bool), np.ones(len(made)), from_global=False)
        return np.asarray(self.plain.utilities(Round(first.entry, first.global_model, made, {}), alone).sum(axis=1))

    def rounds(self) -> Iterator[PlayedRound]:
        """The rounds in order, one in memory at a time; a round without participants is left out."""
        for round_index, row in enumerate(self.participants):
            members = np.flatnonzero(row)
            if len(members) == 0:
                continue
            opened = self.ledger.open_round(round_index)
            weights = round_weights(self.ledger, round_index, self.weighting)
            game = RoundGame(self.oracle, opened, members, weights, self.weighting, self.ledger.clients)
            yield PlayedRound(opened, members, weights, CountedGame(len(members), game), game.first_slopes)


def recorded(
    ledger: Ledger,
    oracle: TaskOracle,
    *,
    weighting: Weighting | None = None,
    as_average: bool = False,
    data_folder: Place | None = None,
) -> Recorded:
    """The ledger's rounds as games; a server that did not follow its rule is refused, unless asked for by name."""
    if ledger.n_rounds == 0:
        raise LedgerError(f"{ledger.folder}: no recorded rounds in it, so there is nothing to value")
    weighting = weighting or ledger.default_weighting
    server = server_of(ledger, oracle, weighting, as_average=as_average)
    measured = server.oracle if isinstance(server.oracle, TaskOracle) else oracle
    return Recorded(ledger, measured, oracle, weighting, ledger.warnings() + server.notes, data_folder)
