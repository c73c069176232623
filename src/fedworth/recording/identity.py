"""Client identity: which node may use which client name.

A client says its name, and the node that says it is known by its key. A name belongs to one node. Two names that look
alike are one name, spelled as it was first said.

    nobody has the name     if one node claims it, the node gets it; if several claim it, none of them does
    a node has the name     it keeps it, and other claims are refused
    … and is disconnected   another node may take the name over, as after a restart, and that is noted; but not with
                            `keys_last` (the SuperLink authenticates nodes), because a restarted node keeps its key

An answer under a refused name is valued for nobody.

The skeleton of a name is what remains without differences that a reader overlooks: compatibility forms (NFKC), case,
spaces, accents, kinds of dashes and apostrophes, letters of other alphabets that look like Latin ones, and 0 and 1,
which look like o and l. The letters are a subset of Unicode's list of confusables (UTS #39): the Cyrillic, Greek and
Armenian ones that look like Latin letters in common typefaces. Skeletons are compared, never shown.
"""

import hashlib
import unicodedata
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from fedworth.ledger.ledger import Ledger

Node = str
"""A node's label: the fingerprint of its key, or else its id."""

NodeId = int | str
"""What a framework calls a node while it runs: an id of the grid, or of a client's proxy."""

# Capitals come first, because some look like another letter than their small form does.
CAPITALS = str.maketrans("ΑΒΕΖΗΙΚΜΝΟΡΤΥΧАВЕКМНОРСТУХЅІЈԚԜՕՍ", "ABEZHIKMNOPTYXABEKMHOPCTYXSIJQWOU")
LETTERS = str.maketrans(
    "асеһіјӏорԛгѕѵԝхуьԁԍαειικνορτυχγոսցօքհıɑɡ01үѡωʋǀ|℮০๐١",
    "acehijlopqrsvwxybdgaeiikvoptuxynugoqhiagolywwulleool",
)
BLANKS = "\u115f\u1160\u3164\uffa0\u2800"  # letters and signs that are drawn as nothing
FIRST = str.maketrans("ϲϹᴄᴏᴠᴡᴢꜱ−\u2019\u2018\u02bc", "cCcovwzs-" + 3 * "'")  # NFKC would turn some into other letters


def skeleton(name: str) -> str:
    """A name without the differences that a reader overlooks."""
    dashed = "".join("-" if unicodedata.category(c) == "Pd" else c for c in name).translate(FIRST)
    folded = unicodedata.normalize("NFKC", dashed).translate(CAPITALS).casefold()
    letters = unicodedata.normalize("NFKD", folded)
    visible = "".join(c for c in letters if c not in BLANKS and unicodedata.category(c) not in ("Mn", "Me", "Cf", "Cc"))
    return " ".join(visible.split()).translate(LETTERS)


def tidy(name: str) -> str:
    """A name in its usual form (NFKC), without invisible characters and needless spaces."""
    usual = unicodedata.normalize("NFKC", name)
    seen = "".join(c for c in usual if c not in BLANKS and unicodedata.category(c) not in ("Cf", "Cc"))
    return " ".join(seen.split())


@dataclass(frozen=True)
class Owners:
    """Which node has which name; names are given by their skeletons."""

    spellings: Mapping[str, str] = field(default_factory=dict)  # skeleton → the name as it was first said
    nodes: Mapping[str, Node] = field(default_factory=dict)  # skeleton → the node that has the name

    def spelled(self, name: str) -> str:
        """The name as it was first said."""
        return self.spellings.get(skeleton(name), tidy(name))

    def knowing(self, names: Iterable[str]) -> "Owners":
        """The same owners, with the spellings of these names fixed: the first of those that look alike."""
        new = {skeleton(name): tidy(name) for name in reversed([*names])}
        return replace(self, spellings={**new, **self.spellings})


@dataclass(frozen=True)
class Settled:
    """The outcome of a round's claims."""

    owners: Owners
    names: Mapping[Node, str]  # which node goes by which name
    conflicts: Mapping[str, tuple[Node, ...]]  # name → the nodes whose claim was refused
    moved: Mapping[str, tuple[Node, Node]]  # name → its old and its new node

    def reasons(self) -> dict[str, str]:
        """A sentence for each name that is in conflict or has moved."""
        texts = {name: f"has moved from {old} to {new}" for name, (old, new) in self.moved.items()}
        for name, nodes in self.conflicts.items():
            owner = self.owners.nodes.get(skeleton(name))
            whose = "nobody can tell whose it is" if owner is None else f"it belongs to {owner}"
            texts[name] = f"its name was claimed by {' and by '.join(nodes)}, but {whose}; that answer is left out"
        return texts


@dataclass
class NodeNames:
    """Which node goes by which name while a federation is recorded; nodes are given by their id in this run."""

    owners: Owners = field(default_factory=Owners)
    keys_last: bool = False
    names: dict[NodeId, str] = field(default_factory=dict)
    labels: dict[NodeId, Node] = field(default_factory=dict)

    def meet(self, node_id: NodeId, key: bytes = b"") -> None:
        """Note a node; its label is fixed when it is first seen."""
        self.labels.setdefault(node_id, label_of(key) if key else f"node-{node_id}")

    def settle(self, said: Mapping[Any, str], connected: Collection[Any]) -> Settled:
        """Settle a round's claims; a node whose claim is refused has no name until the next round."""
        claims = {self.labels[node_id]: name for node_id, name in said.items()}
        settled = settle(self.owners, claims, {self.labels[n] for n in connected}, keys_last=self.keys_last)
        won = {n: settled.names[self.labels[n]] for n in said if self.labels[n] in settled.names}
        silent = {n: name for n, name in self.names.items() if n not in said and name not in won.values()}
        self.owners, self.names = settled.owners, {**silent, **won}
        return settled


def owners_of(ledger: Ledger) -> Owners:
    """The owners according to a ledger: its clients' names, and the node from which each last answered."""
    spellings = {skeleton(name): name for name in ledger.clients}
    nodes = {}
    for entry in ledger.entries:
        if entry.nodes:
            pairs = zip(entry.answered, entry.nodes, strict=True)
            nodes.update({skeleton(ledger.clients[client]): node for client, node in pairs if node})
    return Owners(spellings, nodes)


def label_of(secret: bytes) -> Node:
    """The label of a node: a fingerprint of its key, or of a token that must not be written down."""
    return f"key-{hashlib.sha256(secret).hexdigest()[:16]}"


def settle(owners: Owners, said: Mapping[Node, str], present: Collection[Node], *, keys_last: bool = False) -> Settled:
    """Decide which node goes by which name; `present` are the nodes that are connected now."""
    claimants: dict[str, list[Node]] = defaultdict(list)
    for node, name in said.items():
        claimants[skeleton(name)].append(node)
    spellings, holders = dict(owners.spellings), dict(owners.nodes)
    names: dict[Node, str] = {}
    conflicts: dict[str, tuple[Node, ...]] = {}
    moved: dict[str, tuple[Node, Node]] = {}
    for key, nodes in claimants.items():
        owner, spelled = holders.get(key), spellings.get(key, tidy(said[nodes[0]]))
        is_free = owner is None or (owner not in present and owner not in nodes and not keys_last)
        winner = nodes[0] if is_free and len(nodes) == 1 else owner if owner in nodes else None
        refused = tuple(node for node in nodes if node != winner)
        if refused:
            conflicts[spelled] = refused
        if winner is not None:
            if owner is not None and owner != winner:
                moved[spelled] = (owner, winner)
            spellings[key], holders[key], names[winner] = spelled, winner, spelled
    return Settled(Owners(spellings, holders), names, conflicts, moved)
