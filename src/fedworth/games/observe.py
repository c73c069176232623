"""Measure the seen part of the paper's utility matrix.

    exactly                 all coalitions of each round's participants, where at most 12 clients were heard
    by permutations         the prefixes of M permutations of all heard clients, as far as they lie within a round's
                            participants (Algorithm 1); N⌈ln N⌉ permutations unless asked otherwise

A budget stops the measuring. With permutations the answer is then a matrix of fewer permutations; an exact matrix has
no smaller version, so a budget that is too small for it is refused.
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from fedworth.arrays import Memberships, Permutations, stream
from fedworth.coalitions import coalitions_of, distinct, prefixes_within
from fedworth.errors import TooManyError, UsageError
from fedworth.games.federation import RecordedFederation
from fedworth.games.matrix import UtilityMatrix, matrix_from_rounds
from fedworth.games.permutations import default_permutations, draw_permutations
from fedworth.games.shapley import MOST_ENUMERATED
from fedworth.notices import caution
from fedworth.storage import Progress, silent

FEWEST_PERMUTATIONS, MOST_PERMUTATIONS = 2, 10_000_000
MOST_BYTES = 1 << 28
"""What the prefixes of all permutations may take where nobody asked for a number of them."""

BATCH_SECONDS = 10.0
FIRST_BATCH = 16
"""Coalitions in the first batch under a time limit; later batches take about `BATCH_SECONDS` by the speed so far."""


@dataclass(frozen=True)
class Budget:
    """The most utilities to measure, and the most seconds to spend; what is known already costs nothing.

    Args:
        evaluations: The most utilities to measure; no limit if not given.
        seconds: The most seconds to spend.
        clock: Returns the time in seconds.

    Example:
        utilities = federation.observe(fedworth.Budget(seconds=60))
    """

    evaluations: int | None = None
    seconds: float | None = None
    clock: Callable[[], float] = field(default=time.monotonic, compare=False)

    def __post_init__(self) -> None:
        if self.evaluations is not None and self.evaluations < 1:
            raise UsageError(f"a budget of {self.evaluations} evaluations: expected 1 or more")
        if self.seconds is not None and not 0 < self.seconds < math.inf:
            raise UsageError(f"a budget of {self.seconds} seconds: expected more than 0")


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
        work.measure([_all_coalitions(federation, t) for t in range(federation.n_rounds)])
        return work.matrix(None)
    square = max(1, permutations.shape[1])  # permutations are balanced in groups of this size
    has_limit = (work.budget.evaluations, work.budget.seconds) != (None, None)
    ends = [*range(square, len(permutations), square), len(permutations)] if has_limit else [len(permutations)]
    n_done = 0
    for end in ends:
        wanted = [prefixes_within(permutations[:end], row) for row in federation.participants]
        if not work.affords(wanted) or not work.measure(wanted, may_stop=True):
            break
        n_done = end
    if n_done < min(FEWEST_PERMUTATIONS, len(permutations)):
        raise UsageError(f"the budget ran out before {ends[0]} permutations were measured; raise it")
    if n_done < len(permutations):
        caution(f"{n_done:,} of {len(permutations):,} planned permutations were measured: the budget ran out")
    return work.matrix(permutations[:n_done])


class _Measuring:
    """Measures coalitions of all rounds within a budget."""

    def __init__(self, federation: RecordedFederation, budget: Budget, progress: Progress) -> None:
        self.federation, self.budget, self.progress = federation, budget, progress
        self._wanted: list[Memberships] = []
        self._start, self._n_measured = budget.clock(), 0

    def affords(self, wanted: list[Memberships]) -> bool:
        """Whether the budget of evaluations allows these coalitions."""
        most = self.budget.evaluations
        return most is None or self._n_measured + sum(map(len, self._missing(wanted))) <= most

    def measure(self, wanted: list[Memberships], *, may_stop: bool = False) -> bool:
        """Measure these coalitions of each round; whether all were measured in time."""
        missing = self._missing(wanted)
        if not may_stop and not self.affords(wanted):
            needed = sum(map(len, missing))
            raise UsageError(
                f"measuring all coalitions takes {needed:,} evaluations, the budget is {self.budget.evaluations:,}; "
                "raise it, or sample coalitions with --permutations M"
            )
        for t, rows in enumerate(missing):
            game = self.federation.game(t)
            while len(rows):
                n = self._batch_size(len(rows))
                game.utilities(rows[:n][:, game.clients])
                self.federation.keep(t)
                self._n_measured += n
                rows = rows[n:]
                if self._is_late() and (len(rows) or any(map(len, missing[t + 1 :]))):
                    if may_stop:
                        return False
                    raise UsageError(
                        "time ran out before all coalitions were measured; what was measured is kept, so run again to "
                        "go on, or sample coalitions with --permutations M"
                    )
            self.progress("measuring rounds", t + 1, len(missing))
        self._wanted = wanted
        return True

    def matrix(self, permutations: Permutations | None) -> UtilityMatrix:
        """The utility matrix of what was measured last."""
        federation, rounds = self.federation, []
        for t, coalitions in enumerate(self._wanted):
            game = federation.game(t)
            listed = distinct(coalitions)[0]
            rounds.append((listed, game.utilities(listed[:, game.clients])))
        return matrix_from_rounds(federation.clients, federation.participants, rounds, permutations)

    def _missing(self, wanted: list[Memberships]) -> list[Memberships]:
        """The coalitions of each round that are not known yet, each once."""
        missing = []
        for t, coalitions in enumerate(wanted):
            listed = distinct(coalitions[coalitions.any(axis=1)])[0]
            game = self.federation.game(t)
            missing.append(listed[~game.is_known(listed[:, game.clients])])
        return missing

    def _batch_size(self, n_left: int) -> int:
        if self.budget.seconds is None:
            return n_left
        spent = self.budget.clock() - self._start
        speed = self._n_measured / spent if self._n_measured and spent > 0 else 0.0
        return min(n_left, max(FIRST_BATCH, int(speed * BATCH_SECONDS)) if speed else FIRST_BATCH)

    def _is_late(self) -> bool:
        return self.budget.seconds is not None and self.budget.clock() - self._start >= self.budget.seconds


def _all_coalitions(federation: RecordedFederation, round_index: int) -> Memberships:
    members = np.flatnonzero(federation.participants[round_index])
    if len(members) > MOST_ENUMERATED:
        raise TooManyError(
            f"round {round_index}: {len(members)} participants have {2 ** len(members):,} coalitions, expected at most "
            f"{MOST_ENUMERATED} participants; sample coalitions with --permutations M"
        )
    return coalitions_of(members, len(federation.clients))
