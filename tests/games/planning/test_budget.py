"""A budget is kept, and what it leaves is a valid smaller plan that says so."""

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedworth.completion.factors import complete
from fedworth.errors import UsageError, ValuationError
from fedworth.games import cells as measuring
from fedworth.games.matrix import UtilityMatrix
from fedworth.games.matrix_file import load_utilities, save_utilities
from fedworth.games.observe import observe_and_count
from fedworth.games.planning.budget import Budget, BudgetStatus, arrivals, costs, shortened
from fedworth.games.planning.plan import plan_exact, plan_prefixes
from fedworth.oracle.oracle import LoopOracle
from fedworth.oracle.weighting import participation
from fedworth.valuation.value import value
from tests.games.planning.test_plan import participation as drawn_participation
from tests.games.planning.test_plan import sets_of
from tests.games.test_observe import CountingOracle


@dataclass
class SteppingClock:
    """A second passes with every look at it."""

    now: float = 0.0

    def __call__(self) -> float:
        self.now += 1
        return self.now


def n_permutations(matrix: UtilityMatrix) -> int:
    assert matrix.permutations is not None
    return len(matrix.permutations)


def plan_of(ledger, sampler="permutations"):
    return plan_prefixes(participation(ledger), n_permutations=12, sampler=sampler, rng=np.random.default_rng(0))


@given(drawn_participation(), st.integers(1, 5), st.integers(1, 5), st.booleans())
def test_the_first_permutations_of_a_plan_are_the_plan_of_so_few(rows, n_kept, n_more, with_fedsv):
    """But for the rounds' own permutations, of which the same share is kept, and leave-one-out, which stays whole."""
    n_all = n_kept + n_more
    long = plan_prefixes(
        rows, n_permutations=n_all, with_fedsv=with_fedsv, sampler="permutations", rng=np.random.default_rng(1)
    )
    short = plan_prefixes(rows, n_permutations=n_kept, with_fedsv=False, rng=np.random.default_rng(1))
    arrived = [arrivals(long, t) for t in range(len(rows))]
    cut = shortened(long, arrived, n_kept)
    assert short.permutations is not None
    assert cut.permutations is not None
    assert np.array_equal(cut.permutations, short.permutations)
    for t, row in enumerate(rows):
        wanted = set(sets_of(short.cells[t]))
        if with_fedsv:
            assert cut.round_permutations is not None
            assert long.round_permutations is not None
            permutations, all_permutations = cut.round_permutations[t], long.round_permutations[t]
            assert len(permutations) == -(-n_kept * len(all_permutations) // n_all)
            members = frozenset(np.flatnonzero(row).tolist())
            wanted |= {frozenset(order[:j]) for order in permutations.tolist() for j in range(len(order) + 1)}
            wanted |= {members - {k} for k in members}
        assert set(sets_of(cut.cells[t])) - {frozenset()} == wanted - {frozenset()}


def test_a_plan_costs_what_its_cells_say(tiny_ledger):
    plan = plan_of(tiny_ledger)
    arrived = [arrivals(plan, t) for t in range(3)]
    price = costs(12, [a[c.any(axis=1)] for a, c in zip(arrived, plan.cells, strict=True)])
    for n in range(1, 13):
        assert price.evaluations[n] == shortened(plan, arrived, n).n_evaluations
        assert price.affordable(int(price.evaluations[n])) >= n
    assert price.affordable(int(price.evaluations[0]) - 1) == -1


@pytest.mark.parametrize("n_evaluations", [18, 20, 22, 1000])
def test_a_budget_of_evaluations_is_kept_and_used(tiny_ledger, tiny_task, n_evaluations):
    plan, oracle = plan_of(tiny_ledger), CountingOracle(LoopOracle(tiny_task))
    found = observe_and_count(tiny_ledger, oracle, plan, budget=Budget(n_evaluations))
    assert oracle.n_evaluations == found.n_evaluations <= n_evaluations
    arrived = [arrivals(plan, t) for t in range(3)]
    n_done = n_permutations(found.matrix)
    if found.status is BudgetStatus.COMPLETE:
        assert n_done == 12
    else:
        assert found.status is BudgetStatus.EVALUATIONS
        assert shortened(plan, arrived, n_done + 1).n_evaluations > n_evaluations


def test_values_from_a_cut_plan_come_with_a_warning_also_from_disk(tiny_ledger, tiny_task, tmp_path):
    cut = observe_and_count(tiny_ledger, LoopOracle(tiny_task), plan_of(tiny_ledger), budget=Budget(20)).matrix
    save_utilities(cut, tmp_path / "cut.npz")
    read = load_utilities(tmp_path / "cut.npz")
    assert read.notes == cut.notes
    expected = f"{n_permutations(cut)} of 12 planned permutations were measured: stopped at the budget"
    for method in ("comfedsv", "fedsv", "heard-round", "leave-one-out"):
        valuation = value(read, method, completion=complete(read) if method == "comfedsv" else None)
        assert any(warning.startswith(expected) for warning in valuation.warnings), method
        assert np.isfinite(valuation.values).all()


@pytest.mark.parametrize("n_missing", [1, 12])
def test_designs_come_last_and_a_budget_that_is_too_small_for_them_leaves_them_out(tiny_ledger, tiny_task, n_missing):
    plan, oracle = plan_of(tiny_ledger, "stratified"), CountingOracle(LoopOracle(tiny_task))
    budget = Budget(plan.n_evaluations - n_missing)
    found = observe_and_count(tiny_ledger, oracle, plan, budget=budget)
    assert oracle.n_evaluations == found.n_evaluations <= plan.n_evaluations - n_missing
    assert found.status is BudgetStatus.EVALUATIONS
    assert found.matrix.round_designs is None
    assert "but not what FedSV and leave-one-out need: stopped at the budget" in found.matrix.notes[-1]
    valuation = value(found.matrix, "comfedsv", completion=complete(found.matrix))
    assert np.isfinite(valuation.values).all()
    with pytest.raises(
        ValuationError, match="FedSV needs some of its own: observe without --no-fedsv, or with a larger"
    ):
        value(found.matrix, "fedsv")


def test_a_plan_with_designs_that_is_complete_keeps_them(tiny_ledger, tiny_task):
    plan = plan_of(tiny_ledger, "stratified")
    found = observe_and_count(tiny_ledger, LoopOracle(tiny_task), plan, budget=Budget(plan.n_evaluations, 10_000))
    assert found.status is BudgetStatus.COMPLETE
    assert np.isfinite(value(found.matrix, "fedsv").values).all()


def test_batches_are_small_where_measuring_is_slow_and_the_matrix_is_the_same(tiny_ledger, tiny_task, monkeypatch):
    plan = plan_of(tiny_ledger, "stratified")
    whole = observe_and_count(tiny_ledger, LoopOracle(tiny_task), plan).matrix
    monkeypatch.setattr(measuring, "FIRST_BATCH", 3)
    monkeypatch.setattr(measuring, "BATCH_SECONDS", 0.0)
    oracle = CountingOracle(LoopOracle(tiny_task))
    cut = observe_and_count(tiny_ledger, oracle, plan).matrix
    assert oracle.n_calls == sum(-(-(len(cells) - 1) // 3) for cells in plan.cells)
    assert cut.utilities.tobytes() == whole.utilities.tobytes()


def test_a_time_limit_is_looked_at_within_a_round(tiny_ledger, tiny_task, monkeypatch):
    monkeypatch.setattr(measuring, "FIRST_BATCH", 3)
    monkeypatch.setattr(measuring, "BATCH_SECONDS", 0.0)
    oracle, exact = CountingOracle(LoopOracle(tiny_task)), plan_exact(participation(tiny_ledger))
    with pytest.raises(UsageError, match="34 of 37 evaluations of an exact observation still to do"):
        observe_and_count(tiny_ledger, oracle, exact, budget=Budget(seconds=1, clock=SteppingClock()))
    assert oracle.n_calls == 1


def test_a_plan_that_is_complete_needs_no_note(tiny_ledger, tiny_task):
    found = observe_and_count(tiny_ledger, LoopOracle(tiny_task), plan_of(tiny_ledger), budget=Budget(10_000, 10_000))
    assert found.status is BudgetStatus.COMPLETE
    assert found.matrix.notes == ()


def test_too_few_evaluations_for_an_exact_plan_are_refused_with_the_number_and_monte_carlo(tiny_ledger, tiny_task):
    plan, oracle = plan_exact(participation(tiny_ledger)), CountingOracle(LoopOracle(tiny_task))
    with pytest.raises(UsageError, match=r"needs 37 evaluations, the budget is 36; raise it, or use Monte Carlo"):
        observe_and_count(tiny_ledger, oracle, plan, budget=Budget(36))
    assert oracle.n_calls == 0
    assert observe_and_count(tiny_ledger, oracle, plan, budget=Budget(37)).status is BudgetStatus.COMPLETE


def test_too_few_evaluations_for_two_permutations_are_refused_with_the_number(tiny_ledger, tiny_task):
    with pytest.raises(UsageError, match=r"2 permutations, the fewest that make sense, need \d+"):
        observe_and_count(tiny_ledger, LoopOracle(tiny_task), plan_of(tiny_ledger), budget=Budget(1))


@pytest.mark.parametrize("seconds", [4, 5, 6])
def test_a_time_limit_leaves_whole_permutations(tiny_ledger, tiny_task, seconds):
    plan = plan_of(tiny_ledger)
    budget = Budget(seconds=seconds, clock=SteppingClock())
    found = observe_and_count(tiny_ledger, LoopOracle(tiny_task), plan, budget=budget)
    n_done = n_permutations(found.matrix)
    assert 2 <= n_done < 12
    assert found.status is BudgetStatus.SECONDS
    assert found.matrix.notes
    whole = shortened(plan, [arrivals(plan, t) for t in range(3)], n_done)
    assert len(found.matrix.utilities) == whole.n_evaluations + 3
    assert complete(found.matrix).coalitions.shape[1] == 5


def test_time_that_is_not_enough_for_anything_is_an_error(tiny_ledger, tiny_task):
    budget = Budget(seconds=1, clock=SteppingClock())
    with pytest.raises(UsageError, match="time ran out before 2 permutations"):
        observe_and_count(tiny_ledger, LoopOracle(tiny_task), plan_of(tiny_ledger), budget=budget)
    exact = plan_exact(participation(tiny_ledger))
    with pytest.raises(UsageError, match=r"6 of 37 evaluations of an exact observation still to do.*Monte Carlo"):
        observe_and_count(tiny_ledger, LoopOracle(tiny_task), exact, budget=Budget(seconds=1, clock=SteppingClock()))


@pytest.mark.parametrize("given", [{"evaluations": 0}, {"seconds": 0.0}, {"seconds": float("nan")}])
def test_a_budget_of_nothing_is_refused(given):
    with pytest.raises(UsageError, match="a budget of"):
        Budget(**given)
