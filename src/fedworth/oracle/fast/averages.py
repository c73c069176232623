"""Averages as sums of integers: what makes a coalition's utility independent of what is measured beside it.

A running sum of floats depends on the order of its terms, and along a trie that order depends on the other coalitions.
Sums of integers do not. So each client's numbers are rounded once to whole units, a_k z_k = q_k · unit, and

    Σ_{k∈S} a_k z_k  =  unit · Σ_{k∈S} q_k        in int32, exact in any order,

becomes a float only where a coalition is measured. The unit is a power of two, as small as the coalition itself allows:
with 2^e above its members' weighted numbers in this block of samples, and 2^h ≥ |S| + 2, it is 2^(e + h − 31), so that
a sum stays below 2^31. Both e and h go in steps, so that most coalitions share a unit; e from that of the model sums
start from, if they do. Up to 62 members leave 22 to 25 bits to the largest number, as many as float32 has, and beyond
that averaging makes up for the loss. A client with huge weights costs precision only to coalitions it is in: the
others have a unit of their own.

Weights may be of any size, 10^-300 or 10^300: exponents are added as whole numbers, and unit / Σ a_k is a float64
before it becomes a float32, which it fits whatever the weights, since it is the size of the average, less 31 bits.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from fedworth.arrays import Indices
from fedworth.compile import compiled
from fedworth.errors import UtilityError
from fedworth.oracle.fast.trie import Trie

COARSE = 3
"""Binary orders of magnitude between one unit and the next."""

HEADROOM = (6, 3)
"""For how many members, in binary orders of magnitude, there is room at least, and the steps beyond."""

LOWEST_EXPONENT = -40
"""Beside the model that sums start from, numbers below 2^-40 are as good as nothing."""

LOWEST_SHARE = LOWEST_EXPONENT - 400 * COARSE
"""Below the product of the smallest weight and the smallest number that there are."""

Floats = NDArray[np.float32]
Exponents = NDArray[np.int64]
Number = TypeVar("Number", np.int64, np.float64)


@dataclass(frozen=True, slots=True)
class Averages:
    """How running sums along a trie become averages: sums of a_k z_k, times a share for each step."""

    trie: Trie
    client_weights: NDArray[np.float64]  # (n_clients,)
    shares: NDArray[np.float64]  # (n_steps,) 1/Σ a_k, or 1 if sums start from a global model
    lowest: int  # exponents below it are raised to it
    convex: NDArray[np.bool_]  # (n_steps,) whether no average can leave the range of its models
    headrooms: Exponents  # (n_steps,)
    known: dict[bytes, tuple["Group", ...]]  # groups found so far, by the clients' exponents: most blocks have the same


@dataclass(frozen=True, slots=True)
class Group:
    """Steps whose coalitions share their units, and the steps on the way to them, as a trie."""

    trie: Trie
    members: Indices  # who joins in it
    places: Indices  # (n_steps,) where in the whole trie
    exponents: Exponents  # (n_parts,) of the units, which are powers of two

    def factors(self, client_weights: NDArray[np.float64]) -> NDArray[np.float64]:
        """(n_parts, n_clients): a_k in units of each part; only members' are finite for sure."""
        with np.errstate(over="ignore"):
            return np.asarray(np.ldexp(client_weights, -self.exponents[:, None]))

    def scales(self, shares: NDArray[np.float64]) -> Floats:
        """(n_steps, n_parts): what makes a sum of units an average; 0 for steps that are only on the way."""
        of_steps = np.where(self.trie.wanted, shares[self.places], 0.0)
        return np.ldexp(of_steps[:, None], self.exponents).astype(np.float32)


def averages(trie: Trie, n_clients: int, client_weights: NDArray[np.float64], *, from_global: bool) -> Averages:
    """The averages of a trie's coalitions, from the models alone or from a global model."""
    if trie.n_clients > n_clients:
        raise UtilityError(f"the trie names {trie.n_clients} clients, but {n_clients} models were given")
    if trie.asks_for_empty:
        raise UtilityError("the empty coalition has no average: its utility is 0, leave it out")
    weights = np.array(client_weights, np.float64)
    if weights.shape != (n_clients,) or not (np.isfinite(weights).all() and (weights > 0).all()):
        raise UtilityError(f"client_weights are {weights}, expected {n_clients} positive numbers")
    totals, sizes = trie.totals(weights)
    headrooms = _stepped(np.ceil(np.log2(sizes + 2)).astype(np.int64), *HEADROOM)  # (n_steps,)
    if from_global:
        return Averages(trie, weights, np.ones(trie.n_steps), LOWEST_EXPONENT, totals <= 1 + 1e-9, headrooms, {})
    return Averages(trie, weights, 1 / totals, LOWEST_SHARE, np.ones(trie.n_steps, np.bool_), headrooms, {})


def groups(sums: Averages, parts: Sequence[tuple[NDArray[np.float64], float]]) -> tuple[Group, ...]:
    """The trie in groups of steps that share their units.

    `parts` are the numbers that are summed in units of their own: the size of each client's largest number, and of the
    largest that sums start from, 0 if they start from nothing.
    """
    exponents = np.stack([_exponents(sums, largest, start) for largest, start in parts])  # (n_parts, n_clients)
    key = exponents.tobytes()
    if key not in sums.known:
        walks = [running_maxima(sums.trie.clients, sums.trie.parents, e) for e in exponents]
        sums.known[key] = tuple(_grouped(sums.trie, sums.headrooms + np.stack(walks)))
    return sums.known[key]


def _grouped(trie: Trie, levels: Exponents) -> Iterator[Group]:
    """Steps by their levels (n_parts, n_steps): the powers of two that no sum on the way there exceeds."""
    keys = levels[0]
    for row in levels[1:]:
        if len(row) and (row != row[0]).any():
            keys = np.unique(keys, return_inverse=True)[1] * (1 << 12) + row
    for key in np.unique(keys[trie.wanted]):
        chosen = trie.wanted & (keys == key)
        some, places = (trie, np.arange(trie.n_steps)) if chosen.sum() == trie.wanted.sum() else trie.only(chosen)
        yield Group(some, some.members(), places, levels[:, np.argmax(chosen)] - 31)


def _exponents(sums: Averages, largest: NDArray[np.float64], start: float) -> Exponents:
    """(n_clients,): powers of two above a_k · largest_k, raised to the next step from that of `start`.

    Who has only zeros there has the exponent of the weight: no power of two is least above 0.
    """
    (numbers, of_numbers), (weights, of_weights) = np.frexp(largest), np.frexp(sums.client_weights)
    of_products = of_numbers.astype(np.int64) + of_weights + np.frexp(numbers * weights)[1]
    anchor = int(np.frexp(start)[1]) if start > 0 else sums.lowest
    found = np.where(largest > 0, of_products, of_weights).astype(np.int64)
    return _stepped(found, max(anchor, sums.lowest), COARSE)


def _stepped(exponents: Exponents, least: int, step: int) -> Exponents:
    """Each raised to the next of least, least + step, least + 2 step, …"""
    return np.asarray(least + step * np.maximum(0, -((least - exponents) // step)), np.int64)


def running_maxima(
    clients: NDArray[np.int32], parents: NDArray[np.int32], of_clients: NDArray[Number]
) -> NDArray[Number]:
    """(n_steps,): the largest number of a step's members."""
    found = np.empty(len(clients), of_clients.dtype)
    _find_maxima(clients, parents, of_clients, found)
    return found


@compiled
def _find_maxima(
    clients: NDArray[np.int32], parents: NDArray[np.int32], of_clients: NDArray[Number], found: NDArray[Number]
) -> None:
    for step in range(len(clients)):
        own = of_clients[clients[step]]
        if parents[step] >= 0 and found[parents[step]] > own:
            own = found[parents[step]]
        found[step] = own
