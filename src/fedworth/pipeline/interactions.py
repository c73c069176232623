"""Pairs of clients in everyone's completed game: who is redundant with whom, and who complements whom.

In: a completion. Out: the Shapley interaction index of every pair of clients that were heard, by name. The same game is
offered to `shapiq`, whose approximators and plots then work on a ledger.
"""

from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedworth.arrays import Indices, Utilities
from fedworth.coalitions import coalitions_of
from fedworth.completion.completion import Completion
from fedworth.errors import UsageError
from fedworth.valuation.interactions import shapley_interactions

if TYPE_CHECKING:
    import shapiq

NEEDS_SHAPIQ = "the game for shapiq needs shapiq: pip install 'fedworth[shapiq]'"


@dataclass(frozen=True)
class Interaction:
    """Two clients, and how much more they add together than apart."""

    first: str
    second: str
    index: float

    def document(self) -> dict[str, Any]:
        """The pair as JSON."""
        return {"clients": [self.first, self.second], "index": self.index}


def interactions_of(completion: Completion) -> tuple[Interaction, ...]:
    """Every pair of clients that were heard, the most redundant first.

    Args:
        completion: An estimate of every cell.

    Returns:
        A pair each with its index: below 0 the two are redundant, above 0 they complement each other.

    Example:
        fedworth.interactions_of(completion)[0]
    """
    heard = _heard(completion)
    found = shapley_interactions(completed_game(completion))
    pairs = [
        Interaction(completion.clients[heard[i]], completion.clients[heard[j]], float(found[i, j]))
        for i, j in combinations(range(len(heard)), 2)
    ]
    return tuple(sorted(pairs, key=lambda pair: pair.index))


def completed_game(completion: Completion) -> Utilities:
    """(2^n,): what each coalition of the heard clients would have achieved, summed over the rounds."""
    coalitions = coalitions_of(_heard(completion), len(completion.clients))
    totals = np.zeros(len(coalitions))
    totals[1:] = completion.totals(coalitions[1:])  # of nobody it is 0
    return totals


def shapiq_game(completion: Completion) -> "shapiq.Game":
    """Everyone's completed game for the library `shapiq`.

    Args:
        completion: An estimate of every cell.

    Returns:
        The game; its player i is the i-th client that was heard.

    Example:
        game = fedworth.shapiq_game(completion)
    """
    try:
        from shapiq import Game
    except ImportError:
        raise UsageError(NEEDS_SHAPIQ) from None
    totals = completed_game(completion)
    n = len(_heard(completion))

    def utilities(coalitions: NDArray[np.bool_]) -> Utilities:
        return totals[coalitions.astype(np.int64) @ (1 << np.arange(n))]

    class CompletedGame(Game):  # type: ignore[misc]  # an extra: without it Game is unknown
        """A coalition's utility, looked up."""

        def value_function(self, coalitions: NDArray[np.bool_]) -> Utilities:
            return utilities(coalitions)

    names = [completion.clients[k] for k in _heard(completion)]
    return CompletedGame(n_players=n, normalize=True, normalization_value=0.0, player_names=names)


def _heard(completion: Completion) -> Indices:
    """Clients that some round has heard: those whose lone coalition has an estimate."""
    return np.flatnonzero(completion.has(np.eye(len(completion.clients), dtype=bool)))
