"""The order in which many coalitions' models are summed, so that each costs one addition.

In: coalitions, as memberships. Out: a trie whose every step adds one client to the running sum of an earlier step,

    sum(S ∪ {k}) = sum(S) + a_k z_k,

in depth-first order. Equal coalitions are one step. Running sums live in numbered slots: the last step that
continues a sum overwrites it, and of several the one whose own tree is the most branched goes last. So a chain of a
thousand clients needs one slot, and n steps never more than log2(n) + 1 (the Strahler number of the trie). In which
order a coalition's clients join depends on the other coalitions; sums are therefore of integers (`averages`).
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedworth.arrays import Indices, Memberships
from fedworth.errors import UtilityError
from fedworth.oracle.fast.kernels.trie_walks import add_up, add_up_in_order, depth_first, grow, listed, mark_way

ROOT = -1
"""Stands for the empty coalition, where a step number is expected."""

NOWHERE = -1
"""Stands for a running sum that no later step continues."""


@dataclass(frozen=True, slots=True)
class Trie:
    """Steps that visit every wanted coalition, each adding one client to an earlier sum."""

    clients: NDArray[np.int32]  # (n_steps,) who joins
    parents: NDArray[np.int32]  # (n_steps,) the step joined, or ROOT
    sources: NDArray[np.int32]  # (n_steps,) slot holding the parent's sum; the root's is slot 0
    targets: NDArray[np.int32]  # (n_steps,) slot for the new sum, or NOWHERE
    wanted: NDArray[np.bool_]  # (n_steps,) whether a coalition asked for ends here
    coalition_steps: Indices  # (n_coalitions,) where each coalition asked for ends, or ROOT
    n_slots: int
    n_clients: int

    @property
    def n_steps(self) -> int:
        return len(self.clients)

    @property
    def asks_for_empty(self) -> bool:
        return bool((self.coalition_steps == ROOT).any())

    def totals(self, client_weights: NDArray[np.float64]) -> tuple[NDArray[np.float64], Indices]:
        """The weight of each step's coalition, Σ_{k∈S} a_k, and how many clients are in it: both (n_steps,).

        Weights are added up from the first client to the last; whole numbers as the trie comes, since their sums are
        exact in any order.
        """
        totals, sizes = np.empty(self.n_steps), np.empty(self.n_steps, np.int64)
        add_up(self.clients, self.parents, client_weights, totals, sizes)
        if not (bool((client_weights % 1 == 0).all()) and client_weights.sum() < 2**53):
            is_member = np.empty(len(client_weights), np.bool_)
            add_up_in_order(self.clients, self.parents, client_weights, is_member, totals)
        return totals, sizes

    def members(self) -> Indices:
        """The clients who join somewhere, in order."""
        return np.flatnonzero(np.bincount(self.clients, minlength=self.n_clients))

    def only(self, wanted: NDArray[np.bool_]) -> tuple["Trie", Indices]:
        """The trie of some of the wanted steps, and where its steps were; the coalitions asked for are forgotten.

        Steps are left out, and none changes its place or its slots: what a step needs is on its own way.
        """
        needed = wanted.copy()
        mark_way(self.parents, needed)
        kept = np.flatnonzero(needed)
        new = np.cumsum(needed) - 1
        parents = self.parents[kept]
        renumbered = np.where(parents == ROOT, ROOT, new[parents]).astype(np.int32)
        nothing = np.zeros(0, np.int64)
        arrays = (self.clients[kept], renumbered, self.sources[kept], self.targets[kept], wanted[kept], nothing)
        return Trie(*arrays, self.n_slots, self.n_clients), kept


def coalition_trie(memberships: Memberships) -> Trie:
    """A trie through the given coalitions, in whatever order of clients shares most.

    Coalitions are met by increasing size. One that is a known coalition and one more client continues it; any
    other is built up from its most frequent client to its rarest, since frequent clients first share most.
    """
    if memberships.ndim != 2:
        raise UtilityError(f"memberships have shape {memberships.shape}, expected (n_coalitions, n_clients)")
    n_coalitions, n_clients = memberships.shape
    sizes, frequencies = (np.count_nonzero(memberships, axis=axis) for axis in (1, 0))  # (n_coalitions,), (n_clients,)
    by_frequency = np.argsort(-frequencies, kind="stable")  # (n_clients,)
    by_size = np.argsort(sizes, kind="stable")  # (n_coalitions,)
    members = listed(memberships, by_size, by_frequency, int(sizes.sum()))  # (Σ|S|,)
    ends = np.cumsum(sizes[by_size])  # (n_coalitions,)
    parents, clients, reached = grow(members, ends, n_clients)
    nodes = np.zeros(n_coalitions, np.int64)
    occupied = sizes[by_size] > 0
    nodes[by_size[occupied]] = reached[ends[occupied] - 1]
    return _arranged(parents, clients, nodes, n_clients)


def _arranged(parents: NDArray[np.int32], clients: NDArray[np.int32], nodes: Indices, n_clients: int) -> Trie:
    """The trie in depth-first order, from nodes in the order they were met; node 0 is the root.

    A path may turn into a coalition known by another way, and leave behind nodes that lead nowhere; they are dropped.
    """
    needed = np.zeros(len(parents), np.bool_)
    needed[0], needed[nodes] = True, True
    mark_way(parents, needed)
    renumbered = np.cumsum(needed) - 1
    parents, clients, nodes = renumbered[parents[needed]].astype(np.int32), clients[needed], renumbered[nodes]
    order, slots, continued = depth_first(parents)
    position = np.empty(len(order), np.int64)
    position[order] = np.arange(len(order)) - 1  # the root becomes ROOT
    steps = order[1:]
    wanted = np.zeros(len(order), np.bool_)
    wanted[nodes] = True
    return Trie(
        clients=clients[steps],
        parents=position[parents[steps]].astype(np.int32),
        sources=slots[parents[steps]],
        targets=np.where(continued[steps], slots[steps], NOWHERE).astype(np.int32),
        wanted=wanted[steps],
        coalition_steps=position[nodes],
        n_slots=int(slots[continued].max(initial=0)) + 1,
        n_clients=n_clients,
    )
