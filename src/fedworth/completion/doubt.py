"""Doubts: whose intervals may be too narrow, and why. Nobody is accused on the strength of such an interval."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Doubt:
    """Why the interval of a client may be too narrow, or those of all clients."""

    client: str | None
    """Its name; None if it is true of everyone."""

    why: str
    """A sentence without its full stop, which names the client."""

    def __str__(self) -> str:
        return self.why


def heard_once(client: str) -> Doubt:
    """Of a client that answered in one round of several."""
    return Doubt(client, f"{client} was heard in one round only; its interval is likely too narrow")
