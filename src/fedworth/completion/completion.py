"""What every completion offers: everyone's game in every round, and how wrong it may be."""

from collections.abc import Sequence
from typing import Any, Protocol

from fedworth.arrays import Floats, Indices
from fedworth.completion.caveat import Caveat
from fedworth.games.game import Game


class Completion(Protocol):
    """Everyone's game in every round, estimated from what was seen.

    Example:
        values = shapley(completion.game(0), rng)
    """

    @property
    def clients(self) -> tuple[str, ...]:
        """The names of all clients."""

    @property
    def heard(self) -> Indices:
        """The clients that took part in some round: those who play."""

    @property
    def n_rounds(self) -> int:
        """How many rounds there are."""

    @property
    def caveats(self) -> Sequence[Caveat]:
        """Whose values may be less certain than their intervals say, and why."""

    def game(self, round_index: int) -> Game:
        """The game of a round among the heard clients."""

    def covariance(self) -> Floats | None:
        """(n_heard, n_heard): of the errors of the Shapley values summed over the rounds; None if unknown."""

    def summary(self) -> dict[str, Any]:
        """How the estimate was made and how good it is known to be, as JSON."""
