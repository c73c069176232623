"""Observation 1: how often FedSV tells two identical clients apart."""

import json
import math
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedworth.errors import UsageError
from fedworth.theory.observation1 import (
    difference_chance,
    difference_counts,
    unfairness_bound,
    unfairness_chance,
)

GOLDEN: list[dict[str, Any]] = json.loads((Path(__file__).parents[1] / "golden" / "g8_observation1.json").read_text())
SIZES = st.tuples(st.integers(2, 12), st.integers(0, 12), st.integers(0, 15)).filter(lambda n: n[1] <= n[0])


def terms(n_clients: int, n_participants: int, n_rounds: int, *, stay: int) -> dict[int, Fraction]:
    """Observation 1's inner sums by lead a, in exact arithmetic, with 1 − stay·p for rounds not apart."""
    p = Fraction(n_participants * (n_clients - n_participants), n_clients * (n_clients - 1))
    sums = {}
    for a in range(n_rounds + 1):
        sums[a] = Fraction(0)
        for b in range((n_rounds - a) // 2 + 1):
            still = n_rounds - a - 2 * b
            ways = math.comb(n_rounds, b) * math.comb(n_rounds - b, still)
            sums[a] += ways * p ** (2 * b + a) * (1 - stay * p) ** still
    return sums


@pytest.mark.parametrize("case", GOLDEN, ids=lambda case: f"N{case['N']}-m{case['m']}-T{case['T']}-s{case['s']}")
def test_chances_equal_the_independent_reference(case):
    sizes = case["N"], case["m"], case["T"], case["s"]
    assert difference_chance(*sizes[:2]) == pytest.approx(case["p"], abs=1e-15)
    assert unfairness_bound(*sizes) == pytest.approx(case["Ps_correct"], abs=1e-9)
    assert unfairness_chance(*sizes) == pytest.approx(case["exact_sigma0"], abs=1e-9)
    assert unfairness_chance(*sizes, sigma=0.5) == pytest.approx(case["exact_sigma05"], abs=1e-9)


@pytest.mark.parametrize("sizes", [(10, 3, 10), (4, 2, 9), (2, 1, 5), (100, 10, 100)])
def test_the_bound_equals_the_double_sum_in_exact_arithmetic(sizes):
    n_clients, n_participants, n_rounds = sizes
    sums = terms(n_clients, n_participants, n_rounds, stay=2)
    for s in range(0, n_rounds + 1, max(1, n_rounds // 5)):
        exact = float(sum(sums[a] for a in range(s, n_rounds + 1)))
        assert unfairness_bound(n_clients, n_participants, n_rounds, s) == pytest.approx(exact, rel=1e-9)


def test_the_corrected_terms_sum_to_one_and_the_printed_terms_do_not():
    p = Fraction(7, 30)  # N = 10, m = 3
    for stay, expected in ((2, Fraction(1)), (1, (1 + p) ** 10)):
        sums = terms(10, 3, 10, stay=stay)
        assert sums[0] + 2 * sum(sums[a] for a in range(1, 11)) == expected


@given(SIZES)
def test_difference_counts_are_a_distribution(sizes):
    chances = difference_counts(*sizes)
    assert chances.min() >= 0
    assert chances.sum() == pytest.approx(1, abs=1e-12)


@given(SIZES, st.floats(0, 3))
def test_chances_fall_with_s_and_start_at_certainty(sizes, sigma):
    n_clients, n_participants, n_rounds = sizes
    chances = [unfairness_chance(n_clients, n_participants, n_rounds, s, sigma) for s in range(n_rounds + 2)]
    assert chances[0] == pytest.approx(1, abs=1e-12)
    assert all(later <= earlier + 1e-12 for earlier, later in pairwise(chances))


@given(SIZES, st.integers(1, 16))
def test_without_spread_the_exact_chance_is_twice_the_bound(sizes, s):
    case = (*sizes, s)
    assert unfairness_chance(*case) == pytest.approx(2 * unfairness_bound(*case), abs=1e-12)


@given(SIZES, st.integers(0, 15), st.floats(0, 10))
def test_the_bound_stays_below_the_exact_chance_whatever_the_spread(sizes, s, sigma):
    n_clients, n_participants, n_rounds = sizes
    chance = unfairness_chance(n_clients, n_participants, n_rounds, s, sigma)
    assert unfairness_bound(n_clients, n_participants, n_rounds, s) <= chance + 1e-12


def test_a_vanishing_spread_halves_the_chance_at_each_atom():
    # at a lead of exactly s, N(s, kσ²) falls short half of the time however small σ is
    nearly = unfairness_chance(10, 3, 10, 2, 1e-9)
    at_atom = unfairness_chance(10, 3, 10, 2) - unfairness_chance(10, 3, 10, 3)
    assert nearly == pytest.approx(unfairness_chance(10, 3, 10, 2) - at_atom / 2, abs=1e-9)


def test_hearing_everyone_or_nobody_sets_nobody_apart():
    for n_participants in (0, 10):
        assert difference_chance(10, n_participants) == 0
        assert unfairness_bound(10, n_participants, 10, 1) == 0
        assert unfairness_chance(10, n_participants, 10, 1, sigma=0.5) == 0


def test_no_lead_exceeds_the_number_of_rounds():
    assert unfairness_bound(10, 3, 10, 10) == pytest.approx((7 / 30) ** 10)
    assert unfairness_bound(10, 3, 10, 10.5) == 0


def test_more_rounds_than_factorials_in_floating_point_keep_the_chances_finite():
    # by the central limit theorem: the lead has variance 2pT = 933.3, and ½ corrects for its whole numbers
    spread = math.sqrt(2 * difference_chance(10, 3) * 2000)
    normal = 0.5 * math.erfc((30 - 0.5) / (spread * math.sqrt(2)))
    assert unfairness_bound(10, 3, 2000, 30) == pytest.approx(normal, abs=1e-3)


@pytest.mark.parametrize("sigma", [0.0, 0.5])
def test_simulated_uniform_participants_agree(sigma):
    rng = np.random.default_rng(2022)
    n_runs, n_rounds, n_clients, n_participants = 20_000, 10, 10, 3
    order = rng.random((n_runs, n_rounds, n_clients)).argsort(axis=2)
    heard = order < n_participants  # a uniform choice of 3 in every round, (n_runs, n_rounds, n_clients)
    apart = heard[..., 0].astype(float) - heard[..., 1]
    difference = np.abs((apart * rng.normal(1.0, sigma, apart.shape)).sum(axis=1))  # (n_runs,)
    for s in (1, 2, 3):
        exact = unfairness_chance(n_clients, n_participants, n_rounds, s, sigma)
        # a share of n runs has standard deviation √(P(1−P)/n); 5 of them are passed once in 1.7 million
        allowed = 5 * math.sqrt(exact * (1 - exact) / n_runs)
        assert abs((difference >= s).mean() - exact) <= allowed


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ((1, 1, 5, 1), "a pair"),
        ((5, 6, 5, 1), "participants"),
        ((5, -1, 5, 1), "participants"),
        ((5, 2, -1, 1), "rounds"),
        ((5, 2, 5, -1), "s is -1"),
        ((5, 2, 5, 1, -0.5), "sigma is -0.5"),
        ((5, 2, 5, 1, math.nan), "sigma is nan"),
    ],
)
def test_impossible_sizes_are_refused(arguments, complaint):
    with pytest.raises(UsageError, match=complaint):
        unfairness_chance(*arguments)
