"""Plans of the studies' own: Monte Carlo for both metrics at once, and FedSV alone, to know what each costs.

In a round that hears everyone, FedSV's orders are those of Algorithm 1: new ones would double the cost of
the most expensive round and estimate the same thing. Such a plan estimates leave-one-out too.
"""

import numpy as np
from numpy.typing import NDArray

from fedworth.arrays import Permutations
from fedworth.utility.coalitions import distinct, prefixes
from fedworth.utility.orders import default_permutations, draw_permutations
from fedworth.utility.planning.plan import Plan, all_but_one, plan_prefixes

Participants = NDArray[np.bool_]


def plan_monte_carlo(
    participants: Participants, *, n_permutations: int | None = None, rng: np.random.Generator
) -> Plan:
    """Algorithm 1's cells, and in every round those of FedSV by about K ln K orders (no more than `n_permutations`) and
    of leave-one-out."""
    n_clients = participants.shape[1]
    algorithm = plan_prefixes(participants, n_permutations=n_permutations, with_fedsv=False, rng=rng)
    assert algorithm.permutations is not None
    orders = tuple(
        algorithm.permutations if len(members) == n_clients else _orders(members, rng, most=n_permutations)
        for members in map(np.flatnonzero, participants)
    )
    cells = []
    for row, mine, within in zip(participants, orders, algorithm.cells, strict=True):
        wanted = np.concatenate([within, prefixes(mine, n_clients), all_but_one(row)])
        cells.append(distinct(wanted)[0])
    return Plan(tuple(cells), algorithm.permutations, orders)


def plan_fedsv(participants: Participants, n_participants: int, *, rng: np.random.Generator) -> Plan:
    """FedSV's cells alone; it needs no round that hears everyone, so there K of them stand for all."""
    n_clients = participants.shape[1]
    cells = []
    for row in participants:
        members = np.flatnonzero(row)
        chosen = np.sort(rng.choice(members, n_participants, replace=False)) if row.all() else members
        cells.append(distinct(prefixes(_orders(chosen, rng), n_clients))[0])
    return Plan(tuple(cells))


def _orders(members: NDArray[np.int64], rng: np.random.Generator, *, most: int | None = None) -> Permutations:
    usual = default_permutations(len(members))
    return draw_permutations(members, usual if most is None else min(usual, most), rng=rng)
