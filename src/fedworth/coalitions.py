"""Coalitions as rows of booleans: listing, comparing and finding them.

In a list of all 2^n coalitions row c is the coalition whose integer is c: bit i stands for client i. A coalition of
more than 64 clients fits no machine integer, so rows are compared as packed bytes.
"""

import math
from itertools import chain, combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedworth.arrays import Indices, Memberships, Permutations
from fedworth.errors import TooManyError

MOST_LISTED = 20
"""Clients up to which all coalitions fit into memory; `games.shapley` decides up to how many they are measured."""

PAIRS_AT_ONCE = 1 << 17


def coalitions_of(members: Indices, n_clients: int) -> Memberships:
    """All 2^n coalitions of `members`, the empty one first, in the order of their integers."""
    n = len(members)
    if n > MOST_LISTED:
        raise TooManyError(
            f"{n} clients have 2^{n} = {2**n:,} coalitions; at most 2^{MOST_LISTED} are enumerated; "
            "sample coalitions instead, with --permutations M"
        )
    rows = np.zeros((2**n, n_clients), dtype=bool)  # (2^n, n_clients)
    rows[:, members] = (np.arange(2**n)[:, None] >> np.arange(n)) & 1
    return rows


def of_size(n_members: int, size: int) -> Memberships:
    """All coalitions of `size` of n members."""
    count = math.comb(n_members, size)
    chosen = np.fromiter(chain.from_iterable(combinations(range(n_members), size)), dtype=np.int64, count=count * size)
    return from_members(chosen.reshape(count, size), n_members)


def from_members(members: Indices, n_clients: int) -> Memberships:
    """The coalitions with these members, (n_coalitions, size)."""
    rows = np.zeros((len(members), n_clients), dtype=bool)
    np.put_along_axis(rows, members, True, axis=1)
    return rows


def prefixes(permutations: Permutations, n_clients: int) -> Memberships:
    """Every prefix of every permutation: row m·(n+1) + j holds the first j clients of permutation m, j = 0 … n.

    The permutations may contain only some of the clients.
    """
    n_permutations, n = permutations.shape
    rows = np.zeros((n_permutations, n + 1, n_clients), dtype=bool)
    order = np.arange(n_permutations)
    for position in range(n):
        rows[:, position + 1] = rows[:, position]
        rows[order, position + 1, permutations[:, position]] = True
    return rows.reshape(n_permutations * (n + 1), n_clients)


def distinct(coalitions: Memberships) -> tuple[Memberships, Indices]:
    """The different coalitions, ordered by size and members, and for each given row its index among them."""
    _, first, inverse = np.unique(_keys(coalitions), return_index=True, return_inverse=True)
    by_size = np.argsort(np.count_nonzero(coalitions, axis=1)[first], kind="stable")
    rank = np.empty(len(by_size), dtype=np.int64)
    rank[by_size] = np.arange(len(by_size))
    return coalitions[first[by_size]], rank[inverse.reshape(-1)]


def are_distinct(coalitions: Memberships) -> bool:
    return len(np.unique(_keys(coalitions))) == len(coalitions)


def are_within(
    coalitions: Memberships, rows: Indices, participants: NDArray[np.bool_], rounds: Indices
) -> NDArray[np.bool_]:
    """(n_pairs,): whether all members of coalition `rows[i]` are among the participants of round `rounds[i]`."""
    packed, outside = np.packbits(coalitions, axis=1), np.packbits(~participants, axis=1)
    within = np.empty(len(rows), dtype=bool)
    for start in range(0, len(rows), PAIRS_AT_ONCE):
        part = slice(start, start + PAIRS_AT_ONCE)
        within[part] = ~(packed[rows[part]] & outside[rounds[part]]).any(axis=1)
    return within


def prefixes_within(permutations: Permutations, row: NDArray[np.bool_]) -> Memberships:
    """The non-empty prefixes of all permutations that lie within `row`, in the order of the permutations."""
    lengths = np.logical_and.accumulate(row[permutations], axis=1).sum(axis=1)  # (n_permutations,)
    found = [prefixes(order[None, :n], len(row))[1:] for order, n in zip(permutations, lengths.tolist(), strict=True)]
    return np.concatenate([np.zeros((0, len(row)), dtype=bool), *found])


def locate(wanted: Memberships, known: Memberships) -> Indices:
    """For each wanted coalition its row among the known ones, or −1."""
    if len(known) == 0:
        return np.full(len(wanted), -1, dtype=np.int64)
    known_keys, wanted_keys = _keys(known), _keys(wanted)
    order = np.argsort(known_keys, kind="stable")
    position = np.searchsorted(known_keys, wanted_keys, sorter=order)
    candidate = order[np.minimum(position, len(order) - 1)]
    return np.where(known_keys[candidate] == wanted_keys, candidate, -1)


def names(coalition: NDArray[np.bool_], clients: tuple[str, ...]) -> str:
    """A coalition's members in braces."""
    return "{" + ", ".join(name for name, is_in in zip(clients, coalition, strict=True) if is_in) + "}"


def _keys(coalitions: Memberships) -> NDArray[Any]:
    """One comparable key per row; big-endian words, so that keys order like the packed bytes."""
    packed = np.packbits(coalitions, axis=1)  # (n_coalitions, n_bytes)
    if packed.shape[1] <= 8:
        words = np.zeros((len(packed), 8), dtype=np.uint8)
        words[:, : packed.shape[1]] = packed
        return words.view(">u8").reshape(-1).astype(np.uint64)
    return np.ascontiguousarray(packed).view(np.dtype((np.void, packed.shape[1]))).reshape(-1)
