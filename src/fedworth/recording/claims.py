"""Who is who: a client says its name, and the node that says it is known by its key. A name belongs to one node.

In: what the nodes of a round said, and whose each name has been so far. Out: which node goes by which name, and which
claims are in conflict. Two names that look alike are one (`lookalikes`), and go by the spelling that came first.

    nobody has the name     one node says it: it is its name. Several say it: none of them gets it, since nobody can
                            tell which of them it is
    a node has the name     it keeps it; whoever else says it is left out
    … and is gone           another node may take it over, as after a restart, and that is noted; but not where keys
                            last (`keys_last`: the SuperLink authenticates nodes), since a restarted node has its key

An answer in conflict is valued under nobody's name.
"""

import hashlib
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from fedworth.ledger.ledger import Ledger
from fedworth.recording.lookalikes import skeleton, tidy

Node = str
"""A node by what is known of it: the fingerprint of its key, or else its number."""

Number = int | str
"""What a framework calls a node while it runs: an id of the grid, or of a client's proxy."""


@dataclass(frozen=True)
class Owners:
    """Whose each name is; names by their skeleton."""

    spellings: Mapping[str, str] = field(default_factory=dict)  # skeleton → the name as it is kept
    nodes: Mapping[str, Node] = field(default_factory=dict)  # skeleton → the node that has it

    def spelt(self, name: str) -> str:
        """The name as it is kept: as it was first said."""
        return self.spellings.get(skeleton(name), tidy(name))

    def knowing(self, names: Iterable[str]) -> "Owners":
        """The same, with the spelling of these names settled: the first of those that look alike."""
        new = {skeleton(name): tidy(name) for name in reversed([*names])}
        return replace(self, spellings={**new, **self.spellings})


@dataclass(frozen=True)
class Settled:
    """What came of a round's claims."""

    owners: Owners
    names: Mapping[Node, str]  # who goes by which name
    conflicts: Mapping[str, tuple[Node, ...]]  # name → the nodes that said it and do not have it
    moved: Mapping[str, tuple[Node, Node]]  # name → from which node to which

    def reasons(self) -> dict[str, str]:
        """What to say of each name that is in conflict or has moved."""
        told = {name: f"has moved from {old} to {new}" for name, (old, new) in self.moved.items()}
        for name, nodes in self.conflicts.items():
            owner = self.owners.nodes.get(skeleton(name))
            whose = "nobody can tell whose it is" if owner is None else f"it belongs to {owner}"
            told[name] = f"its name was claimed by {' and by '.join(nodes)}, but {whose}; that answer is left out"
        return told


@dataclass
class NodeNames:
    """Which node goes by which name while a federation is recorded; nodes by their number in this run."""

    owners: Owners = field(default_factory=Owners)
    keys_last: bool = False
    names: dict[Number, str] = field(default_factory=dict)
    labels: dict[Number, Node] = field(default_factory=dict)

    def meet(self, number: Number, key: bytes = b"") -> None:
        """Take note of a node; what it is known by is decided when it is first seen, and stays."""
        self.labels.setdefault(number, label_of(key) if key else f"node-{number}")

    def settle(self, said: Mapping[Any, str], connected: Collection[Any]) -> Settled:
        """Settle a round's claims; a node whose claim is in conflict goes by no name until the next round."""
        claims = {self.labels[number]: name for number, name in said.items()}
        settled = settle(self.owners, claims, {self.labels[n] for n in connected}, keys_last=self.keys_last)
        won = {n: settled.names[self.labels[n]] for n in said if self.labels[n] in settled.names}
        silent = {n: name for n, name in self.names.items() if n not in said and name not in won.values()}
        self.owners, self.names = settled.owners, {**silent, **won}
        return settled


def owners_of(ledger: Ledger) -> Owners:
    """The owners as a ledger knows them: its clients' names, and from which node each last answered."""
    spellings = {skeleton(name): name for name in ledger.clients}
    known = [(entry.answered, entry.nodes) for entry in ledger.entries if entry.nodes]
    answers = [pair for answered, nodes in known for pair in zip(answered, nodes, strict=True)]
    return Owners(spellings, {skeleton(ledger.clients[client]): node for client, node in answers if node})


def label_of(secret: bytes) -> Node:
    """A node by a fingerprint of its key, or of a token that must not be written down."""
    return f"key-{hashlib.sha256(secret).hexdigest()[:16]}"


def settle(owners: Owners, said: Mapping[Node, str], present: Collection[Node], *, keys_last: bool = False) -> Settled:
    """Which node goes by which name after these claims; `present` are the nodes that are connected now."""
    claimants: dict[str, list[Node]] = defaultdict(list)
    for node, name in said.items():
        claimants[skeleton(name)].append(node)
    settled = Settled(owners, {}, {}, {})
    for name, nodes in claimants.items():
        settled = _settle_one(settled, name, nodes, said, lasting=keys_last, present=present)
    return settled


def _settle_one(
    before: Settled, name: str, nodes: list[Node], said: Mapping[Node, str], *, lasting: bool, present: Collection[Node]
) -> Settled:
    owner = before.owners.nodes.get(name)
    spelt = before.owners.spelt(said[nodes[0]])
    is_free = owner is None or (owner not in present and owner not in nodes and not lasting)
    winner = nodes[0] if is_free and len(nodes) == 1 else owner if owner in nodes else None
    rest = tuple(node for node in nodes if node != winner)
    after = replace(before, conflicts={**before.conflicts, spelt: rest} if rest else before.conflicts)
    if winner is None:
        return after
    if owner is not None and owner != winner:
        after = replace(after, moved={**after.moved, spelt: (owner, winner)})
    owners = Owners({**before.owners.spellings, name: spelt}, {**before.owners.nodes, name: winner})
    return replace(after, owners=owners, names={**after.names, winner: spelt})
