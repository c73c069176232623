"""Draws: which coalitions of n members to measure beside the lone clients and the whole, and what each counts.

Of the coalitions of size s, m_s ∝ (n − s) / s^1.5 are drawn in expectation, and 0.2 at least: what the surrogate misses
fades with the size, but never quite. m_s need not be whole: it is rounded up or down at random. A coalition that is one
of c drawn of its size counts 1/c of the size's mean; where m_s < 1, 1/m_s. Either way the weighted sum over draws has
the size's mean as its expectation, whatever the game. Sizes of which all coalitions can be afforded are taken whole.

Coalitions of a size are consecutive blocks of random permutations, so that clients appear about equally often. A fold
is a random half of the permutations: draws of one fold are independent of the other's.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedworth.arrays import Floats, Indices, Memberships
from fedworth.coalitions import of_size

POWER = 1.5

FEWEST = 0.2
"""The least expected number of draws of a size: with fewer, the rare draw counts so much that it is worse than none."""


@dataclass(frozen=True)
class Draws:
    """Coalitions of sizes 2 … n−1, what each counts in its size's mean, its fold, and whether its size is whole."""

    coalitions: Memberships  # (n_draws, n)
    weights: Floats  # (n_draws,)
    folds: Indices  # (n_draws,), 0 or 1
    whole: NDArray[np.bool_]  # (n_draws,)

    def __len__(self) -> int:
        return len(self.weights)


def draw(n_members: int, n_draws: int, *, rng: np.random.Generator) -> Draws:
    """About so many coalitions of 2 … n−1 members; all of them, if these are no more."""
    wanted = expected_counts(n_members, n_draws)  # (n + 1,)
    parts = [_of_size(n_members, size, float(wanted[size]), rng) for size in range(2, n_members)]
    empty = Draws(
        np.zeros((0, n_members), dtype=bool), np.zeros(0), np.zeros(0, dtype=np.int64), np.zeros(0, dtype=bool)
    )
    return _joined([empty, *(part for part in parts if len(part))])


def expected_counts(n_members: int, n_draws: int) -> Floats:
    """(n + 1,): m_s, adding up to `n_draws` or to all there are (a few more where FEWEST asks for it); no size has more
    than there are of it."""
    sizes = np.arange(2, n_members)
    counts = np.array([float(math.comb(n_members, int(s))) for s in sizes])
    needs = (n_members - sizes) / sizes.astype(np.float64) ** POWER
    whole = np.zeros(len(sizes), dtype=bool)
    while True:
        left = max(n_draws - counts[whole].sum(), 0.0)
        found = np.where(whole, counts, needs * left / max(needs[~whole].sum(), 1e-300))
        full = ~whole & (found >= counts)
        if not full.any():
            return np.concatenate([[0.0, 0.0], np.maximum(found, FEWEST), [0.0]])[: n_members + 1]
        whole |= full


def _of_size(n_members: int, size: int, wanted: float, rng: np.random.Generator) -> Draws:
    if wanted >= math.comb(n_members, size):
        rows = of_size(n_members, size)
        return Draws(rows, np.full(len(rows), 1 / len(rows)), _folds(len(rows), rng), np.ones(len(rows), dtype=bool))
    count = int(wanted) + int(rng.random() < wanted % 1)
    in_order = max(1, n_members // size)  # blocks an order has
    n_permutations = -(-count // in_order)
    permutations = rng.permuted(np.tile(np.arange(n_members), (n_permutations, 1)), axis=1)
    blocks = permutations[:, : in_order * size].reshape(n_permutations * in_order, size)[:count]
    rows = np.zeros((count, n_members), dtype=bool)
    np.put_along_axis(rows, blocks, True, axis=1)
    weight = 1 / count if wanted >= 1 else 1 / wanted
    folds = np.repeat(_folds(n_permutations, rng), in_order)[:count]
    return Draws(rows, np.full(count, weight), folds, np.zeros(count, dtype=bool))


def _folds(n: int, rng: np.random.Generator) -> Indices:
    return np.asarray(rng.integers(0, 2, n), dtype=np.int64)


def _joined(parts: list[Draws]) -> Draws:
    return Draws(
        np.concatenate([p.coalitions for p in parts]),
        np.concatenate([p.weights for p in parts]),
        np.concatenate([p.folds for p in parts]),
        np.concatenate([p.whole for p in parts]),
    )
