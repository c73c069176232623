"""A plan of the studies' own: FedSV alone, to know what it costs. What trials measure is chosen as for everyone."""

import numpy as np
from numpy.typing import NDArray

from fedworth.utility.coalitions import distinct, prefixes
from fedworth.utility.planning.plan import Plan
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
