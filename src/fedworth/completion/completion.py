"""What every completion offers: everyone's game in every round, and how wrong it may be."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from fedworth.arrays import Floats, Indices
from fedworth.games.game import Game


@dataclass(frozen=True, slots=True)
class Caveat:
    """A reason why the interval of a client, or of every client, may be too narrow.

    Findings about a client do not rest on an interval with a caveat.
    """

    client: str | None
    """The client's name; None if the caveat applies to everyone."""

    reason: str
    """A sentence without its full stop, which names the client."""

    def __str__(self) -> str:
        return self.reason


def heard_once(client: str) -> Caveat:
    """The caveat of a client that took part in one round of several."""
    return Caveat(client, f"{client} was heard in one round only; its interval is likely too narrow")


def heard_little(client: str, n_heard: int, n_rounds: int) -> Caveat:
    """The caveat of a client that took part in two or three rounds of many."""
    return Caveat(client, f"{client} was heard in {n_heard} of {n_rounds} rounds only; its interval may be too narrow")


def heard_early(client: str, last: int) -> Caveat:
    """The caveat of a client that missed more than the second half of the rounds; `last` is its last round."""
    reason = "if its data have changed since then, its value is not what the interval says"
    return Caveat(client, f"{client} was not heard after round {last}; {reason}")


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

    def error_ratios(self, parts: Floats) -> Floats | None:
        """(n_parts,): standard deviation of a part of a value, relative to that of the value; None if unknown.

        `parts`, (n_blocks, n_parts), says what each block of test samples counts in a part, such as a group of samples.
        A ratio may exceed 1, since errors of different groups may cancel.
        """

    def summary(self) -> dict[str, Any]:
        """How the estimate was made and how good it is known to be, as JSON."""
