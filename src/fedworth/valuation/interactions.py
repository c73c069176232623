"""Everyone's game of the whole training: interactions of pairs of clients, and the game for the library shapiq.

It is the sum of everyone's games of all rounds. In a vertical federation, where steps of one round hardly interact, it
is the game of the refitted head, which sees what clients tell that others tell, too.
"""

from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fedworth.arrays import Floats
from fedworth.errors import TooManyError, UsageError
from fedworth.games.game import Game, SummedGame
from fedworth.games.shapley import MOST_ENUMERATED, all_utilities
from fedworth.games.shapley import interactions as interaction_matrix
from fedworth.valuation.methods import GameSource, by_models
from fedworth.valuation.refitted import RefittedGame

if TYPE_CHECKING:
    import shapiq


@dataclass(frozen=True)
class Interaction:
    """Two clients, and how much more they add together than apart."""

    first: str
    second: str
    index: float  # below 0: redundant; above 0: they complement each other


def whole_game(source: GameSource) -> Game:
    """Everyone's game on recorded and predicted models, summed over the rounds; of embeddings, by the refitted head."""
    n_heard = int(np.asarray(source.participants).any(axis=0).sum())
    if n_heard > MOST_ENUMERATED:
        raise TooManyError(f"{n_heard} clients: pairs are compared among at most {MOST_ENUMERATED}; leave some out")
    if source.is_vertical and source.recorded is not None:
        return RefittedGame(source.recorded, source.effort.progress)
    games = by_models(source)
    return SummedGame([games.game(t) for t in games.rounds])


def interactions_of(source: GameSource) -> tuple[Interaction, ...]:
    """The Shapley interaction index of every pair of clients, the most redundant pair first."""
    game = whole_game(source)
    found = interaction_matrix(game)
    pairs = [
        Interaction(source.clients[game.clients[i]], source.clients[game.clients[j]], float(found[i, j]))
        for i, j in combinations(range(len(game.clients)), 2)
    ]
    return tuple(sorted(pairs, key=lambda pair: pair.index))


def shapiq_game_of(source: GameSource) -> "shapiq.Game":
    """The game as one of shapiq's, whose player i is the i-th client that took part."""
    try:
        from shapiq import Game as ShapiqGame
    except ImportError:
        raise UsageError("the game for shapiq needs shapiq: pip install 'fedworth[shapiq]'") from None
    game = whole_game(source)
    totals, n = all_utilities(game).sum(axis=1), len(game.clients)

    class WholeGame(ShapiqGame):  # type: ignore[misc]  # an extra: without it ShapiqGame is unknown
        """A coalition's utility, looked up."""

        def value_function(self, coalitions: NDArray[np.bool_]) -> Floats:
            return np.asarray(totals[coalitions.astype(np.int64) @ (1 << np.arange(n))])

    names = [source.clients[k] for k in game.clients]
    return WholeGame(n_players=n, normalize=True, normalization_value=0.0, player_names=names)
