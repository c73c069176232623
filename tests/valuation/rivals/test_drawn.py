"""Many clients: concepts from drawn coalitions, held against the exact ones, and against closed forms."""

import numpy as np
import pytest
from scipy.stats import betabinom

from fedworth.valuation.rivals.concepts import banzhaf_values, beta_shapley_values, least_core_values
from fedworth.valuation.rivals.counted import CountedGame
from fedworth.valuation.rivals.drawn import (
    DRAWN,
    drawn_banzhaf,
    drawn_beta_shapley,
    drawn_least_core,
    size_weights,
)

N = 8
UTILITIES = np.append(0.0, np.random.default_rng(4).normal(size=2**N - 1))
PARTS = np.linspace(-1, 2, 30)


def listed() -> CountedGame:
    return CountedGame(N, lambda rows: UTILITIES[rows @ (1 << np.arange(N))])


def additive() -> CountedGame:
    """Thirty clients, each of whom brings its part."""
    return CountedGame(len(PARTS), lambda rows: rows @ PARTS)


@pytest.mark.parametrize(
    ("drawn", "exact"), [(drawn_banzhaf, banzhaf_values), (drawn_beta_shapley, beta_shapley_values)]
)
def test_the_mean_over_seeds_is_the_exact_value_and_errors_are_as_large_as_they_say(drawn, exact):
    """Unbiased: the mean of 200 estimates lies within five of its standard errors. Mean z² of 200 estimates of 8
    clients is 1 for right standard errors; pooled ones are a little too large: between ½ and 1.2."""
    made = [drawn(listed(), rng=np.random.default_rng(seed)) for seed in range(200)]
    values = np.stack([one.values for one in made])
    expected = exact(UTILITIES)
    off = values.mean(axis=0) - expected
    assert np.abs(off).max() <= 5 * values.std(axis=0).max() / np.sqrt(200) + 1e-3  # sizes left out count 1e-4
    z = (values - expected) / np.stack([one.standard_errors for one in made])
    assert 0.5 <= (z**2).mean() <= 1.2


def test_weights_of_sizes_are_beta_binomial():
    assert size_weights(30, 16, 1) == pytest.approx(betabinom.pmf(np.arange(30), 29, 1, 16))
    assert size_weights(100, 16, 1).sum() == pytest.approx(1)


def test_everybody_brings_its_part_to_an_additive_game():
    """In an additive game Banzhaf, Beta-Shapley and the least core all pay a client its part."""
    for made in (drawn(additive(), rng=np.random.default_rng(1)) for drawn in (drawn_banzhaf, drawn_beta_shapley)):
        assert made.standard_errors is not None
        assert (np.abs(made.values - PARTS) <= 5 * made.standard_errors).all()
    paid = drawn_least_core(additive(), rng=np.random.default_rng(1))
    assert paid.values.sum() == pytest.approx(PARTS.sum(), abs=1e-3)
    assert paid.values == pytest.approx(PARTS, abs=0.05)
    assert paid.standard_errors is None


def test_with_all_coalitions_drawn_the_least_core_is_the_exact_one(monkeypatch):
    monkeypatch.setattr("fedworth.valuation.rivals.drawn.PER_CLIENT", 400)
    monkeypatch.setattr("fedworth.valuation.rivals.drawn.KEPT_APART", 10**9)
    paid = drawn_least_core(listed(), rng=np.random.default_rng(0))
    assert paid.values == pytest.approx(least_core_values(UTILITIES), abs=1e-3)


def test_the_least_core_says_how_many_other_coalitions_object():
    rng = np.random.default_rng(2)
    noise: dict[bytes, float] = {}

    def measure(rows):
        return np.array([noise.setdefault(row.tobytes(), rng.normal()) for row in rows])

    paid = drawn_least_core(CountedGame(30, measure), rng=np.random.default_rng(3))
    assert "drawn coalitions none objects by more than" in paid.note
    assert " others " in paid.note


@pytest.mark.parametrize("name", DRAWN)
def test_coalitions_are_counted_and_the_same_bytes_come_twice(name):
    games = additive(), additive()
    first, second = (DRAWN[name](game, rng=np.random.default_rng(7)) for game in games)
    assert first.values.tobytes() == second.values.tobytes()
    assert games[0].n_evaluations == games[1].n_evaluations <= 15 * len(PARTS)
