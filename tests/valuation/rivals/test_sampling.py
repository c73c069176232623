import numpy as np
import pytest

from fedworth.valuation.rivals.counted import CountedGame
from fedworth.valuation.rivals.sampling import SamplingStatus, gtg_values, tmc_values
from fedworth.valuation.shapley import shapley_values


def counted(utilities) -> CountedGame:
    n = len(utilities).bit_length() - 1
    return CountedGame(n, lambda rows: utilities[rows @ (1 << np.arange(n))])


def additive(parts) -> CountedGame:
    return CountedGame(len(parts), lambda rows: rows @ np.asarray(parts, dtype=float))


def test_an_additive_game_is_valued_up_to_what_truncation_takes():
    """The last 5 % of the whole may be left out of an order, and nobody gets more than its part."""
    parts = np.array([0.4, 0.3, 0.2, 0.1])
    for sampled in (
        tmc_values(additive(parts), rng=np.random.default_rng(0)),
        gtg_values(additive(parts), skip_below=0.0, rng=np.random.default_rng(0)),
    ):
        assert sampled.values == pytest.approx(parts, abs=1e-12)
        assert sampled.status is SamplingStatus.SETTLED


def test_values_near_zero_settle():
    """Divided client by client, the change of a value that is 0 would never be small."""
    sampled = tmc_values(additive([0.5, 0.5, 0.0]), rng=np.random.default_rng(0))
    assert sampled.status is SamplingStatus.SETTLED
    assert sampled.n_permutations == 3 * 11


def test_truncation_saves_evaluations():
    """Whoever comes first brings everything: one evaluation a client, and the whole."""
    game = CountedGame(6, lambda rows: rows.any(axis=1).astype(float))
    sampled = gtg_values(game, skip_below=0.0, rng=np.random.default_rng(0))
    assert sampled.values == pytest.approx([1 / 6] * 6)
    assert game.n_evaluations == 6 + 1


def test_a_round_that_changed_little_is_left_out():
    game = additive([0.01, -0.005])
    sampled = gtg_values(game, skip_below=0.01, rng=np.random.default_rng(0))
    assert sampled.status is SamplingStatus.SKIPPED
    assert sampled.values.tolist() == [0, 0]
    assert game.n_evaluations == 1


def test_many_orders_of_a_game_whose_coalitions_are_never_near_the_whole_give_the_shapley_value():
    """Without truncation the mean over orders is unbiased; the bound is five standard errors of a marginal."""
    rng = np.random.default_rng(1)
    utilities = np.concatenate([[0.0], rng.normal(size=14), [40.0]])
    expected = shapley_values(utilities)
    for sampled in (tmc_values(counted(utilities), rng=rng), gtg_values(counted(utilities), skip_below=0.0, rng=rng)):
        spread = 20 / np.sqrt(sampled.n_permutations)  # a marginal lies within about ±20 of its mean
        assert np.abs(sampled.values - expected).max() <= 5 * spread
        assert sampled.values.sum() == pytest.approx(40.0)


def test_a_game_that_never_settles_ends_at_the_most_batches(monkeypatch):
    monkeypatch.setattr("fedworth.valuation.rivals.sampling.MOST_BATCHES", 12)
    monkeypatch.setattr("fedworth.valuation.rivals.sampling.SETTLED", 0.0)
    utilities = np.concatenate([[0.0], np.random.default_rng(1).normal(size=14), [40.0]])
    sampled = tmc_values(counted(utilities), rng=np.random.default_rng(0))
    assert sampled.status is SamplingStatus.MOST
    assert sampled.n_permutations == 4 * 12
