"""A round's Shapley value from truncated permutations: TMC (Ghorbani and Zou, 2019), GTG (Liu et al., 2022).

Clients join one after the other in a random order, and each is paid what it adds. Once the coalition so far is within a
tolerance of all participants' utility, the rest of the order is taken to add nothing, and is not measured.

    tmc   random orders
    gtg   orders in which every client comes first once, then the others at random; and a round whose participants
          together change the utility by little is left out whole

Both stop when the values have settled: Σ|v − v of 10 batches ago| ≤ 5 % of Σ|v|. The papers divide client by client,
which never settles where a value is near zero.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from fedworth.arrays import Floats, Permutations
from fedworth.valuation.rivals.counted import CountedGame

WITHIN = 0.05
"""A coalition so near to all participants' utility, as a part of it, is taken for all of them."""

SETTLED, LOOK_BACK = 0.05, 10

MOST_BATCHES = 200
"""Batches of n orders each."""


class SamplingStatus(StrEnum):
    """Why sampling stopped."""

    SETTLED = "the values have settled"
    MOST = "stopped at the most batches of orders; the values had not settled"
    SKIPPED = "left out: its participants together changed the utility by little"


@dataclass(frozen=True)
class Sampled:
    """A round's values by truncated permutations."""

    values: Floats  # (n,)
    status: SamplingStatus
    n_permutations: int


def tmc_values(game: CountedGame, *, rng: np.random.Generator) -> Sampled:
    """Truncated Monte Carlo over random orders."""
    return _settled(game, lambda: rng.permuted(np.tile(np.arange(game.n), (game.n, 1)), axis=1))


def gtg_values(game: CountedGame, *, skip_below: float, rng: np.random.Generator) -> Sampled:
    """Guided truncation: every client comes first equally often; a round that changed little is left out."""
    if abs(game.whole) <= skip_below:
        return Sampled(np.zeros(game.n), SamplingStatus.SKIPPED, 0)
    return _settled(game, lambda: _guided(game.n, rng))


def _guided(n: int, rng: np.random.Generator) -> Permutations:
    """(n, n): row i starts with client i, the others follow at random."""
    others = np.array([np.delete(np.arange(n), i) for i in range(n)]).reshape(n, n - 1)
    return np.column_stack([np.arange(n), rng.permuted(others, axis=1)])


def _settled(game: CountedGame, draw: Callable[[], Permutations]) -> Sampled:
    """The mean over batches of orders, until it has settled."""
    total, past = np.zeros(game.n), list[Floats]()
    for n_batches in range(1, MOST_BATCHES + 1):
        total += _marginals(game, draw())
        values = total / (n_batches * game.n)
        past.append(values)
        if n_batches > LOOK_BACK:
            moved = np.abs(values - past[-1 - LOOK_BACK]).sum()
            if moved <= SETTLED * np.abs(values).sum():
                return Sampled(values, SamplingStatus.SETTLED, n_batches * game.n)
    return Sampled(values, SamplingStatus.MOST, MOST_BATCHES * game.n)


def _marginals(game: CountedGame, orders: Permutations) -> Floats:
    """(n,): what each client adds, summed over the orders; all orders take a step together, so that they share work."""
    whole, added = game.whole, np.zeros(game.n)
    reached = np.zeros(len(orders))  # the utility of each order so far
    rows = np.zeros((len(orders), game.n), dtype=bool)
    for position in range(game.n):
        going = np.flatnonzero(np.abs(whole - reached) > WITHIN * abs(whole))
        joining = orders[going, position]
        rows[np.arange(len(orders)), orders[:, position]] = True
        utilities = game(rows[going])
        np.add.at(added, joining, utilities - reached[going])
        reached[going] = utilities
        stopped = np.setdiff1d(np.arange(len(orders)), going)
        reached[stopped] = whole
    return added
