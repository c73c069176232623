"""Plans of the studies' own: FedSV alone, to know what it costs, and permutations drawn one by one, as the paper has
them. What trials measure otherwise is chosen as for everyone."""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from fedworth.utility.coalitions import distinct, prefixes
from fedworth.utility.planning.plan import Plan, all_but_one
from fedworth.utility.squares import default_permutations, draw_permutations

Participants = NDArray[np.bool_]


def plan_fedsv(participants: Participants, n_participants: int, *, rng: np.random.Generator) -> Plan:
    """FedSV's cells alone; it needs no round that hears everyone, so there K of them stand for all."""
    n_clients = participants.shape[1]
    cells = []
    for row in participants:
        members = np.flatnonzero(row)
        chosen = np.sort(rng.choice(members, n_participants, replace=False)) if row.all() else members
        drawn = draw_permutations(chosen, default_permutations(len(chosen)), rng=rng)
        cells.append(distinct(prefixes(drawn, n_clients))[0])
    return Plan(tuple(cells))


def plan_random(participants: Participants, *, rng: np.random.Generator) -> Plan:
    """The prefixes of independent random permutations in one round that hears everyone, as many as the default has."""
    (row,) = participants
    everyone = np.tile(np.arange(len(row)), (default_permutations(len(row)), 1))
    drawn = rng.permuted(everyone, axis=1)
    cells = distinct(np.concatenate([prefixes(drawn, len(row)), all_but_one(row)]))[0]
    return replace(Plan((cells,)), permutations=drawn, round_permutations=(drawn,))
