"""What every completion offers: everyone's game in every round, and how wrong it may be."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from fedworth.arrays import Floats, Indices
from fedworth.games.game import Game

MOST_NAMED = 12
"""Clients that a sentence names."""


@dataclass(frozen=True, slots=True)
class Caveat:
    """A reason why the intervals of some clients, or of all, may be too narrow.

    Findings about a client do not rest on an interval with a caveat.
    """

    clients: tuple[str, ...]
    """The clients' names; empty if the caveat applies to everyone."""

    reason: str
    """A sentence without its full stop, which names the clients."""

    @property
    def is_of_all(self) -> bool:
        """Whether it applies to everyone."""
        return not self.clients

    def __str__(self) -> str:
        return self.reason


ONCE = "{} took part in one round only; {their} interval{s} {are} likely too narrow"
LITTLE = "{} took part in {} of {} rounds only; {their} interval{s} may be too narrow"
EARLY = (
    "{} did not take part after round {}; if {their} data have changed since then, {their} interval{s} {do} not hold"
)
UNLIKE = "{} {are} unlike the clients that predictions were checked on; {their} interval{s} may be too narrow"
EVERY_RUN = "the interval{s} of {} may be too narrow in every run, and so may {that} of the mean"
OF_ONE = {"their": "its", "s": "", "are": "is", "do": "does", "that": "that"}
OF_SEVERAL = {"their": "their", "s": "s", "are": "are", "do": "do", "that": "those"}


def heard_once(clients: Sequence[str]) -> Caveat:
    """The caveat of clients that took part in one round of several."""
    return _caveat(ONCE, clients)


def heard_little(n_heard: Mapping[str, int], n_rounds: int) -> Caveat:
    """The caveat of clients that took part in two or three rounds of many; how many, by client."""
    return _caveat(LITTLE, list(n_heard), " or ".join(map(str, sorted({*n_heard.values()}))), n_rounds)


def heard_early(last: Mapping[str, int]) -> Caveat:
    """The caveat of clients that missed more than the second half of the rounds; the last round of each."""
    return _caveat(EARLY, list(last), max(last.values()))


def unlike_others(clients: Sequence[str]) -> Caveat:
    """The caveat of clients whose predicted updates are less certain than those that were checked."""
    return _caveat(UNLIKE, clients)


def in_every_run(runs: Sequence[Sequence[Caveat]]) -> tuple[Caveat, ...]:
    """The caveats of a mean of runs: of everyone if each run has one, and of the clients that each run names."""
    of_all = [[caveat for caveat in caveats if caveat.is_of_all] for caveats in runs]
    named = [list(dict.fromkeys(client for caveat in caveats for client in caveat.clients)) for caveats in runs]
    shared = [client for client in named[0] if all(client in names for names in named)] if named else []
    return (*(of_all[0] if of_all and all(of_all) else []), *([_caveat(EVERY_RUN, shared)] if shared else []))


def _caveat(text: str, clients: Sequence[str], *more: object) -> Caveat:
    how_many = OF_SEVERAL if len(clients) > 1 else OF_ONE
    return Caveat(tuple(clients), text.format(listed(clients), *more, **how_many))


def listed(clients: Sequence[str]) -> str:
    """The clients, with at most `MOST_NAMED` names, in a sentence."""
    n_more = len(clients) - MOST_NAMED
    names = [*clients[:MOST_NAMED], *([f"{n_more} more"] if n_more > 0 else [])]
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))


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
        """The game of a round among the clients that took part in some round."""

    def covariance(self) -> Floats | None:
        """(n_heard, n_heard): of the errors of the Shapley values summed over the rounds; None if unknown."""

    def error_ratios(self, parts: Floats) -> Floats | None:
        """(n_parts,): standard deviation of a part of a value, relative to that of the value; None if unknown.

        `parts`, (n_blocks, n_parts), says what each block of test samples counts in a part, such as a group of samples.
        A ratio may exceed 1, since errors of different groups may cancel.
        """

    def summary(self) -> dict[str, Any]:
        """How the estimate was made and how good it is known to be, as JSON."""
