"""Plans: the cells are those asked for, each once, and their number is the budget."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedworth.errors import TooManyError, UsageError
from fedworth.games.planning.plan import plan_exact, plan_prefixes
from fedworth.games.squares import default_permutations


@st.composite
def participation(draw):
    n_clients, n_rounds = draw(st.integers(1, 6)), draw(st.integers(1, 4))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    rows = rng.random((n_rounds, n_clients)) < 0.6
    rows[:, 0] |= ~rows.any(axis=1)
    return rows


def uniform_participation(n_rounds, n_clients, n_participants, rng):
    """K of N in each round; everyone in the first."""
    rows = np.zeros((n_rounds, n_clients), dtype=bool)
    rows[0] = True
    for row in rows[1:]:
        row[rng.choice(n_clients, n_participants, replace=False)] = True
    return rows


def sets_of(coalitions):
    return [frozenset(np.flatnonzero(row).tolist()) for row in coalitions]


def prefixes_of(permutations):
    return {frozenset(order[:j]) for order in permutations.tolist() for j in range(len(order) + 1)}


@given(participation())
def test_all_coalitions_of_the_participants_are_planned_each_once(rows):
    plan = plan_exact(rows)
    for row, cells in zip(rows, plan.cells, strict=True):
        members = set(np.flatnonzero(row).tolist())
        found = sets_of(cells)
        assert len(found) == len(set(found)) == 2 ** len(members)
        assert all(coalition <= members for coalition in found)
    assert plan.n_evaluations == sum(2 ** int(row.sum()) - 1 for row in rows)
    assert not plan.is_truth


@given(participation())
def test_for_the_truth_all_heard_clients_count_as_participants(rows):
    plan = plan_exact(rows, with_truth=True)
    n_heard = int(rows.any(axis=0).sum())
    assert plan.is_truth
    assert plan.n_evaluations == len(rows) * (2**n_heard - 1)
    unheard = ~rows.any(axis=0)
    assert not any(cells[:, unheard].any() for cells in plan.cells)


@given(participation(), st.integers(1, 6), st.booleans(), st.booleans(), st.integers(0, 99))
def test_the_prefixes_that_are_needed_are_planned_each_once(rows, n_permutations, with_fedsv, with_truth, seed):
    plan = plan_prefixes(
        rows,
        n_permutations=n_permutations,
        with_fedsv=with_fedsv,
        with_truth=with_truth,
        sampler="permutations",
        rng=np.random.default_rng(seed),
    )
    assert plan.permutations is not None
    assert plan.permutations.shape == (n_permutations, rows.any(axis=0).sum())
    n_cells = 0
    for round_index, row in enumerate(rows):
        members = frozenset(np.flatnonzero(row).tolist())
        wanted = {prefix for prefix in prefixes_of(plan.permutations) if with_truth or prefix <= members}
        if with_fedsv:
            assert plan.round_permutations is not None
            permutations = plan.round_permutations[round_index]
            assert permutations.shape == (default_permutations(len(members)), len(members))
            wanted |= prefixes_of(permutations) | {members - {k} for k in members}
        found = sets_of(plan.cells[round_index])
        assert len(found) == len(set(found))
        assert set(found) == wanted
        n_cells += len(wanted - {frozenset()})
    assert plan.n_evaluations == n_cells
    assert (plan.round_permutations is None) == (not with_fedsv)


def test_equal_prefixes_are_one_cell():
    everyone = np.ones((1, 3), dtype=bool)
    plan = plan_prefixes(everyone, n_permutations=200, with_fedsv=False, rng=np.random.default_rng(0))
    assert plan.n_evaluations == 2**3 - 1


def test_the_default_is_n_ln_n_permutations_in_whole_squares():
    plan = plan_prefixes(np.ones((1, 10), dtype=bool), with_fedsv=False, rng=np.random.default_rng(0))
    assert plan.permutations is not None
    assert len(plan.permutations) == 10 * math.ceil(math.log(10))


def test_the_same_generator_gives_the_same_plan():
    rows = np.ones((2, 6), dtype=bool)
    first, again = (plan_prefixes(rows, sampler="permutations", rng=np.random.default_rng(5)) for _ in range(2))
    assert all(np.array_equal(a, b) for a, b in zip(first.cells, again.cells, strict=True))


def test_algorithm_1_takes_as_many_evaluations_as_expected():
    """SPEC §6: M[N + (T−1)K/(N−K+1)] before equal prefixes are merged; with M = 1 there is nothing to merge.

    X, the longest prefix within I_t, has P(X ≥ j) = C(K,j)/C(N,j), so E X = K/(N−K+1) and
    Var X = Σ_j (2j−1) P(X ≥ j) − (E X)². The T−1 rounds of each of the n plans draw I_t anew, so the mean over plans is
    nearly normal with variance (T−1) Var X / n, and further than 5 of its standard deviations with chance 6e-7.
    """
    n_rounds, n_clients, n_participants, n_plans = 6, 12, 5, 400
    rng = np.random.default_rng(0)
    counts = [
        plan_prefixes(
            uniform_participation(n_rounds, n_clients, n_participants, rng), n_permutations=1, with_fedsv=False, rng=rng
        ).n_evaluations
        for _ in range(n_plans)
    ]
    reach = [math.comb(n_participants, j) / math.comb(n_clients, j) for j in range(1, n_participants + 1)]
    mean = n_participants / (n_clients - n_participants + 1)
    assert sum(reach) == pytest.approx(mean)
    variance = sum((2 * j - 1) * p for j, p in enumerate(reach, start=1)) - mean**2
    expected = n_clients + (n_rounds - 1) * mean
    assert abs(np.mean(counts) - expected) < 5 * math.sqrt((n_rounds - 1) * variance / n_plans)


def test_merging_only_saves_evaluations():
    """For many permutations the expectation above is a bound: 50,000 + 20,916 here."""
    rng = np.random.default_rng(1)
    rows = uniform_participation(100, 100, 30, rng)
    plan = plan_prefixes(rows, with_fedsv=False, rng=rng)
    n_permutations = default_permutations(100)
    assert n_permutations == 500
    assert plan.n_evaluations < n_permutations * (100 + 99 * 30 / 71)


@pytest.mark.parametrize("with_truth", [False, True])
def test_too_many_participants_are_refused_with_the_number_of_cells_and_a_way_out(with_truth):
    rows = np.ones((1, 21), dtype=bool)
    with pytest.raises(TooManyError, match=r"2,097,152 coalitions a round.*use Monte Carlo") as refusal:
        plan_exact(rows, with_truth=with_truth)
    assert refusal.value.exit_code == 10
    assert plan_prefixes(rows, sampler="permutations", rng=np.random.default_rng(0)).n_evaluations > 0


def test_twenty_participants_are_not_too_many():
    assert plan_exact(np.ones((1, 20), dtype=bool)).n_evaluations == 2**20 - 1


@pytest.mark.parametrize("n_permutations", [0, -1])
def test_no_permutations_are_no_plan(n_permutations):
    with pytest.raises(UsageError, match=f"{n_permutations} permutations, expected 1 or more"):
        plan_prefixes(
            np.ones((1, 3), dtype=bool),
            n_permutations=n_permutations,
            sampler="permutations",
            rng=np.random.default_rng(0),
        )
