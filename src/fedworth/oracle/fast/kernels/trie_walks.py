"""Compiled walks over a trie: growing it from paths of members, ordering it, and summing along it.

Nodes are numbered as they are met, node 0 is the root; steps are nodes in depth-first order, without the root.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedworth.arrays import Indices, Memberships
from fedworth.compile import compiled, compiled_within


def client_keys(n_clients: int) -> NDArray[np.uint64]:
    """Random bits for each client; a coalition's key is their exclusive or.

    Two different coalitions share a 128-bit key with probability 2^-128: among a million coalitions less than
    once in 10^26 runs, so keys are compared and coalitions are not.
    """
    return np.random.default_rng(2022).integers(0, 2**64, (n_clients, 2), dtype=np.uint64)


def listed(memberships: Memberships, rows: Indices, clients: Indices, n_members: int) -> Indices:
    """(n_members,): the members of the coalitions in the order of `rows`, those of each in the order of `clients`."""
    members = np.empty(n_members + 1, np.int64)
    _list(memberships, rows, clients, members)
    return members[:n_members]


@compiled
def _list(memberships: Memberships, rows: Indices, clients: Indices, members: Indices) -> None:
    n_listed = np.int64(0)
    for row in rows:
        for client in clients:
            members[n_listed] = client  # overwritten by the next if it is no member: faster than asking first
            n_listed += np.int64(memberships[row, client])


def grow(members: Indices, ends: Indices, n_clients: int) -> tuple[NDArray[np.int32], NDArray[np.int32], Indices]:
    """Every node's parent and client, node 0 the root, and the node reached after each member of each path."""
    most = 1 + min(len(members), 2 ** min(n_clients, 62))
    parents, clients = np.empty((2, most), np.int32)
    keys = np.empty((most, 2), np.uint64)
    reached = np.zeros(len(members), np.int64)
    n_nodes = _walk_paths(members, ends, client_keys(n_clients), keys, parents, clients, reached)
    return parents[:n_nodes].copy(), clients[:n_nodes].copy(), reached


@compiled_within
def _place(table: NDArray[np.int32], keys: NDArray[np.uint64], low: Any, high: Any) -> Any:
    """Where in the open-addressed table a key stands, or would stand; places hold node + 1, or 0 if empty."""
    mask = np.uint64(len(table) - 1)
    place = low & mask
    while table[place] > 0 and (keys[table[place] - 1, 0] != low or keys[table[place] - 1, 1] != high):
        place = (place + np.uint64(1)) & mask
    return place


@compiled_within
def _nearest(
    table: NDArray[np.int32],
    keys: NDArray[np.uint64],
    members: Indices,
    start: int,
    end: int,
    client_keys: NDArray[np.uint64],
) -> Any:
    """A known node one client short of the path of members from start to end, that client moved last; −1 if none."""
    low, high = np.uint64(0), np.uint64(0)
    for m in range(start, end):
        low ^= client_keys[members[m], 0]
        high ^= client_keys[members[m], 1]
    for m in range(end - 1, start - 1, -1):
        client = members[m]
        node = np.int64(table[_place(table, keys, low ^ client_keys[client, 0], high ^ client_keys[client, 1])]) - 1
        if node >= 0:
            members[m] = members[end - 1]
            members[end - 1] = client
            return node
    return np.int64(-1)


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
            near = _nearest(table, keys, members, start, end, client_keys)
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


def depth_first(parents: NDArray[np.int32]) -> tuple[Indices, NDArray[np.int32], NDArray[np.bool_]]:
    """Nodes in depth-first order, the slot of each node's sum, and whether any node continues it."""
    n_nodes = len(parents)
    slots, need = np.zeros((2, n_nodes), np.int32)
    neediest, first_child, next_sibling = np.full((3, n_nodes), -1, np.int64)
    order, waiting = np.zeros((2, n_nodes), np.int64)
    _find_needs(parents, need, neediest, first_child, next_sibling)
    _order(neediest, first_child, next_sibling, slots, order, waiting)
    return order, slots, neediest >= 0


@compiled
def _find_needs(
    parents: NDArray[np.int32], need: NDArray[np.int32], neediest: Indices, first_child: Indices, next_sibling: Indices
) -> None:
    """need(node) = max(need of its neediest child, 1 + need of the second), at least 1; 0 for a leaf."""
    for node in range(len(parents) - 1, 0, -1):  # children come after their parents
        parent = parents[node]
        next_sibling[node] = first_child[parent]
        first_child[parent] = node
        heaviest, needed, own = neediest[parent], need[parent], need[node]
        if heaviest < 0:
            neediest[parent] = node
            second = np.int32(1)
        elif own > need[heaviest]:
            neediest[parent] = node
            second = np.int32(1 + need[heaviest])
        else:
            own, second = np.int32(1 + own), needed
        larger = own if own > second else second
        need[parent] = larger if larger > needed else needed


@compiled
def _order(
    neediest: Indices,
    first_child: Indices,
    next_sibling: Indices,
    slots: NDArray[np.int32],
    order: Indices,
    waiting: Indices,
) -> None:
    """The neediest child goes last and takes over the slot, the others use the next one."""
    n_waiting, n_visited = 1, 0
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


@compiled
def mark_way(parents: NDArray[np.int32], needed: NDArray[np.bool_]) -> None:
    """Mark whatever is on the way to what is marked; a parent comes before its children, none is below 0."""
    for node in range(len(parents) - 1, -1, -1):
        if needed[node] and parents[node] >= 0:
            needed[parents[node]] = True


@compiled
def add_up(
    clients: NDArray[np.int32],
    parents: NDArray[np.int32],
    client_weights: NDArray[np.float64],
    totals: NDArray[np.float64],
    sizes: Indices,
) -> None:
    """The weight and the size of each step's coalition, added up as clients join."""
    for step in range(len(clients)):
        totals[step] = client_weights[clients[step]]
        sizes[step] = 1
        if parents[step] >= 0:
            totals[step] = totals[parents[step]] + totals[step]
            sizes[step] += sizes[parents[step]]


@compiled
def add_up_in_order(
    clients: NDArray[np.int32],
    parents: NDArray[np.int32],
    client_weights: NDArray[np.float64],
    is_member: NDArray[np.bool_],
    totals: NDArray[np.float64],
) -> None:
    """The weights, each summed by itself from the first client to the last: slower, and independent of the trie."""
    for step in range(len(clients)):
        for client in range(len(client_weights)):
            is_member[client] = False
        at = np.int64(step)
        while at >= 0:
            is_member[clients[at]] = True
            at = np.int64(parents[at])
        total = 0.0
        for client in range(len(client_weights)):
            if is_member[client]:
                total += client_weights[client]
        totals[step] = total
