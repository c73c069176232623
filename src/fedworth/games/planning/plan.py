"""Plans: which cells to measure, before any is measured. `choose` says which plan is made for whom.

`plan_exact`: all coalitions of the participants (S ⊆ I_t). `plan_prefixes`: the prefixes of M random
permutations that lie within I_t (Algorithm 1), and what FedSV's own Monte Carlo estimate needs: prefixes of
permutations of I_t, or a stratified design. Equal prefixes are one cell. For the truth, everyone counts as a
participant of every round.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedworth.arrays import Memberships, Permutations
from fedworth.coalitions import coalitions_of, distinct, prefixes, prefixes_within
from fedworth.errors import UsageError
from fedworth.games.planning.design import default_budget, draw_design
from fedworth.games.squares import default_permutations, draw_permutations
from fedworth.names import Sampler, checked_name

DEFAULT_SAMPLER: Sampler = "stratified"

FEWEST = 2
"""Permutations below which no standard error can be given."""


@dataclass(frozen=True)
class Plan:
    """Each round's coalitions to measure (the empty one is known), and the permutations they serve."""

    cells: tuple[Memberships, ...]
    permutations: Permutations | None = None
    round_permutations: tuple[Permutations, ...] | None = None
    is_truth: bool = False
    round_designs: tuple[Memberships, ...] | None = None
    by_games: bool = False  # whether each round's values are estimated at once, beside these cells

    @property
    def n_evaluations(self) -> int:
        """How many utilities it takes: the budget of this plan."""
        return sum(int(np.count_nonzero(coalitions.any(axis=1))) for coalitions in self.cells)


def plan_exact(participants: NDArray[np.bool_], *, with_truth: bool = False) -> Plan:
    """All coalitions of each round's participants; with the truth, of all clients that were ever heard."""
    n_clients = participants.shape[1]
    within = np.broadcast_to(participants.any(axis=0), participants.shape) if with_truth else participants
    cells = tuple(coalitions_of(np.flatnonzero(row), n_clients) for row in within)
    return Plan(cells, is_truth=with_truth)


def plan_games(participants: NDArray[np.bool_], *, n_permutations: int, rng: np.random.Generator) -> Plan:
    """What many clients need beside an estimate of each round's game: lone participants, all, all but one, and the
    prefixes of permutations for the paper's completion, where there are any."""
    n_clients, heard = participants.shape[1], np.flatnonzero(participants.any(axis=0))
    permutations = draw_permutations(heard, n_permutations, rng=rng) if n_permutations else None
    cells, singles = [], np.eye(n_clients, dtype=bool)
    for row in participants:
        wanted = [np.zeros((1, n_clients), dtype=bool), singles[row], row[None], all_but_one(row)]
        wanted += [] if permutations is None else [prefixes_within(permutations, row)]
        cells.append(distinct(np.concatenate(wanted))[0])
    return Plan(tuple(cells), permutations, by_games=True)


def plan_prefixes(
    participants: NDArray[np.bool_],
    *,
    n_permutations: int | None = None,
    with_fedsv: bool = True,
    with_truth: bool = False,
    sampler: Sampler = DEFAULT_SAMPLER,
    most_of_a_round: int | None = None,
    rng: np.random.Generator,
) -> Plan:
    """The prefixes of `n_permutations` (default N⌈ln N⌉) permutations of all heard clients, as far as they lie within
    the participants. For FedSV a stratified design of each round's K participants, or (`sampler` permutations) the
    prefixes of K⌈ln K⌉ permutations of them, at most `most_of_a_round`."""
    checked_name("sampler", sampler)
    n_clients = participants.shape[1]
    heard = np.flatnonzero(participants.any(axis=0))
    count = default_permutations(len(heard)) if n_permutations is None else n_permutations
    if count < 1:
        raise UsageError(f"plan: {count} permutations, expected 1 or more")
    own_rng = rng.spawn(1)[0]  # so that a longer plan begins with the permutations of a shorter one
    by_permutations = with_fedsv and sampler == "permutations"
    n_drawn = max(count, _count_of_round(len(heard), most_of_a_round) if by_permutations else 0)
    drawn = draw_permutations(heard, n_drawn, rng=rng)
    of_rounds = _round_permutations(participants, drawn, most_of_a_round, own_rng) if by_permutations else None
    designs = _round_designs(participants, own_rng) if with_fedsv and not by_permutations else None
    permutations = drawn[:count]
    everywhere = distinct(prefixes(permutations, n_clients))[0] if with_truth else None
    cells = []
    for round_index, row in enumerate(participants):
        wanted = [np.zeros((1, n_clients), dtype=bool), prefixes_within(permutations, row)]
        wanted = wanted if everywhere is None else [everywhere]
        if of_rounds is not None:
            wanted += [prefixes_within(of_rounds[round_index], row), all_but_one(row)]
        if designs is not None:
            wanted += [designs[round_index], all_but_one(row)]
        cells.append(distinct(np.concatenate(wanted))[0])
    return Plan(tuple(cells), permutations, of_rounds, with_truth, designs)


def _count_of_round(n_participants: int, most: int | None) -> int:
    """K⌈ln K⌉ permutations of K participants, or the most that was asked for."""
    usual = default_permutations(n_participants)
    return usual if most is None else min(usual, most)


def _round_permutations(
    participants: NDArray[np.bool_], everyones: Permutations, most: int | None, rng: np.random.Generator
) -> tuple[Permutations, ...]:
    """Permutations of each round's participants; a round that hears everyone takes its own from everyone's, whose
    prefixes are measured there anyway."""
    members = [np.flatnonzero(row) for row in participants]
    counts = [_count_of_round(len(m), most) for m in members]
    drawn = [draw_permutations(m, n, rng=rng) for m, n in zip(members, counts, strict=True)]
    hears_all = [len(m) == everyones.shape[1] for m in members]
    return tuple(everyones[:n] if h else own for h, n, own in zip(hears_all, counts, drawn, strict=True))


def _round_designs(participants: NDArray[np.bool_], rng: np.random.Generator) -> tuple[Memberships, ...]:
    """A stratified design of each round's participants, which costs as much as K⌈ln K⌉ of their permutations."""
    members = [np.flatnonzero(row) for row in participants]
    return tuple(draw_design(m, participants.shape[1], default_budget(len(m)), rng=rng) for m in members)


def all_but_one(row: NDArray[np.bool_]) -> Memberships:
    """The participants without each of them in turn, for leave-one-out."""
    coalitions = np.tile(row, (int(row.sum()), 1))
    coalitions[np.arange(len(coalitions)), np.flatnonzero(row)] = False
    return coalitions
