"""What is said over seeds: intervals, tests, verdicts, and the numbers that the studies make of values."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from fedworth.experiments.comparing import less_claim, more_claim, pairs
from fedworth.experiments.costs import papers_count
from fedworth.experiments.fairness import differences
from fedworth.experiments.noisy_data import correlations
from fedworth.experiments.noisy_labels import found_noisy
from fedworth.experiments.outcome import Claim, Outcome, Verdict, verdict_of
from fedworth.experiments.page import table
from fedworth.experiments.plans import plan_fedsv, plan_monte_carlo
from fedworth.experiments.statistics import (
    chance_of,
    chance_of_less,
    dominance,
    jaccard,
    mean_of,
    rank_correlation,
)
from fedworth.experiments.unfairness import printed_bound, simulated_chances
from fedworth.valuation.observation1 import unfairness_bound, unfairness_chance

YES, NO, UNKNOWN = Claim("a", True, ""), Claim("b", False, ""), Claim("c", None, "")


@pytest.mark.parametrize(
    ("claims", "verdict"),
    [
        ([YES, YES], Verdict.HOLDS),
        ([YES, UNKNOWN], Verdict.HOLDS),
        ([YES, NO], Verdict.IN_PART),
        ([NO, UNKNOWN], Verdict.FAILS),
        ([UNKNOWN], Verdict.OPEN),
        ([], Verdict.OPEN),
    ],
)
def test_a_verdict_adds_up_its_claims(claims, verdict):
    assert verdict_of(claims) == verdict


def test_the_sentence_names_study_verdict_and_evidence():
    outcome = Outcome("rank", "Rank", ("x",), ((math.nan,), (0.1,)), ("x",), (("1",),), (YES, NO), ())
    assert outcome.sentence() == "rank: holds in part — a: holds (); b: does not hold ()"
    assert outcome.csv_text() == "x\n\n0.1\n".replace("\n\n", '\n""\n')
    assert outcome.document()["rows"] == [{"x": None}, {"x": 0.1}]


def test_the_mean_has_students_interval():
    low, high = stats.t.interval(0.95, 3, 2.5, stats.sem([1, 2, 3, 4]))
    found = mean_of([1, 2, 3, 4])
    assert (found.value, found.low, found.high) == pytest.approx((2.5, low, high))
    assert mean_of([0.9, 1.0, 1.0], (-1.0, 1.0)).high == 1.0
    assert math.isnan(mean_of([1.0, 2.0]).low)
    assert mean_of([]).text() == "–"


@given(st.lists(st.booleans(), min_size=1, max_size=60))
def test_a_chance_has_wilsons_interval(claims):
    expected = stats.binomtest(sum(claims), len(claims)).proportion_ci(0.95, "wilson")
    found = chance_of(claims)
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high), abs=1e-9)


def test_the_paired_test_is_one_sided_and_leaves_out_equal_pairs():
    assert chance_of_less([1, 2, 3, 4, 5], [2, 4, 6, 8, 10]) == pytest.approx(1 / 32)
    assert chance_of_less([2, 4, 6, 8, 10], [1, 2, 3, 4, 5]) == 1.0
    assert chance_of_less([1, 2], [1, 2]) == 1.0


def test_dominance_is_one_only_if_the_distribution_lies_left_everywhere():
    assert dominance([0.1, 0.2], [0.2, 0.5]) == 1.0
    assert dominance([0.0, 0.9], [0.2, 0.5]) == pytest.approx(3 / 4)


def test_correlation_of_a_constant_ranks_nobody():
    assert rank_correlation([1, 1, 1], [1, 2, 3]) == 0.0
    assert rank_correlation([1, 2, 3], [10, 20, 30]) == pytest.approx(1.0)


def test_jaccard_counts_the_overlap():
    assert jaccard({1, 2, 3}, {2, 3, 4}) == 0.5
    assert jaccard(set(), set()) == 1.0


def row(seed: int, **values: list[float]) -> dict[str, Any]:
    named = {key.replace("_", "-"): numbers for key, numbers in values.items()}
    return {"seed": seed, "reading": {"values": named}}


def test_differences_compare_client_0_with_its_copy():
    found = differences([row(0, fedsv=[1.0, *[0.0] * 8, 0.5]), row(1, fedsv=[-1.0, *[0.0] * 8, 1.0])])
    assert found == {"fedsv": {0: 0.5, 1: 2.0}}


def test_values_that_fall_with_the_noise_correlate_fully():
    assert correlations([row(3, truth=[3.0, 2.0, 1.0])]) == {"truth": {3: pytest.approx(1.0)}}


def test_noisy_clients_are_found_by_their_low_values_and_win_no_ties():
    assert found_noisy([-1.0, *[1.0] * 9]) == 1.0
    assert found_noisy([0.0] * 10) == 0.0


def test_pairs_are_of_the_same_seeds():
    numbers = {"comfedsv-counts": {2: 0.2, 1: 0.1}, "fedsv": {1: 0.5, 3: 0.6}}
    assert pairs(numbers, "comfedsv-counts", "fedsv") == ([0.1], [0.5])
    assert less_claim("d", numbers).holds is None


def test_claims_of_more_and_less_look_both_ways():
    numbers = {"comfedsv-counts": {s: s + 1.0 for s in range(8)}, "fedsv": {s: s * 0.5 for s in range(8)}}
    assert more_claim("x", numbers).holds is True
    assert less_claim("x", numbers).holds is False


def test_a_few_seeds_leave_open_what_they_cannot_show():
    theirs = {seed: 1.0 for seed in range(40)}
    ours = {seed: 1.15 if seed % 4 else 0.5 for seed in range(40)}
    few = {"comfedsv-counts": {seed: ours[seed] for seed in range(8)}, "fedsv": theirs}
    assert less_claim("x", few).holds is None
    assert less_claim("x", {"comfedsv-counts": ours, "fedsv": theirs}).holds is False


def test_the_printed_bound_is_no_probability_and_the_corrected_one_is_half_the_chance():
    assert printed_bound(10, 3, 10, 1) == pytest.approx(3.24, abs=0.01)
    assert unfairness_bound(10, 3, 10, 2) == pytest.approx(unfairness_chance(10, 3, 10, 2) / 2)


def test_simulated_selections_agree_with_the_exact_chance():
    """2,000 draws: five standard errors are at most 5 · √(1/4 / 2000) = .056."""
    for s, found in enumerate(simulated_chances(2_000)):
        assert abs(found.value - unfairness_chance(10, 3, 10, s)) < 0.056


def test_a_monte_carlo_plan_draws_the_heard_round_once():
    participants = np.ones((3, 6), dtype=bool)
    participants[1:, :3] = False
    plan = plan_monte_carlo(participants, n_permutations=4, rng=np.random.default_rng(0))
    assert plan.round_permutations is not None
    assert plan.permutations is not None
    assert np.array_equal(plan.round_permutations[0], plan.permutations)
    assert [sorted(orders[0].tolist()) for orders in plan.round_permutations[1:]] == [[3, 4, 5]] * 2
    assert all(not cells[:, :3].any() for cells in plan.cells[1:])


def test_fedsv_alone_measures_no_more_than_its_participants_in_any_round():
    participants = np.ones((2, 8), dtype=bool)
    participants[1, 2:] = False
    plan = plan_fedsv(participants, 2, rng=np.random.default_rng(0))
    assert [int(cells.any(axis=0).sum()) for cells in plan.cells] == [2, 2]
    assert plan.n_evaluations <= 6


def test_the_papers_count_tends_to_the_participation_rate():
    assert papers_count(10, 3) == pytest.approx(0.143, abs=0.001)
    assert papers_count(10**9, 3 * 10**8) == pytest.approx(0.3, abs=0.02)


def test_a_table_leaves_out_names_that_repeat():
    assert table(("data", "method", "d"), (("mnist", "a", "1"), ("mnist", "b", "2"))).splitlines() == [
        "| data | method | d |",
        "| --- | --- | ---: |",
        "| mnist | a | 1 |",
        "|  | b | 2 |",
    ]
