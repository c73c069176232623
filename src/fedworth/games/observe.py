"""Observe. In: a ledger and a task. Out: the seen part of the utility matrix.

Rounds are opened one at a time, and only if some of their cells are not known yet. Every planned cell is measured
or the whole fails: a failed evaluation has no default. When a budget runs out, the answer is that of a smaller plan,
and the matrix says so.
"""

from dataclasses import dataclass, replace
from typing import TypedDict, Unpack

import numpy as np

from fedworth.arrays import Indices
from fedworth.errors import LedgerError, UsageError, UtilityError
from fedworth.games import recorded_values
from fedworth.games.cells import Pace, RoundCells, batches, planned_cells
from fedworth.games.matrix import UtilityMatrix, matrix_from_cells
from fedworth.games.planning.budget import (
    Budget,
    BudgetStatus,
    Costs,
    arrivals,
    costs,
    cut_note,
    n_portions,
    shortened,
)
from fedworth.games.planning.choose import choose_plan
from fedworth.games.planning.plan import FEWEST, Plan
from fedworth.games.round_values import RoundValues
from fedworth.ledger.ledger import Ledger, Round
from fedworth.names import Weighting
from fedworth.oracle.batches import Batch, Measured
from fedworth.oracle.cache import UtilityCache
from fedworth.oracle.engines import Engine, LocalEngine
from fedworth.oracle.oracle import Oracle
from fedworth.oracle.server import Server, server_of
from fedworth.oracle.weighting import participation, round_weights
from fedworth.storage import Progress, silent
from fedworth.task.task import Task
from fedworth.trail import Trail

__all__ = ["Observed", "observe", "observe_and_count", "participation", "round_weights"]


@dataclass(frozen=True)
class Observed:
    """What was seen, how many utilities were measured for it, and why measuring stopped."""

    matrix: UtilityMatrix
    n_evaluations: int
    status: BudgetStatus


class Observing(TypedDict, total=False):
    """How to observe: the options of `observe_and_count`."""

    weighting: Weighting | None
    engine: Engine | None
    cache: UtilityCache | None
    budget: Budget | None
    n_checked: int
    as_average: bool
    earlier: RoundValues | None
    progress: Progress


def observe(ledger: Ledger, oracle: Oracle, plan: Plan | None = None, **how: Unpack[Observing]) -> UtilityMatrix:
    """Measure utilities of `ledger` by `oracle`: the cells of `plan`, or all coalitions of each round's participants.

    `how` are the options of `observe_and_count`. Cells in a cache are not measured again; if a budget runs out,
    they are those of a smaller plan. Without a weighting, coalitions are averaged as fits: `ledger.default_weighting`.

    Example:
        utilities = fedworth.observe(ledger, fedworth.FastOracle(task))
    """
    return observe_and_count(ledger, oracle, plan, **how).matrix


def observe_and_count(
    ledger: Ledger,
    oracle: Oracle,
    plan: Plan | None = None,
    *,
    weighting: Weighting | None = None,
    engine: Engine | None = None,
    cache: UtilityCache | None = None,
    budget: Budget | None = None,
    n_checked: int = 0,
    as_average: bool = False,
    earlier: RoundValues | None = None,
    progress: Progress = silent,
) -> Observed:
    """As `observe` of `ledger`, `oracle` and `plan`; says how many utilities had to be measured, and why it stopped.

    `weighting` says how a coalition's models are averaged, `engine` where it is measured, `cache` what is known, and
    `budget` when to stop. The first `n_checked` rounds were checked for damage before; all others are, even if their
    cells are known. A ledger whose server did not follow its rule is refused, unless `as_average`. Values of rounds in
    `earlier` are known. `progress` is called with what is done.

    Example:
        print(fedworth.observe_and_count(ledger, oracle).n_evaluations)
    """
    _refuse_no_rounds(ledger)
    plan, weighting = plan or choose_plan(participation(ledger)), weighting or ledger.default_weighting
    _refuse_other_federation(ledger, plan)
    if plan.by_games and budget is not None and (budget.evaluations, budget.seconds) != (None, None):
        raise UsageError("so many clients' games are estimated as a whole; for a budget, ask for --permutations M too")
    server = server_of(ledger, oracle, weighting, as_average=as_average)
    names = [server.identity(ledger, t) for t in range(ledger.n_rounds)]
    cache = None if cache is None else cache.under(names, server.oracle)
    rounds = planned_cells(ledger, plan, weighting)
    run = _Run(ledger, server, plan, rounds, engine or LocalEngine(), cache, progress)
    run.recall(n_checked)
    n_missing = run.n_missing
    n_done, status = run.within(budget or Budget())
    matrix, n_evaluations = run.matrix(n_done, status), n_missing - run.n_missing
    if plan.by_games:
        everyone = plan.is_truth
        games = recorded_values(
            ledger, server.oracle, weighting, of_everyone=everyone, earlier=earlier, progress=progress
        )
        n_evaluations += games.n_evaluations - (0 if earlier is None else earlier.n_evaluations)
        matrix = replace(matrix, round_values=games)
    return Observed(matrix, n_evaluations, status)


@dataclass(frozen=True)
class _Run:
    """One observation under way; the utilities in `rounds` are filled in as they are measured."""

    ledger: Ledger
    server: Server
    plan: Plan
    rounds: list[RoundCells]
    engine: Engine
    cache: UtilityCache | None
    progress: Progress

    @property
    def n_missing(self) -> int:
        return sum(len(cells.missing) for cells in self.rounds)

    def recall(self, n_checked: int) -> None:
        """Fill in what the cache knows. Every round but the first `n_checked` is checked for damage on the way."""
        for cells in self.rounds:
            t, is_checked = cells.round_index, cells.round_index < n_checked
            entry, cache = self.ledger.entries[t], self.cache
            is_open = cache is not None and cache.fill(entry, cells, self._open, is_checked=is_checked)
            if len(cells.missing) == 0 and not (is_checked or is_open):
                self.ledger.check_round(t)

    def within(self, budget: Budget) -> tuple[int | None, BudgetStatus]:
        """Measure what the budget allows: the number of portions that are complete, and why it stopped."""
        missing = [cells.missing for cells in self.rounds]
        if budget.evaluations is None and budget.seconds is None:
            self._measure(missing, None, budget)
            return None, BudgetStatus.COMPLETE
        if self.plan.permutations is None:
            return None, self._exactly(missing, budget)
        arrived = [arrivals(self.plan, t) for t in range(len(self.rounds))]
        price = costs(n_portions(self.plan), [a[m] for a, m in zip(arrived, missing, strict=True)])
        limit = price.n_portions if budget.evaluations is None else price.affordable(budget.evaluations)
        fewest = min(FEWEST, len(self.plan.permutations))
        if limit < fewest:
            raise UsageError(
                f"a budget of {budget.evaluations:,} evaluations: {fewest} permutations, the fewest that make sense, "
                f"need {price.evaluations[fewest]:,}"
            )
        reached = self._step_by_step(arrived, price, limit, budget)
        if reached < limit:
            return reached, BudgetStatus.SECONDS
        return reached, BudgetStatus.COMPLETE if reached == price.n_portions else BudgetStatus.EVALUATIONS

    def _exactly(self, missing: list[Indices], budget: Budget) -> BudgetStatus:
        """All coalitions, or a refusal that says what it takes."""
        needed = sum(len(cells) for cells in missing)
        instead = "use Monte Carlo: --permutations auto"
        if budget.evaluations is not None and budget.evaluations < needed:
            raise UsageError(
                f"an exact observation needs {needed:,} evaluations, the budget is {budget.evaluations:,}; raise it, "
                f"or {instead}"
            )
        deadline = None if budget.seconds is None else budget.clock() + budget.seconds
        if not self._measure(missing, deadline, budget):
            kept = "what was measured is kept, so run again to go on" if self.cache else "use a cache to go on later"
            raise UsageError(
                f"time ran out with {self.n_missing:,} of {needed:,} evaluations of an exact observation still to do; "
                f"{kept}, or {instead}"
            )
        return BudgetStatus.COMPLETE

    def _step_by_step(self, arrived: list[Indices], price: Costs, limit: int, budget: Budget) -> int:
        """More and more portions, as far as `limit` and the time allow; how many are complete."""
        if budget.seconds is None:
            self._measure(self._up_to(arrived, limit), None, budget)
            return limit
        start, done, goal = budget.clock(), 0, min(FEWEST, limit)
        while goal > done:
            if not self._measure(self._up_to(arrived, goal), start + budget.seconds, budget):
                break
            now = budget.clock()
            done, goal = goal, min(limit, price.next_goal(goal, now - start, start + budget.seconds - now))
        if done == 0:
            fewest = min(FEWEST, limit)
            raise UsageError(
                f"time ran out before {fewest} permutations were measured ({price.evaluations[fewest]:,} evaluations); "
                "allow more seconds"
            )
        return done

    def _up_to(self, arrived: list[Indices], n: int) -> list[Indices]:
        """The cells of the first n portions that are still missing."""
        left = [cells.missing for cells in self.rounds]
        return [cells[portions[cells] <= n] for cells, portions in zip(left, arrived, strict=True)]

    def _measure(self, wanted: list[Indices], deadline: float | None, budget: Budget) -> bool:
        """Measure these cells; whether all of them were, before the deadline."""
        left = [len(cells) for cells in wanted]
        self._tell(left)
        pace = Pace()
        work = self.engine.measure(self.server.oracle, self._open, batches(self.plan, self.rounds, wanted, pace))
        for batch, measured in work:
            self._keep(batch, measured)
            pace.n_measured += len(batch.cells)
            left[batch.round_index] -= len(batch.cells)
            self._tell(left)
            if deadline is not None and budget.clock() >= deadline and any(left):
                return False
        return True

    def _open(self, round_index: int) -> Round:
        return self.ledger.open_round(round_index, with_apart=self.plan.is_truth)

    def _keep(self, batch: Batch, measured: Measured) -> None:
        """On disk too: what is counted as measured survives a kill."""
        self.rounds[batch.round_index].fill(batch, measured.utilities)
        if self.cache is not None:
            self.cache.write(self.ledger.entries[batch.round_index], batch, measured)

    def _tell(self, left: list[int]) -> None:
        self.progress("observing rounds", sum(n == 0 for n in left), len(left))

    def matrix(self, n_done: int | None, status: BudgetStatus) -> UtilityMatrix:
        """The utility matrix of what was measured, and a note if it is less than was planned."""
        plan, kept = self.plan, [np.ones(len(cells.utilities), dtype=bool) for cells in self.rounds]
        notes = self.ledger.warnings() + self.server.notes
        if status is not BudgetStatus.COMPLETE and n_done is not None:
            arrived = [arrivals(plan, t) for t in range(len(self.rounds))]
            kept = [portions <= n_done for portions in arrived]
            notes += (cut_note(plan, n_done, status),)
            plan = shortened(plan, arrived, n_done)
        return matrix_from_cells(
            self.ledger.clients,
            participation(self.ledger),
            [(c, cells.utilities[k]) for c, cells, k in zip(plan.cells, self.rounds, kept, strict=True)],
            permutations=plan.permutations,
            round_permutations=plan.round_permutations,
            round_designs=plan.round_designs,
            is_truth=plan.is_truth,
            notes=notes,
            trail=_trail(self.ledger, self.server.oracle),
            left_out=self.ledger.left_out,
        )


def _trail(ledger: Ledger, oracle: Oracle) -> Trail:
    """Which rounds were measured, and on what; an oracle of one's own need not know its task."""
    task: Task | None = getattr(oracle, "task", None)
    return Trail(ledger.chain, ledger.n_rounds, None if task is None else task.fingerprint)


def _refuse_no_rounds(ledger: Ledger) -> None:
    if ledger.n_rounds == 0:
        missing = f" ({len(ledger.missing)} are missing: fedworth verify says why)" if ledger.missing else ""
        raise LedgerError(f"{ledger.folder}: no recorded rounds in it{missing}, so there is nothing to value")
    if ledger.left_out and not any(ledger.participants(t) for t in range(ledger.n_rounds)):
        raise UsageError("every client that took part in a round is left out, so nobody is left to be valued")


def _refuse_other_federation(ledger: Ledger, plan: Plan) -> None:
    if len(plan.cells) != ledger.n_rounds:
        raise UtilityError(f"plan for {len(plan.cells)} rounds, but {ledger.folder} has {ledger.n_rounds}")
    if any(cells.shape[1:] != (len(ledger.clients),) for cells in plan.cells):
        raise UtilityError(f"plan for other clients than the {len(ledger.clients)} of {ledger.folder}")
    if plan.is_truth:
        _refuse_without_absent(ledger)


def _refuse_without_absent(ledger: Ledger) -> None:
    heard = set(np.flatnonzero(participation(ledger).any(axis=0)).tolist())
    for entry in ledger.entries:
        missing = heard - set(entry.answered) - set(entry.apart)
        if missing:
            raise LedgerError(
                f"{ledger.folder}, round {entry.round_index}: no model of clients {sorted(missing)}, so the "
                "truth cannot be measured; only a federation simulated with the truth has them"
            )
