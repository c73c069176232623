"""Designs: as many coalitions as the budget allows, each once, uniform within its size, and growing without loss."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedworth.coalitions import distinct, locate, prefixes
from fedworth.errors import UsageError, UtilityError
from fedworth.games.matrix import matrix_from_cells
from fedworth.games.planning.budget import arrivals
from fedworth.games.planning.design import (
    LEAST,
    allocation,
    check_design,
    default_budget,
    draw_design,
    grow_design,
    least_budget,
)
from fedworth.games.planning.plan import plan_prefixes
from fedworth.games.squares import default_permutations


def sizes_of(design, n):
    return np.bincount(design.sum(axis=1), minlength=n + 1)


@given(st.integers(1, 12), st.integers(0, 5000))
def test_the_whole_budget_is_spent_and_no_more_than_there_is(n, more):
    budget = least_budget(n) + more
    counts = allocation(n, budget)
    assert counts.sum() == min(budget, 2**n - 1)
    assert all(min(LEAST, math.comb(n, s)) <= counts[s] <= math.comb(n, s) for s in range(1, n + 1))
    assert counts[0] == 0


@given(st.integers(1, 30), st.integers(0, 400))
def test_a_larger_budget_takes_no_coalition_away(n, more):
    budget = least_budget(n) + more
    assert (allocation(n, budget) <= allocation(n, budget + 7)).all()


def test_single_clients_and_all_but_one_are_whole_and_then_pairs():
    counts = allocation(10, 165)
    assert counts[[1, 2, 9, 10]].tolist() == [10, 45, 10, 1]
    assert (np.diff(counts[3:9]) < 0).all()


@pytest.mark.parametrize("n", [1, 2, 10, 100])
def test_too_small_a_budget_is_refused_with_the_least(n):
    assert allocation(n, least_budget(n)).sum() == least_budget(n)
    with pytest.raises(UsageError, match=f"expected at least {least_budget(n)}"):
        allocation(n, least_budget(n) - 1)


@given(st.integers(0, 9), st.integers(0, 300), st.integers(0, 99))
def test_a_design_has_each_coalition_once_and_only_of_its_members(n, more, seed):
    rng = np.random.default_rng(seed)
    members = np.sort(rng.permutation(n + 3)[:n])
    design = draw_design(members, n + 3, least_budget(n) + more, rng=rng)
    check_design(design, members, "here")
    assert np.array_equal(sizes_of(design, n), allocation(n, least_budget(n) + more))


def test_a_budget_for_all_draws_all():
    design = draw_design(np.arange(6), 6, 1000, rng=np.random.default_rng(0))
    assert len(distinct(design)[0]) == len(design) == 2**6 - 1


@pytest.mark.parametrize(("n", "budget"), [(100, 1000), (300, 2000)])
def test_hundreds_of_members_are_drawn_within_the_budget(n, budget):
    design = draw_design(np.arange(n), n, budget, rng=np.random.default_rng(0))
    check_design(design, np.arange(n), "here")
    assert len(design) == budget


def test_the_same_generator_gives_the_same_design():
    first, again = (draw_design(np.arange(12), 12, 300, rng=np.random.default_rng(5)) for _ in range(2))
    assert np.array_equal(first, again)


@given(st.integers(1, 10), st.integers(0, 80), st.integers(0, 200), st.integers(0, 99))
def test_a_grown_design_keeps_what_it_has_in_its_order(n, more, further, seed):
    rng = np.random.default_rng(seed)
    budget = least_budget(n) + more
    small = draw_design(np.arange(n), n, budget, rng=rng)
    large = grow_design(small, np.arange(n), budget + further, rng=rng)
    check_design(large, np.arange(n), "here")
    assert len(large) == min(budget + further, 2**n - 1)
    for size in range(1, n + 1):
        before = small[small.sum(axis=1) == size]
        assert np.array_equal(large[large.sum(axis=1) == size][: len(before)], before)


@pytest.mark.parametrize("grown_from", [None, 20])
@pytest.mark.parametrize("budget", [30, 45])
def test_coalitions_of_one_size_are_drawn_with_equal_chances(budget, grown_from):
    """Each coalition of size s is in a design with chance f = m_s / C; over R designs its share is nearly normal with
    variance f (1−f) / R, and one of the 63 is further than 4.5 of its standard deviations off with chance 5e-4."""
    n, n_designs = 6, 1000
    rng = np.random.default_rng(1)
    seen = np.zeros(2**n)
    for _ in range(n_designs):
        design = draw_design(np.arange(n), n, grown_from or budget, rng=rng)
        design = grow_design(design, np.arange(n), budget, rng=rng)
        seen[design @ (1 << np.arange(n))] += 1
    sizes = np.bitwise_count(np.arange(2**n))
    share = (allocation(n, budget) / [math.comb(n, s) for s in range(n + 1)])[sizes]
    deviation = np.sqrt(share * (1 - share) / n_designs)
    assert (np.abs(seen / n_designs - share) <= 4.5 * deviation).all()


@pytest.mark.parametrize("n", [5, 10, 16])
def test_the_default_budget_is_what_permutations_would_take(n):
    """The mean of R counts of different prefixes is nearly normal; it is off by 5 of its standard errors with 6e-7."""
    rng = np.random.default_rng(2)
    counts = [
        len(distinct(prefixes(rng.permuted(np.tile(np.arange(n), (default_permutations(n), 1)), axis=1), n))[0]) - 1
        for _ in range(200)
    ]
    whole = 2 * n + 1 + LEAST * (n - 3)
    expected = max(np.mean(counts), whole)
    assert abs(default_budget(n) - expected) <= 5 * np.std(counts) / math.sqrt(200) + 1


@pytest.mark.parametrize(("n", "budget"), [(0, 0), (1, 1), (2, 3), (3, 7)])
def test_few_members_are_exact_by_default(n, budget):
    assert default_budget(n) == budget == 2**n - 1


@pytest.mark.parametrize(
    ("rows", "found"),
    [
        (np.array([[1, 0, 0]]), "expected rows of booleans"),
        (np.array([[True, True, True]]), r"coalitions of clients \[0, 1\]"),
        (np.array([[True, False, False]] * 2), "stands in it twice"),
        (np.array([[True, False, False]]), "1 coalitions of 1 clients, expected at least 2"),
        (np.array([[False, False, False]]), "1 coalitions of 0 clients, expected 0"),
    ],
)
def test_what_is_no_design_is_refused(rows, found):
    with pytest.raises(UtilityError, match=f"here: .*{found}"):
        check_design(rows, np.array([0, 1]), "here")


def test_a_plan_carries_a_design_of_every_round_and_its_cells():
    rows = np.array([[True] * 6, [True, False, True, True, True, False]])
    plan = plan_prefixes(rows, sampler="stratified", rng=np.random.default_rng(0))
    assert plan.round_permutations is None
    assert plan.round_designs is not None
    for row, cells, design in zip(rows, plan.cells, plan.round_designs, strict=True):
        check_design(design, np.flatnonzero(row), "here")
        assert len(design) == default_budget(int(row.sum()))
        assert len(distinct(np.concatenate([cells, design]))[0]) == len(cells)


def test_what_only_a_design_needs_comes_after_the_last_permutation():
    """Cells of a design that are prefixes too arrive with their permutation."""
    plan = plan_prefixes(np.ones((1, 6), dtype=bool), sampler="stratified", rng=np.random.default_rng(0))
    assert plan.round_designs is not None
    assert plan.permutations is not None
    arrived, is_prefix = arrivals(plan, 0), locate(plan.cells[0], prefixes(plan.permutations, 6)) >= 0
    assert is_prefix[locate(plan.round_designs[0], plan.cells[0])].any()
    assert np.array_equal(arrived > len(plan.permutations), ~is_prefix)
    assert (arrivals(plan, 0) > 0).any()


def test_an_unknown_sampler_is_refused():
    with pytest.raises(UsageError, match="did you mean 'stratified'"):
        plan_prefixes(np.ones((1, 3), dtype=bool), sampler="stratify", rng=np.random.default_rng(0))  # type: ignore[arg-type]


def test_a_matrix_has_one_estimate_of_fedsv_and_a_design_for_every_round():
    design = draw_design(np.arange(2), 2, 3, rng=np.random.default_rng(0))
    rows, everyone = [(design, np.ones(3))], np.ones((1, 2), dtype=bool)
    permutations = (np.array([[0, 1]]),)
    with pytest.raises(UtilityError, match="expected one estimate of FedSV"):
        matrix_from_cells(("a", "b"), everyone, rows, round_permutations=permutations, round_designs=(design,))
    with pytest.raises(UtilityError, match="found 2, expected 1"):
        matrix_from_cells(("a", "b"), everyone, rows, round_designs=(design, design))
    with pytest.raises(UtilityError, match="design of round 0: 1 coalitions of 1 clients"):
        matrix_from_cells(("a", "b"), everyone, rows, round_designs=(design[1:],))
