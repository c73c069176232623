"""Plans of the studies' own: FedSV alone, to know what it costs, and permutations drawn one by one, as the paper has
them. What trials measure otherwise is chosen as for everyone."""

import numpy as np
from numpy.typing import NDArray

from fedworth.arrays import Indices, Permutations
from fedworth.coalitions import distinct, prefixes, prefixes_within
from fedworth.games.planning.plan import Plan, all_but_one
from fedworth.games.squares import default_permutations, draw_permutations

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
    """What `plan_prefixes` measures by permutations, with as many of them, each drawn by itself."""
    n_clients = participants.shape[1]
    everyones = _drawn(np.arange(n_clients), rng)
    of_rounds = tuple(everyones if row.all() else _drawn(np.flatnonzero(row), rng) for row in participants)
    cells = [
        np.concatenate([prefixes_within(everyones, row), prefixes_within(own, row), all_but_one(row)])
        for own, row in zip(of_rounds, participants, strict=True)
    ]
    return Plan(tuple(distinct(found)[0] for found in cells), everyones, of_rounds)


def _drawn(members: Indices, rng: np.random.Generator) -> Permutations:
    return rng.permuted(np.tile(members, (default_permutations(len(members)), 1)), axis=1)
