"""Plans: which cells to measure, before any is measured.

`plan_subsets`: all coalitions of the participants (S ⊆ I_t). `plan_prefixes`: the prefixes of M random
permutations that lie within I_t (Algorithm 1), and what FedSV's own Monte Carlo estimate needs. Equal prefixes are
one cell. For the truth, everyone counts as a participant of every round.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedworth.arrays import Memberships, Permutations
from fedworth.errors import UsageError
from fedworth.utility.coalitions import default_permutations, distinct, draw_permutations, prefixes, subsets


@dataclass(frozen=True)
class Plan:
    """Each round's coalitions to measure (the empty one is known), and the permutations they serve."""

    cells: tuple[Memberships, ...]
    permutations: Permutations | None = None
    round_permutations: tuple[Permutations, ...] | None = None
    is_truth: bool = False

    @property
    def n_evaluations(self) -> int:
        """How many utilities it takes: the budget of this plan."""
        return sum(int(coalitions.any(axis=1).sum()) for coalitions in self.cells)


def plan_subsets(participants: NDArray[np.bool_], *, with_truth: bool = False) -> Plan:
    """All coalitions of each round's participants; with the truth, of all clients that were ever heard."""
    n_clients = participants.shape[1]
    within = np.broadcast_to(participants.any(axis=0), participants.shape) if with_truth else participants
    cells = tuple(subsets(np.flatnonzero(row), n_clients) for row in within)
    return Plan(cells, is_truth=with_truth)


def plan_prefixes(
    participants: NDArray[np.bool_],
    *,
    n_permutations: int | None = None,
    with_fedsv: bool = True,
    with_truth: bool = False,
    rng: np.random.Generator,
) -> Plan:
    """The prefixes of `n_permutations` (default ⌈N ln N⌉) orders of all heard clients, as far as they lie within the
    participants; and for FedSV the prefixes of ⌈K ln K⌉ orders of each round's K participants."""
    n_clients = participants.shape[1]
    heard = np.flatnonzero(participants.any(axis=0))
    count = default_permutations(len(heard)) if n_permutations is None else n_permutations
    if count < 1:
        raise UsageError(f"plan: {count} permutations, expected 1 or more")
    permutations = draw_permutations(heard, count, rng=rng)
    columns, _ = distinct(prefixes(permutations, n_clients))
    members = [np.flatnonzero(row) for row in participants]
    orders = tuple(draw_permutations(m, default_permutations(len(m)), rng=rng) for m in members) if with_fedsv else None
    cells = []
    for round_index, row in enumerate(participants):
        wanted = columns if with_truth else columns[~(columns & ~row).any(axis=1)]
        if orders is not None:
            wanted = np.concatenate([wanted, prefixes(orders[round_index], n_clients), _all_but_one(row)])
        cells.append(distinct(wanted)[0])
    return Plan(tuple(cells), permutations, orders, with_truth)


def _all_but_one(row: NDArray[np.bool_]) -> Memberships:
    """The participants without each of them in turn, for leave-one-out."""
    coalitions = np.tile(row, (int(row.sum()), 1))
    coalitions[np.arange(len(coalitions)), np.flatnonzero(row)] = False
    return coalitions
