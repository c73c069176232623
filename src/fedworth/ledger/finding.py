"""A finding: something about a client's answers that a reader should know, with the numbers it rests on.

A finding says what was seen. It is a reason to ask, not a verdict: a hospital with a hundred times the data of the
others exists, and so does a client whose data are a copy by agreement. Wherever a finding is shown (`verify`, `watch`,
`report`, in text, JSON or Markdown) it is shown in the same sentence.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from fedworth.errors import ArtefactError

MOST_NAMED = 8


class FindingKind(StrEnum):
    """What was seen."""

    LARGE_UPDATE = "large update"
    MANY_SAMPLES = "many samples"
    NO_UPDATE = "no update"
    SAME_MODEL = "same model"
    SCALED_COPY = "scaled copy"
    REPLAY = "replay"
    LATE_COPY = "late copy"
    STALE_MODEL = "stale model"
    ECHO = "echo"
    CONTESTED_NAME = "contested name"
    SHARED_NODE = "shared node"


IN_DIFFERENT_ROUNDS = (FindingKind.LATE_COPY, FindingKind.SHARED_NODE)
"""What clients can be seen to do without being in a round together."""


SENTENCES = {
    FindingKind.LARGE_UPDATE: "{clients} sent an update of up to {ratio} times the median norm{rounds}",
    FindingKind.MANY_SAMPLES: "{clients} reported up to {n_samples} samples, {ratio} times the median{rounds}",
    FindingKind.NO_UPDATE: "{clients} returned the global model unchanged{rounds}",
    FindingKind.SAME_MODEL: "{clients} sent the same model{rounds}",
    FindingKind.SCALED_COPY: "{clients} sent the same update, one up to {ratio} times as long as the other{rounds}",
    FindingKind.REPLAY: "{clients} repeated an answer of an earlier round{rounds}",
    FindingKind.LATE_COPY: "{clients} sent the same answer in different rounds{rounds}",
    FindingKind.STALE_MODEL: "{clients} sent a global model of an earlier round back{rounds}",
    FindingKind.ECHO: "{clients} returned the server's own last step as an update, up to {ratio} times as long{rounds}",
    FindingKind.CONTESTED_NAME: "{clients} had its name claimed by another node{rounds}",
    FindingKind.SHARED_NODE: "{clients} answered from one node, so there are more names than nodes{rounds}",
}
"""Each holds for one client or for several; the numbers in braces are the finding's evidence."""


@dataclass(frozen=True)
class Finding:
    """What was seen of some clients in some rounds; rounds by the federation's own numbers."""

    kind: FindingKind
    clients: tuple[str, ...]
    rounds: tuple[int, ...]
    n_rounds: int  # in which it could have been seen: in which these clients answered
    evidence: Mapping[str, float] = field(default_factory=dict)

    @property
    def sentence(self) -> str:
        """The finding in words, the same wherever it is shown."""
        numbers = {name: _number(value) for name, value in self.evidence.items()}
        return SENTENCES[self.kind].format(clients=_named(self.clients), rounds=self._when(), **numbers) + "."

    def document(self) -> dict[str, Any]:
        """The finding as JSON."""
        return {
            "kind": str(self.kind),
            "clients": list(self.clients),
            "rounds": list(self.rounds),
            "n_rounds": self.n_rounds,
            "evidence": dict(self.evidence),
            "sentence": self.sentence,
        }

    def _when(self) -> str:
        shown = ", ".join(str(number) for number in self.rounds[:MOST_NAMED])
        more = ", …" if len(self.rounds) > MOST_NAMED else ""
        if len(self.clients) > 1 and self.kind not in IN_DIFFERENT_ROUNDS:
            among = "the only round they share" if self.n_rounds == 1 else f"the {self.n_rounds} rounds they share"
        else:
            its = "its" if len(self.clients) == 1 else "their"
            among = f"{its} only round" if self.n_rounds == 1 else f"{its} {self.n_rounds} rounds"
        return f", in {'' if self.n_rounds == 1 else f'{len(self.rounds)} of '}{among} ({shown}{more})"


def finding_from(document: Any) -> Finding:
    """The finding that `document()` gave."""
    try:
        return Finding(
            FindingKind(document["kind"]),
            tuple(str(name) for name in document["clients"]),
            tuple(int(number) for number in document["rounds"]),
            int(document["n_rounds"]),
            {str(name): float(number) for name, number in document["evidence"].items()},
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ArtefactError(f"not a finding: {error!r}") from error


def _named(clients: tuple[str, ...]) -> str:
    """Client 'a', or clients 'a', 'b' and 3 more."""
    if len(clients) == 1:
        return f"Client {clients[0]!r}"
    shown = [repr(name) for name in clients[:MOST_NAMED]]
    if len(clients) > MOST_NAMED:
        return f"Clients {', '.join(shown)} and {len(clients) - MOST_NAMED} more"
    return f"Clients {', '.join(shown[:-1])} and {shown[-1]}"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
