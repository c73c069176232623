"""Measure the seen part of the paper's utility matrix.

    exactly                 all coalitions of each round's participants, if at most 12 clients took part
    by permutations         the prefixes of M permutations of all clients that took part, as far as they lie within a
                            round's participants (Algorithm 1); N⌈ln N⌉ permutations unless asked otherwise

A budget stops the measuring. With permutations the answer is then a matrix of fewer permutations; an exact matrix has
no smaller version, so a budget that is too small for it is refused.
"""

import time

import numpy as np
from numpy.typing import NDArray

from fedworth.arrays import Memberships, Permutations, stream
from fedworth.coalitions import coalitions_of, distinct, prefixes_within
from fedworth.errors import TooManyError, UsageError
from fedworth.games.budget import Budget
from fedworth.games.federation import RecordedFederation
from fedworth.games.matrix import UtilityMatrix, matrix_from_rounds
from fedworth.games.permutations import default_permutations, draw_permutations
from fedworth.games.shapley import MOST_ENUMERATED
from fedworth.storage import Progress, silent

FEWEST_PERMUTATIONS, MOST_PERMUTATIONS = 2, 10_000_000
MOST_BYTES = 1 << 28
"""Most memory for the prefixes of the default number of permutations."""

FIRST_BATCH, BATCH_SECONDS = 16, 1.0
"""Coalitions are measured for about this long between two checks of the time, and two reports of progress."""


def planned_permutations(
    participants: NDArray[np.bool_], n_permutations: int | None, *, seed: int = 0
) -> Permutations | None:
    """The permutations of Algorithm 1, or None where all coalitions are measured."""
    heard = np.flatnonzero(participants.any(axis=0))
    if n_permutations is None:
        if len(heard) <= MOST_ENUMERATED:
            return None
        n_permutations = default_permutations(len(heard))
        if n_permutations * len(heard) ** 2 > MOST_BYTES:
            raise TooManyError(
                f"{len(heard)} clients: the utility matrix of {n_permutations:,} permutations takes too much memory; "
                "ask for fewer with --permutations, or use a method that needs no utility matrix (comfedsv-models)"
            )
    elif not FEWEST_PERMUTATIONS <= n_permutations <= MOST_PERMUTATIONS:
        expected = f"a whole number from {FEWEST_PERMUTATIONS} to {MOST_PERMUTATIONS:,}"
        raise UsageError(f"{n_permutations} permutations: expected {expected}")
    return draw_permutations(heard, n_permutations, rng=stream(seed, "permutations"))


def utility_matrix(
    federation: RecordedFederation,
    permutations: Permutations | None,
    *,
    budget: Budget | None = None,
    progress: Progress = silent,
) -> UtilityMatrix:
    """The utilities of all coalitions of each round's participants, or of the permutations' prefixes among them."""
    work = _Measuring(federation, budget or Budget(), progress)
    if permutations is None:
        wanted = [_all_coalitions(federation, t) for t in range(federation.n_rounds)]
        if not work.affords(wanted):
            raise UsageError(
                f"measuring all coalitions takes {work.n_missing(wanted):,} evaluations, the budget is "
                f"{work.budget.evaluations:,}; raise it, or sample coalitions with --permutations M"
            )
        if not work.measure(wanted):
            remedy = "what was measured is kept, so run again to continue"
            if federation.store is None:
                remedy = "allow more seconds, or leave out --no-cache and run again to continue"
            raise UsageError(
                f"time ran out before all coalitions were measured; {remedy}, or sample coalitions with "
                "--permutations M"
            )
        return _matrix(federation, wanted, None)
    square = max(1, permutations.shape[1])  # permutations are balanced in groups of this size
    has_limit = (work.budget.evaluations, work.budget.seconds) != (None, None)
    ends = [*range(square, len(permutations), square), len(permutations)] if has_limit else [len(permutations)]
    n_done, measured = 0, []
    for end in ends:
        wanted = [prefixes_within(permutations[:end], row) for row in federation.participants]
        if not work.affords(wanted) or not work.measure(wanted):
            break
        n_done, measured = end, wanted
    if n_done < min(FEWEST_PERMUTATIONS, len(permutations)):
        raise UsageError(f"the budget ran out before {ends[0]} permutations were measured; raise it")
    if n_done < len(permutations):
        done = f"{n_done:,} of {len(permutations):,} planned permutations were measured"
        federation.notes += (f"{done}: the budget ran out",)
    return _matrix(federation, measured, permutations[:n_done])


def n_planned(participants: NDArray[np.bool_], permutations: Permutations | None) -> int:
    """How many utilities the matrix of these permutations has, or that of all coalitions."""
    if permutations is None:
        return int((2.0 ** participants.sum(axis=1) - 1).sum())
    return sum(len(distinct(prefixes_within(permutations, row))[0]) for row in participants)


class _Measuring:
    """Measures coalitions of all rounds within a budget."""

    def __init__(self, federation: RecordedFederation, budget: Budget, progress: Progress) -> None:
        self.federation, self.budget, self.progress = federation, budget, progress
        self._start, self._n_measured = time.monotonic(), 0
        self._n_batch = FIRST_BATCH  # grows and shrinks with the time that coalitions take

    def affords(self, wanted: list[Memberships]) -> bool:
        """Whether the budget of evaluations allows these coalitions."""
        most = self.budget.evaluations
        return most is None or self._n_measured + self.n_missing(wanted) <= most

    def n_missing(self, wanted: list[Memberships]) -> int:
        """How many of these coalitions are not known yet."""
        return sum(len(self._missing(t, coalitions)) for t, coalitions in enumerate(wanted))

    def measure(self, wanted: list[Memberships]) -> bool:
        """Measure these coalitions of each round; whether all were measured in time."""
        limit, n_all, n_done = self.budget.seconds, self.n_missing(wanted), 0
        for t, coalitions in enumerate(wanted):
            game, rows, start = self.federation.game(t), self._missing(t, coalitions), 0
            try:
                while start < len(rows):
                    now = time.monotonic()
                    if limit is not None and self._n_measured and now - self._start >= limit:
                        return False
                    game.utilities(rows[start : start + self._n_batch])
                    n, took = len(rows[start : start + self._n_batch]), time.monotonic() - now
                    start, n_done, self._n_measured = start + n, n_done + n, self._n_measured + n
                    self._n_batch = max(1, min(4 * self._n_batch, int(n * BATCH_SECONDS / max(took, 1e-9))))
                    self.progress("measuring coalitions", n_done, n_all)
            finally:
                self.federation.keep(t)
        return True

    def _missing(self, round_index: int, coalitions: Memberships) -> Memberships:
        """(n, n_participants): the coalitions of a round that are not known yet, each once."""
        game = self.federation.game(round_index)
        listed = distinct(coalitions)[0][:, game.clients]
        return listed[~game.memory.knows(listed)]


def _matrix(
    federation: RecordedFederation, wanted: list[Memberships], permutations: Permutations | None
) -> UtilityMatrix:
    """The utility matrix of measured coalitions, summed over groups of test samples: it would be large otherwise."""
    rounds, cells = [], federation.cells
    for t, coalitions in enumerate(wanted):
        game, listed = federation.game(t), distinct(coalitions)[0]
        found = game.utilities(listed[:, game.clients])  # (n_listed, n_cells)
        rounds.append((listed, found if cells is None else cells.by_block(found)))
    return matrix_from_rounds(federation.clients, federation.participants, rounds, permutations)


def _all_coalitions(federation: RecordedFederation, round_index: int) -> Memberships:
    members = np.flatnonzero(federation.participants[round_index])
    if len(members) > MOST_ENUMERATED:
        raise TooManyError(
            f"round {round_index}: {len(members)} participants have {2 ** len(members):,} coalitions, expected at most "
            f"{MOST_ENUMERATED} participants; sample coalitions with --permutations M"
        )
    return coalitions_of(members, len(federation.clients))
