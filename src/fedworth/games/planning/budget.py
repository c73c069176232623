"""Budgets: how much may be measured, and what the plan becomes when that is not enough for all of it.

Work comes in portions. Portion n is the n-th permutation, whole and in all rounds alike, with the same share of each
round's own permutations, so that what was measured is a valid smaller plan. FedSV's designs are whole or worthless:
they are a last portion of their own, after all permutations. A cell *arrives* with the first portion that needs it;
cells that no portion needs (of leave-one-out, beside permutations) arrive with none, and are always measured. An exact
plan has no smaller one: all its coalitions, or nothing.
"""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

import numpy as np

from fedworth.arrays import Indices, Memberships, Permutations
from fedworth.coalitions import locate, prefixes
from fedworth.errors import UsageError
from fedworth.games.planning.plan import Plan, all_but_one

GROWTH = 4
CAUTION = 0.8
AT_ONCE = 1 << 24


class BudgetStatus(StrEnum):
    """Why measuring stopped."""

    COMPLETE = "all planned cells are measured"
    EVALUATIONS = "stopped at the budget of evaluations; run again to go on, or raise it"
    SECONDS = "stopped at the time limit; run again to go on, or raise it"


@dataclass(frozen=True)
class Budget:
    """The most utilities to measure, and the most seconds to spend on it; what is known already costs nothing.

    Args:
        evaluations: The most utilities to measure; no limit if it is not given.
        seconds: The most seconds to spend.
        clock: Says what time it is.

    Example:
        utilities = fedworth.observe(ledger, oracle, budget=fedworth.Budget(seconds=60))
    """

    evaluations: int | None = None
    seconds: float | None = None
    clock: Callable[[], float] = field(default=time.monotonic, compare=False)

    def __post_init__(self) -> None:
        if self.evaluations is not None and self.evaluations < 1:
            raise UsageError(f"a budget of {self.evaluations} evaluations: expected 1 or more")
        if self.seconds is not None and not 0 < self.seconds < math.inf:
            raise UsageError(f"a budget of {self.seconds} seconds: expected more than 0")

    def after(self, evaluations: int, seconds: float) -> "Budget":
        """What is left of it after so much; at least one evaluation and a moment, since a budget of nothing is none."""
        left = None if self.evaluations is None else max(1, self.evaluations - evaluations)
        return replace(
            self, evaluations=left, seconds=None if self.seconds is None else max(1e-6, self.seconds - seconds)
        )


@dataclass(frozen=True)
class Costs:
    """What the first n portions of a plan cost: `evaluations[n]` for n = 0 … n_portions."""

    evaluations: Indices  # (n_portions + 1,)

    @property
    def n_portions(self) -> int:
        return len(self.evaluations) - 1

    def affordable(self, n_evaluations: float) -> int:
        """The most portions for so many evaluations, −1 if not even the cells that are always measured."""
        return int(np.searchsorted(self.evaluations, n_evaluations, side="right")) - 1

    def next_goal(self, n: int, seconds_spent: float, seconds_left: float) -> int:
        """How many portions to have measured next, n of them being done: at most GROWTH times as many, and no more than
        the time left is likely to allow at the speed so far."""
        spent = int(self.evaluations[n] - self.evaluations[0])
        speed = int(self.evaluations[n]) / seconds_spent if spent and seconds_spent > 0 else math.inf
        within_time = self.affordable(int(self.evaluations[n]) + CAUTION * seconds_left * speed)
        return min(GROWTH * max(n, 1), within_time, self.n_portions)


def n_portions(plan: Plan) -> int:
    """How many portions a plan has: its permutations, and the designs if there are any."""
    return (0 if plan.permutations is None else len(plan.permutations)) + (plan.round_designs is not None)


def costs(n_portions: int, arrived: Sequence[Indices]) -> Costs:
    """What each number of portions costs, given when each cell arrives that must be measured."""
    counts = [np.bincount(of_round, minlength=n_portions + 1) for of_round in arrived]
    return Costs(np.cumsum(np.sum(counts, axis=0)))


def arrivals(plan: Plan, round_index: int) -> Indices:
    """(n_cells,): how many portions a plan must have for this round to need each cell; 0 if it always does."""
    cells = plan.cells[round_index]
    arrived = np.full(len(cells), _never(plan))
    if plan.permutations is not None:
        _mark(arrived, cells, plan.permutations, np.arange(1, len(plan.permutations) + 1))
    if plan.permutations is not None and plan.round_permutations is not None:
        own = plan.round_permutations[round_index]
        shares = np.arange(len(own)) * len(plan.permutations) // max(len(own), 1) + 1
        _mark(arrived, cells, own, shares)
        row = np.isin(np.arange(cells.shape[1]), own[:1])
        found = locate(all_but_one(row), cells)
        arrived[found[found >= 0]] = 0
    if plan.round_designs is not None:
        return arrived  # what no permutation needs is of the designs, the portion after the last permutation
    return np.where(arrived == _never(plan), 0, arrived)


def shortened(plan: Plan, arrived: Sequence[Indices], n: int) -> Plan:
    """The plan of the first n portions, given when each cell of each round arrives."""
    if plan.permutations is None or n >= n_portions(plan):
        return plan
    kept = tuple(cells[portion <= n] for cells, portion in zip(plan.cells, arrived, strict=True))
    n_all = len(plan.permutations)
    of_rounds = plan.round_permutations and tuple(o[: -(-n * len(o) // n_all)] for o in plan.round_permutations)
    permutations = plan.permutations[:n]
    return replace(plan, cells=kept, permutations=permutations, round_permutations=of_rounds, round_designs=None)


def cut_note(plan: Plan, n: int, status: BudgetStatus) -> str:
    """What is there of a plan of which n portions were measured, and why no more."""
    assert plan.permutations is not None
    n_all = len(plan.permutations)
    done = f"{n:,} of {n_all:,} planned permutations were measured" if n < n_all else f"all {n_all:,} permutations were"
    without = "" if plan.round_designs is None else ", but not what FedSV and leave-one-out need"
    return f"{done}{without}: {status}"


def _never(plan: Plan) -> int:
    return 1 if plan.permutations is None else len(plan.permutations) + 1


def _mark(arrived: Indices, cells: Memberships, permutations: Permutations, portions: Indices) -> None:
    """Lower `arrived` to the portion of the first permutation with that cell as a prefix, a few at a time.

    Only as far as permutations stay among the cells' clients: small rounds have the first few clients of one at most.
    """
    present = np.asarray(cells.any(axis=0))  # (n_clients,)
    inside = np.logical_and.accumulate(present[permutations], axis=1)  # (n_permutations, n_joining)
    permutations = permutations[:, : int(inside.sum(axis=1).max(initial=0))]
    n_clients, length = cells.shape[1], permutations.shape[1] + 1
    step = max(1, AT_ONCE // max(length * n_clients, 1))
    for start in range(0, len(permutations), step):
        part = slice(start, start + step)
        found = locate(prefixes(permutations[part], n_clients), cells)
        portion = np.repeat(portions[part], length)
        np.minimum.at(arrived, found[found >= 0], portion[found >= 0])
