"""Clients that are in every coalition: what the others add to them.

    U(S | G) = U(S ∪ G) − U(G)        S among the others, G the given clients

A bank that trains with partners asks what the partners add to what it has anyway. By the plain Shapley value, a partner
with the bank's own data shares with the bank; given the bank, it adds nothing.
"""

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from fedworth.arrays import Floats, Indices, Memberships
from fedworth.errors import UsageError, unknown_name
from fedworth.games.game import Game, GameOfColumns
from fedworth.games.shapley import most_enumerated


def given_of(names: Sequence[str], clients: tuple[str, ...]) -> Indices:
    """The indices of the given clients; unknown ones are an error, and so is a federation of nobody else."""
    for name in names:
        if name not in clients:
            raise unknown_name("client", name, clients)
    found = np.array(sorted({clients.index(name) for name in names}), dtype=np.int64)
    if len(found) and len(found) == len(clients):
        raise UsageError(f"--given {' --given '.join(names)}: all clients, so nobody is left to be valued")
    return found


class GivenGame:
    """The game among the other clients, in which the given ones are members of every coalition.

    It has other measures (`columns`) if the whole game has.
    """

    def __init__(self, game: Game, given: Indices) -> None:
        self.game, self.n_blocks, self._is_given = game, game.n_blocks, np.isin(game.clients, given)
        self.clients = game.clients[~self._is_given]
        self.most_enumerated = most_enumerated(game)
        if isinstance(game, GameOfColumns):
            self.columns = partial(self._added, measure=game.columns)

    def utilities(self, coalitions: Memberships) -> Floats:
        return self._added(coalitions, self.game.utilities)

    def _added(self, coalitions: Memberships, measure: Callable[[Memberships], Floats]) -> Floats:
        """What each coalition adds for the given clients."""
        rows = np.zeros((1 + len(coalitions), len(self._is_given)), dtype=bool)
        rows[:, self._is_given] = True  # alone, then with each coalition
        rows[1:, ~self._is_given] = coalitions
        found = measure(rows)
        return np.asarray(found[1:] - found[0])


def given_game(game: Game, given: Indices) -> Game:
    """What the others of a game add for the given clients; the game itself if none of them plays in it."""
    return GivenGame(game, given) if np.isin(game.clients, given).any() else game
