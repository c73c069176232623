"""A finding: something about a client that a reader should know, with its evidence and a confidence.

A finding is a reason to ask, not a verdict: a hospital with a hundred times the data of the others exists, and so does
a client whose data are a copy by agreement. `verify`, `watch`, `report`, JSON, Markdown and the page all show the same
sentence. The confidence is 1 minus the probability that honest clients look like this; 1 means that the records say so
directly.

A detector collects `Evidence`, one piece for each round; `gathered` merges the pieces of all rounds into findings.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.special import stdtr

from fedworth.arrays import Floats

if TYPE_CHECKING:
    from fedworth.ledger.ledger import Ledger

MOST_LISTED = 8
LEAST_CONFIDENCE = 0.9
"""Findings below this confidence are not reported."""

SIGNED = {"value", "low", "high", "middle", "large"}
"""Evidence that is shown with its sign: values of clients."""

FEWEST = 5
"""With fewer clients no number is called far from the others'."""

ROBUST = 1.4826
FREEDOM = 0.4
"""Degrees of freedom for each of the others, where one client's number is compared with theirs."""

LEAST_CHANCE = 1e-9
"""Lower bound for estimated probabilities: nothing that is estimated is called certain."""


class Level(StrEnum):
    """How urgent a finding is."""

    ACT = "act"
    NOTE = "note"


@dataclass(frozen=True)
class Kind:
    """What can be found, and all texts about it.

    `sentence` has `{clients}` and the names of the evidence as placeholders; the page replaces `{noun}` and `{nouns}`.
    The texts for the client itself name no other client.
    """

    name: str  # as in report.json and on the page
    level: Level
    sentence: str
    basis: str  # what the confidence rests on
    title: str  # follows the clients' names
    why: str
    action: str
    client_title: str
    client_action: str
    is_of_values: bool = False  # found in the values; all others are found in the clients' answers
    across_rounds: bool = False  # needs no round in which the clients took part together
    when_asked: bool = False  # can be seen in any round that asked the client, whether or not it answered
    several: str = ""  # the sentence for several clients, if it differs
    needs: str = "one answer"  # without it the kind is not looked for

    @property
    def needs_text(self) -> str:
        """What the kind needs, as the command line words it."""
        return self.needs.format(noun="client", nouns="clients")


@dataclass(frozen=True)
class Finding:
    """What was found about some clients in some rounds; rounds by the federation's own numbers."""

    kind: Kind
    clients: tuple[str, ...]
    rounds: tuple[int, ...]
    n_rounds: int  # rounds in which it could have been seen
    evidence: Mapping[str, float] = field(default_factory=dict)
    confidence: float = 1.0
    detail: str = ""  # a further sentence

    @property
    def sentence(self) -> str:
        kind = self.kind
        forms = {name: "+.3g" if name in SIGNED else ",.0f" if x >= 100 else ".3g" for name, x in self.evidence.items()}
        numbers = {name: format(x, forms[name]) for name, x in self.evidence.items()}
        low, high = (self.evidence.get(name, 0.0) for name in ("low", "high"))
        numbers["interval"] = f" ({low:+.3g} to {high:+.3g})" if low < high else ""
        text = kind.several if kind.several and len(self.clients) > 1 else kind.sentence
        claim = text.format(clients=_listed(self.clients), **numbers)
        when = "" if kind.is_of_values else self._when()
        return f"{claim}{when}; {_confidence(self.confidence)} ({kind.basis}). {self.detail}".strip()

    def document(self) -> dict[str, Any]:
        return {
            "kind": self.kind.name,
            "level": str(self.kind.level),
            "clients": list(self.clients),
            "rounds": list(self.rounds),
            "n_rounds": self.n_rounds,
            "evidence": dict(self.evidence),
            "confidence": self.confidence,
            "sentence": self.sentence,
        }

    def _when(self) -> str:
        shown = ", ".join(str(number) for number in self.rounds[:MOST_LISTED])
        more = ", …" if len(self.rounds) > MOST_LISTED else ""
        if len(self.clients) > 1 and not self.kind.across_rounds:
            among = "the only round they share" if self.n_rounds == 1 else f"the {self.n_rounds} rounds they share"
        else:
            its = "its" if len(self.clients) == 1 else "their"
            among = f"{its} only round" if self.n_rounds == 1 else f"{its} {self.n_rounds} rounds"
        return f", in {'' if self.n_rounds == 1 else f'{len(self.rounds)} of '}{among} ({shown}{more})"


@dataclass(frozen=True)
class Evidence:
    """One observation in one round; clients by their index in the ledger."""

    kind: Kind
    clients: tuple[int, ...]
    round_index: int
    numbers: Mapping[str, float] = field(default_factory=dict)
    confidence: float = 1.0


Detected = tuple[list[Evidence], list[Kind]]
"""What a detector found, and the kinds that it could look for in the ledger."""


def gathered(ledger: "Ledger", kinds: Iterable[Kind], evidence: list[Evidence]) -> Iterator[Finding]:
    """One finding for each kind and each group of clients that belong together, over all rounds."""
    for kind in kinds:
        of_kind = [piece for piece in evidence if piece.kind is kind]
        for clients in joined([piece.clients for piece in of_kind]):
            pieces = [piece for piece in of_kind if piece.clients[0] in clients]
            found = _finding(ledger, kind, clients, pieces)
            if found.confidence >= LEAST_CONFIDENCE:
                yield found


def confidence_of(chance: float) -> float:
    """The confidence in a finding that honest clients cause with this probability."""
    return 1 - min(max(chance, LEAST_CHANCE), 1.0)


def joined(groups: list[tuple[int, ...]]) -> list[tuple[int, ...]]:
    """Groups that share a client merged, in the order of the clients."""
    merged: list[set[int]] = []
    for group in map(set, groups):
        apart = [other for other in merged if not other & group]
        merged = [*apart, group.union(*(other for other in merged if other & group))]
    return sorted(tuple(sorted(group)) for group in merged)


def _finding(ledger: "Ledger", kind: Kind, clients: tuple[int, ...], pieces: list[Evidence]) -> Finding:
    fewest = 1 if len(clients) == 1 or kind.across_rounds else 2
    heard = [entry.asked if kind.when_asked else entry.answered for entry in ledger.entries]
    largest: dict[str, float] = {}
    for name, number in (pair for piece in pieces for pair in piece.numbers.items()):
        largest[name] = max(number, largest.get(name, 0.0))
    return Finding(
        kind,
        tuple(ledger.clients[k] for k in clients),
        tuple(ledger.entries[t].number for t in sorted({piece.round_index for piece in pieces})),
        sum(len(set(clients) & set(names)) >= fewest for names in heard),
        largest,
        max(piece.confidence for piece in pieces),
    )


def _listed(clients: tuple[str, ...]) -> str:
    """Client 'a', or clients 'a', 'b' and 3 more."""
    if len(clients) == 1:
        return f"Client {clients[0]!r}"
    shown = [repr(name) for name in clients[:MOST_LISTED]]
    if len(clients) > MOST_LISTED:
        return f"Clients {', '.join(shown)} and {len(clients) - MOST_LISTED} more"
    return f"Clients {', '.join(shown[:-1])} and {shown[-1]}"


def _confidence(confidence: float) -> str:
    if confidence >= 1:
        return "certain"
    return "more than 99.9 % confidence" if confidence > 0.999 else f"{100 * confidence:.3g} % confidence"


def confidence_above(own: float, others: Floats, error: float) -> float:
    """The confidence that a number is far above the others, (n − 1,), given its own standard error.

        t = (x_i − m) / √(s² + sd_i²)

    with m the others' median, s their robust spread (1.48 times the median distance from m) and sd_i the client's own
    standard error; compared with Student's t with .4 (n − 1) degrees of freedom (a robust spread is that much less
    certain than an ordinary one), and counted for all n clients.
    """
    middle = float(np.median(others))
    far = np.hypot(ROBUST * float(np.median(np.abs(others - middle))), error)
    chance = float(stdtr(FREEDOM * len(others), (middle - own) / far)) if far > 0 else 1.0
    return confidence_of((len(others) + 1) * chance)
