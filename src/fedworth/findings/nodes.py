"""Names and nodes: a name that a second node claimed, and one node that answered under several names."""

from collections import defaultdict

from fedworth.findings.finding import Detected, Evidence, Kind, Level
from fedworth.findings.traces import RoundTrace
from fedworth.ledger.ledger import Ledger

CONTESTED_NAME = Kind(
    "contested name",
    Level.ACT,
    sentence="{clients} had its name claimed by another node",
    basis="messages of the nodes",
    title="had its name claimed by a second node",
    why="Somebody else may have answered, or tried to, in its name.",
    action="Find out which node is its own, and who runs the other.",
    client_title="Another node answered in your name",
    client_action="Tell the coordinator which node is yours.",
    needs="a recorder that tells nodes apart",
    when_asked=True,
)
SHARED_NODE = Kind(
    "shared node",
    Level.NOTE,
    sentence="{clients} answered from one node, so there are more names than nodes",
    basis="messages of the nodes",
    title="answered from one node",
    why="Several names of one owner collect several shares.",
    action="Ask whether they are one owner; if so, value them as one.",
    client_title="You share a node with another name",
    client_action="Tell the coordinator why, if you know.",
    needs="a recorder that tells nodes apart",
    across_rounds=True,
)


def detect(ledger: Ledger, traces: list[RoundTrace], earlier: list[Evidence]) -> Detected:  # noqa: ARG001
    """Contested names and shared nodes, from the ledger's entries alone."""
    found = []
    answers: dict[str, list[tuple[int, int]]] = defaultdict(list)  # node → (client, round)
    for entry in ledger.entries:
        found += [Evidence(CONTESTED_NAME, (client,), entry.round_index) for client in entry.contested]
        for client, node in zip(entry.answered, entry.nodes, strict=bool(entry.nodes)):
            answers[node].append((client, entry.round_index))
    for node, given in answers.items():
        clients = tuple(sorted({client for client, _ in given}))
        if node and len(clients) > 1:
            found += [Evidence(SHARED_NODE, clients, round_index) for _, round_index in given]
    tells_nodes_apart = any(entry.nodes or entry.contested for entry in ledger.entries)
    return found, [CONTESTED_NAME, SHARED_NODE] if tells_nodes_apart else []
