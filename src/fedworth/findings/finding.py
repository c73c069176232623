"""A finding: something about a client that a reader should know, how sure it is, and what that rests on.

A finding says what was seen. It is a reason to ask, not a verdict: a hospital with a hundred times the data of the
others exists, and so does a client whose data are a copy by agreement. Wherever a finding is shown (`verify`, `watch`,
`report`, in text, JSON, Markdown or on the page) it is shown in the same sentence.

`sure` is 1 minus the chance that honest clients look so: 1 for what is read from the records as it stands.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from fedworth.errors import ArtefactError

MOST_NAMED = 8
LEAST_SURE = 0.9
"""Below this nothing is said."""

LEAST_CHANCE = 1e-9
"""Nothing that is estimated is called certain."""


class FindingKind(StrEnum):
    """What was seen."""

    LARGE_UPDATE = "large update"
    MANY_SAMPLES = "many samples"
    NO_UPDATE = "no update"
    SAME_MODEL = "same model"
    SCALED_COPY = "scaled copy"
    ALIKE = "alike"
    REPLAY = "replay"
    LATE_COPY = "late copy"
    STALE_MODEL = "stale model"
    ECHO = "echo"
    CONTESTED_NAME = "contested name"
    SHARED_NODE = "shared node"
    LOW_VALUE = "low value"
    HARM = "harm"


OF_VALUES = (FindingKind.LOW_VALUE, FindingKind.HARM)
"""What values show; the other kinds are read from the answers alone."""

OF_ANSWERS = tuple(kind for kind in FindingKind if kind not in OF_VALUES)

IN_DIFFERENT_ROUNDS = (FindingKind.LATE_COPY, FindingKind.SHARED_NODE)
"""What clients can be seen to do without being in a round together."""


SENTENCES = {
    FindingKind.LARGE_UPDATE: "{clients} sent an update of up to {ratio} times the median norm",
    FindingKind.MANY_SAMPLES: "{clients} reported up to {n_samples} samples, {ratio} times the median",
    FindingKind.NO_UPDATE: "{clients} returned the global model unchanged",
    FindingKind.SAME_MODEL: "{clients} sent the same model",
    FindingKind.SCALED_COPY: "{clients} sent the same update, one up to {ratio} times as long as the other",
    FindingKind.ALIKE: "{clients} sent updates that are alike as those of no other two, by {likeness} of 1",
    FindingKind.REPLAY: "{clients} repeated an answer of an earlier round",
    FindingKind.LATE_COPY: "{clients} sent the same answer in different rounds",
    FindingKind.STALE_MODEL: "{clients} sent a global model of an earlier round back",
    FindingKind.ECHO: "{clients} returned the server's own last step as an update, up to {ratio} times as long",
    FindingKind.CONTESTED_NAME: "{clients} had its name claimed by another node",
    FindingKind.SHARED_NODE: "{clients} answered from one node, so there are more names than nodes",
    FindingKind.LOW_VALUE: "{clients} is worth {value}{interval}, far below the others, whose median is {middle}",
    FindingKind.HARM: "{clients} made the model worse: its value is {value}{interval}",
}
"""Each holds for one client or for several; the numbers in braces are the finding's evidence."""

SEVERAL_HARM = "{clients} made the model worse: their values are {value} on average, and all lie below zero{interval}"

RESTS_ON = {
    FindingKind.LARGE_UPDATE: "how much the others' norms differ",
    FindingKind.MANY_SAMPLES: "what it reported",
    FindingKind.NO_UPDATE: "the numbers in its models",
    FindingKind.SAME_MODEL: "equal bytes",
    FindingKind.SCALED_COPY: "sketches of the updates",
    FindingKind.ALIKE: "how alike other pairs are; data of one kind can look like a copy",
    FindingKind.REPLAY: "its own earlier answers",
    FindingKind.LATE_COPY: "the other's earlier answers",
    FindingKind.STALE_MODEL: "equal bytes",
    FindingKind.ECHO: "sketches of the updates",
    FindingKind.CONTESTED_NAME: "the nodes' messages",
    FindingKind.SHARED_NODE: "the nodes' messages",
    FindingKind.LOW_VALUE: "how much the others' values differ, and its own interval",
    FindingKind.HARM: "its interval",
}


@dataclass(frozen=True)
class Finding:
    """What was seen of some clients in some rounds; rounds by the federation's own numbers."""

    kind: FindingKind
    clients: tuple[str, ...]
    rounds: tuple[int, ...]
    n_rounds: int  # in which it could have been seen: in which these clients answered
    evidence: Mapping[str, float] = field(default_factory=dict)
    sure: float = 1.0

    @property
    def sentence(self) -> str:
        """The finding in words, the same wherever it is shown."""
        of_value = self.kind in OF_VALUES
        numbers = {name: _signed(x) if of_value else _number(x) for name, x in self.evidence.items()}
        numbers["interval"] = self.interval
        is_harm_of_several = self.kind is FindingKind.HARM and len(self.clients) > 1
        sentence = SEVERAL_HARM if is_harm_of_several else SENTENCES[self.kind]
        said = sentence.format(clients=_named(self.clients), **numbers)
        return f"{said}{'' if of_value else self._when()}; {self.how_sure}."

    @property
    def interval(self) -> str:
        """The value's 90 % interval in brackets, where there is one."""
        low, high = (self.evidence.get(name, 0.0) for name in ("low", "high"))
        return f" ({_signed(low)} to {_signed(high)})" if low < high else ""

    @property
    def how_sure(self) -> str:
        """How sure it is, and by what."""
        return f"{_sureness(self.sure)}, by {RESTS_ON[self.kind]}"

    def document(self) -> dict[str, Any]:
        """The finding as JSON."""
        return {
            "kind": str(self.kind),
            "clients": list(self.clients),
            "rounds": list(self.rounds),
            "n_rounds": self.n_rounds,
            "evidence": dict(self.evidence),
            "sure": self.sure,
            "rests_on": RESTS_ON[self.kind],
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


def sure_of(chance: float) -> float:
    """How sure a finding is that honest clients give rise to with this chance, however small."""
    return 1 - min(max(chance, LEAST_CHANCE), 1.0)


def finding_from(document: Any) -> Finding:
    """The finding that `document()` gave."""
    try:
        return Finding(
            FindingKind(document["kind"]),
            tuple(str(name) for name in document["clients"]),
            tuple(int(number) for number in document["rounds"]),
            int(document["n_rounds"]),
            {str(name): float(number) for name, number in document["evidence"].items()},
            float(document["sure"]),
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


def _signed(value: float) -> str:
    return f"{value:+.3g}"


def _sureness(sure: float) -> str:
    if sure >= 1:
        return "certain"
    return "more than 99.9 % sure" if sure > 0.999 else f"{100 * sure:.3g} % sure"
