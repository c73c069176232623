"""Caveats: whose interval may be too narrow, and why."""

from dataclasses import dataclass


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
