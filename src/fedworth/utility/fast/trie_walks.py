"""Compiled walks over a trie: growing it from paths of members, ordering it, and summing along it.

Nodes are numbered as they are met, node 0 is the root; steps are nodes in depth-first order, without the root.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedworth.arrays import Indices, Memberships
from fedworth.compile import compiled


def client_keys(n_clients: int) -> NDArray[np.uint64]:
    """Random bits for each client; a coalition's key is their exclusive or.

    Two different coalitions share a 128-bit key with probability 2^-128: among a million coalitions less than
    once in 10^26 runs, so keys are compared and coalitions are not.
    """
    return np.random.default_rng(2022).integers(0, 2**64, (n_clients, 2), dtype=np.uint64)


@compiled
def counted(memberships: Memberships) -> tuple[Indices, Indices]:
    """How many clients each coalition has (n_coalitions,), and how many coalitions each client is in (n_clients,)."""
    n_coalitions, n_clients = memberships.shape
    sizes, frequencies = np.zeros(n_coalitions, np.int64), np.zeros(n_clients, np.int64)
    for row in range(n_coalitions):
        size = np.int64(0)
        for client in range(n_clients):
            is_member = np.int64(memberships[row, client])
            size += is_member
            frequencies[client] += is_member
        sizes[row] = size
    return sizes, frequencies


@compiled
def listed(memberships: Memberships, rows: Indices, clients: Indices, n_members: int) -> Indices:
    """(n_members,): the members of the coalitions in the order of `rows`, those of each in the order of `clients`."""
    members = np.empty(n_members + 1, np.int64)
    n_listed = np.int64(0)
    for row in rows:
        for client in clients:
            members[n_listed] = client  # overwritten by the next if it is no member: faster than asking first
            n_listed += np.int64(memberships[row, client])
    return members[:n_members]


def grow(members: Indices, ends: Indices, n_clients: int) -> tuple[NDArray[np.int32], NDArray[np.int32], Indices]:
    """Every node's parent and client, node 0 the root, and the node reached after each member of each path."""
    most = 1 + min(len(members), 2 ** min(n_clients, 62))
    parents, clients = np.empty((2, most), np.int32)
    keys = np.empty((most, 2), np.uint64)
    reached = np.zeros(len(members), np.int64)
    n_nodes = _walk_paths(members, ends, client_keys(n_clients), keys, parents, clients, reached)
    return parents[:n_nodes].copy(), clients[:n_nodes].copy(), reached


@compiled
def _place(table: NDArray[np.int32], keys: NDArray[np.uint64], low: Any, high: Any) -> Any:
    """Where in the open-addressed table a key stands, or would stand; places hold node + 1, or 0 if empty."""
    mask = np.uint64(len(table) - 1)
    place = low & mask
    while table[place] > 0 and (keys[table[place] - 1, 0] != low or keys[table[place] - 1, 1] != high):
        place = (place + np.uint64(1)) & mask
    return place


@compiled
def _nearest(table: NDArray[np.int32], keys: NDArray[np.uint64], path: Indices, client_keys: NDArray[np.uint64]) -> int:
    """A known node one client short of the path's end, that client moved last; −1 if there is none."""
    low, high = np.uint64(0), np.uint64(0)
    for client in path:
        low ^= client_keys[client, 0]
        high ^= client_keys[client, 1]
    last = len(path) - 1
    for m in range(last, -1, -1):
        client = path[m]
        node = table[_place(table, keys, low ^ client_keys[client, 0], high ^ client_keys[client, 1])] - 1
        if node >= 0:
            path[m], path[last] = path[last], client
            return int(node)
    return -1


@compiled
def _walk_paths(
    members: Indices,
    ends: Indices,
    client_keys: NDArray[np.uint64],
    keys: NDArray[np.uint64],
    parents: NDArray[np.int32],
    clients: NDArray[np.int32],
    reached: Indices,
) -> int:
    """Walk every path of members from the root, making the nodes that are missing; returns how many there are.

    A path one client away from a known node starts there, and only its end is filled in.
    """
    table = np.zeros(1 << 12, np.int32)
    table[0] = 1
    keys[0, 0], keys[0, 1] = 0, 0
    parents[0], clients[0] = -1, -1
    n_nodes, start = 1, 0
    for end in ends:
        node, first = 0, start
        if end > start:
            near = _nearest(table, keys, members[start:end], client_keys)
            if near >= 0:
                node, first = near, end - 1
        for m in range(first, end):
            low = keys[node, 0] ^ client_keys[members[m], 0]
            high = keys[node, 1] ^ client_keys[members[m], 1]
            place = _place(table, keys, low, high)
            if table[place] == 0:
                keys[n_nodes, 0], keys[n_nodes, 1] = low, high
                parents[n_nodes], clients[n_nodes] = node, members[m]
                n_nodes += 1
                table[place] = n_nodes
            node = table[place] - 1
            reached[m] = node
            if 4 * n_nodes > len(table):
                table = np.zeros(4 * len(table), np.int32)
                for known in range(n_nodes):
                    table[_place(table, keys, keys[known, 0], keys[known, 1])] = known + 1
        start = end
    return n_nodes


@compiled
def depth_first(
    parents: NDArray[np.int32],
) -> tuple[Indices, NDArray[np.int32], NDArray[np.bool_]]:
    """Nodes in depth-first order, the slot of each node's sum, and whether any node continues it.

    need(node) = max(need of its neediest child, 1 + need of the second), at least 1; 0 for a leaf. The neediest
    child goes last and takes over the slot, the others use the next one.
    """
    n_nodes = len(parents)
    need = np.zeros(n_nodes, np.int32)
    neediest = np.full(n_nodes, -1, np.int64)
    first_child = np.full(n_nodes, -1, np.int64)
    next_sibling = np.full(n_nodes, -1, np.int64)
    for node in range(n_nodes - 1, 0, -1):  # children come after their parents
        parent = parents[node]
        next_sibling[node] = first_child[parent]
        first_child[parent] = node
        heaviest = neediest[parent]
        if heaviest < 0:
            neediest[parent] = node
            need[parent] = max(1, need[node])
        elif need[node] > need[heaviest]:
            neediest[parent] = node
            need[parent] = max(need[node], 1 + need[heaviest], need[parent])
        else:
            need[parent] = max(need[parent], 1 + need[node])
    slots = np.zeros(n_nodes, np.int32)
    order = np.empty(n_nodes, np.int64)
    waiting = np.empty(n_nodes, np.int64)
    n_waiting = 1
    waiting[0] = 0
    n_visited = 0
    while n_waiting > 0:
        n_waiting -= 1
        node = waiting[n_waiting]
        order[n_visited] = node
        n_visited += 1
        if neediest[node] < 0:
            continue
        waiting[n_waiting] = neediest[node]
        slots[neediest[node]] = slots[node]
        n_waiting += 1
        child = first_child[node]
        while child >= 0:
            if child != neediest[node]:
                waiting[n_waiting] = child
                slots[child] = slots[node] + 1
                n_waiting += 1
            child = next_sibling[child]
    return order, slots, neediest >= 0


@compiled
def leads_to(parents: NDArray[np.int32], nodes: Indices) -> NDArray[np.bool_]:
    """(n_nodes,): whether a node is wanted, or on the way to one that is; the root always."""
    needed = np.zeros(len(parents), np.bool_)
    needed[0] = True
    needed[nodes] = True
    for node in range(len(parents) - 1, 0, -1):  # children come after their parents
        needed[parents[node]] |= needed[node]
    return needed


@compiled
def running_totals(
    clients: NDArray[np.int32], parents: NDArray[np.int32], client_weights: NDArray[np.float64]
) -> NDArray[np.float64]:
    """The weight of each step's coalition, added up as clients join."""
    totals = np.empty(len(clients), np.float64)
    for step in range(len(clients)):
        before = totals[parents[step]] if parents[step] >= 0 else 0.0
        totals[step] = before + client_weights[clients[step]]
    return totals


@compiled
def ordered_totals(
    clients: NDArray[np.int32], parents: NDArray[np.int32], client_weights: NDArray[np.float64]
) -> NDArray[np.float64]:
    """The same, each summed by itself from the first client to the last: slower, and independent of the trie."""
    totals = np.empty(len(clients), np.float64)
    is_member = np.zeros(len(client_weights), np.bool_)
    for step in range(len(clients)):
        is_member[:] = False
        at = step
        while at >= 0:
            is_member[clients[at]] = True
            at = parents[at]
        total = 0.0
        for client in range(len(client_weights)):
            if is_member[client]:
                total += client_weights[client]
        totals[step] = total
    return totals


@compiled
def running_sizes(parents: NDArray[np.int32]) -> Indices:
    """(n_steps,): how many clients have joined after each step."""
    sizes = np.ones(len(parents), np.int64)
    for step in range(len(parents)):
        if parents[step] >= 0:
            sizes[step] = sizes[parents[step]] + 1
    return sizes


@compiled
def on_the_way(parents: NDArray[np.int32], wanted: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """(n_steps,): whether a step is wanted, or on the way to one that is."""
    needed = wanted.copy()
    for step in range(len(parents) - 1, -1, -1):
        if needed[step] and parents[step] >= 0:
            needed[parents[step]] = True
    return needed
