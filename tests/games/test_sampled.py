"""Shapley values from few evaluations: near the exact ones, unbiased, with standard errors that hold."""

import math
from dataclasses import replace

import numpy as np
import pytest

from fedworth.coalitions import coalitions_of, distinct
from fedworth.games.effort import shapley
from fedworth.games.game import ModelGame
from fedworth.games.sampled import FEWEST_OF_SIZE, draw, estimate, expected_counts, sampled_shapley
from fedworth.games.shapley import all_utilities, shapley_values
from fedworth.oracle.fast import FastOracle
from fedworth.oracle.oracle import LoopOracle
from fedworth.oracle.weighting import round_weights
from fedworth.simulation.settings import SimulationSettings
from fedworth.simulation.simulate import simulate, task_of
from tests.support.games import ArrayGame
from tests.support.tasks import task_with
from tests.support.zoo import round_of

N = 10
INTERPOLATED = (N - np.arange(2.0, N)) / np.arange(2.0, N) ** 1.5


def game_of(folder, weighting="uniform", n_blocks=1, **settings):
    """The second round of ten clients of digits, two classes each."""
    made = SimulationSettings(
        n_clients=N, n_participants=N, n_rounds=2, copies=(), rate=0.1, n_steps=10, with_truth=False, **settings
    )
    ledger = simulate(made, folder / "ledger")
    task = task_of(ledger)
    task = replace(task, blocks=np.arange(len(task.labels)) % n_blocks)
    weights = round_weights(ledger, 1, weighting)
    return ModelGame(FastOracle(task, n_threads=1), ledger.open_round(1), np.arange(N), weights, weighting)


@pytest.fixture(scope="module")
def game(tmp_path_factory):
    return game_of(tmp_path_factory.mktemp("logistic"), n_blocks=3)


@pytest.fixture(scope="module")
def utilities(game):
    """(2^N, n_blocks)."""
    return all_utilities(game)


def spread_error(found, true):
    return np.linalg.norm(found - true) / np.linalg.norm(true - true.mean())


@pytest.mark.parametrize(("weights", "weighting"), [(np.linspace(1, 3, N), "samples"), (np.full(N, 1 / N), "fixed")])
def test_standard_errors_are_as_large_as_errors_under_other_weights(game, weights, weighting):
    weighed = replace(game, weights=weights, weighting=weighting)
    true = shapley_values(all_utilities(weighed).sum(axis=1))
    found = [sampled_shapley(weighed, np.random.default_rng(seed)) for seed in range(20)]
    squared = np.mean([(one.totals - true) ** 2 for one in found])
    assert 0.5 < squared / np.mean([one.standard_errors**2 for one in found]) < 2


def test_estimates_are_unbiased_and_their_standard_errors_hold(utilities):
    """The mean of R estimates is nearly normal: off by 5 of its standard errors with chance 6e-7 a client and block.
    The share within 1.96 standard errors lies within 5 √(0.05 · 0.95 / R) = 0.044 of its expectation even if all
    clients moved as one. Variances take draws as independent, while most of the 45 pairs are drawn: they are on the
    large side, up to twice the mean squared error."""
    lone, everyone, rng = utilities[1 << np.arange(N)], utilities[-1], np.random.default_rng(3)
    values, errors = [], []
    for _ in range(600):
        drawn = draw(INTERPOLATED, 59, rng=rng)
        found = estimate(everyone, lone, drawn, utilities[drawn.coalitions @ (1 << np.arange(N))])
        values.append(found[0])
        errors.append(np.sqrt(np.diag(found[1])))
    true = shapley_values(utilities.T).T
    off = np.abs(np.mean(values, axis=0) - true)
    assert (off < 5 * np.std(values, axis=0) / math.sqrt(len(values))).all()
    missed = np.sum(values, axis=2) - true.sum(axis=1)  # (600, N)
    assert np.mean(np.abs(missed) <= 1.96 * np.array(errors)) > 0.95 - 0.044
    assert 0.5 < np.mean(missed**2) / np.mean(np.square(errors)) < 1.29


def test_estimates_by_block_add_up_to_the_estimate_of_the_sum(game):
    whole = replace(game.oracle.task, blocks=None)
    one = replace(game, oracle=FastOracle(whole, n_threads=1))
    blocks, total = (sampled_shapley(each, np.random.default_rng(4)) for each in (game, one))
    assert blocks.totals == pytest.approx(total.values[:, 0], abs=1e-6)


@pytest.mark.parametrize(
    ("name", "measure"), [("squared-error", "loss"), ("cox", "loss"), ("binary", "auc"), ("hinge", "loss")]
)
def test_other_losses_and_measures_are_estimated(name, measure):
    task = task_with(name)
    game = ModelGame(LoopOracle(task, measure), round_of(task.module, N), np.arange(N), np.ones(N), "uniform")
    true = shapley_values(all_utilities(game)[:, 0])
    found = sampled_shapley(game, np.random.default_rng(1))
    assert (np.abs(found.totals - true) <= 6 * found.standard_errors + 1e-12).all()


def test_games_without_models_cost_twenty_evaluations_a_client():
    parts = np.linspace(-1, 2, 14)
    members = coalitions_of(np.arange(14), 14)
    for utilities in (members @ parts, (members @ parts) / np.maximum(members.sum(axis=1), 1)):
        game = ArrayGame(utilities)
        found = shapley(game, np.random.default_rng(0))
        assert found.n_evaluations <= 20 * 14 + 14
        assert found.totals == pytest.approx(shapley_values(utilities), abs=1e-2)


def test_the_same_generator_gives_the_same_bytes(game):
    first, again = (sampled_shapley(game, np.random.default_rng(5)) for _ in range(2))
    assert first.values.tobytes() == again.values.tobytes()
    assert first.sampling_covariance.tobytes() == again.sampling_covariance.tobytes()


@pytest.mark.parametrize(("n", "n_draws"), [(8, 40), (12, 79), (30, 179), (100, 599)])
def test_expected_counts_add_up_and_leave_no_size_out(n, n_draws):
    counts = expected_counts(1 / np.arange(2.0, n), n_draws)
    assert counts.shape == (n - 2,)
    assert counts.min() >= FEWEST_OF_SIZE
    assert n_draws - 1e-9 <= counts.sum() <= n_draws + FEWEST_OF_SIZE * n
    assert all(counts[s - 2] <= math.comb(n, s) for s in range(2, n))


def test_all_coalitions_are_drawn_once_where_they_can_be_afforded():
    drawn = draw(np.ones(4), 2**6 - 6 - 2, rng=np.random.default_rng(0))
    assert drawn.complete.all()
    assert len(distinct(drawn.coalitions)[0]) == len(drawn) == 2**6 - 6 - 2


@pytest.mark.parametrize("n_draws", [12, 60])
def test_weighted_sums_have_the_means_over_the_sizes_as_expectation(n_draws):
    """The mean over R draws is nearly normal: off by 5 of its standard errors with chance 6e-7, for 7 clients."""
    n, rng = 7, np.random.default_rng(1)
    utilities = rng.normal(size=2**n)
    sums = []
    for _ in range(4000):
        drawn = draw(1 / np.arange(2.0, n), n_draws, rng=rng)
        seen = utilities[drawn.coalitions @ (1 << np.arange(n))]
        sums.append(drawn.coalitions.T @ (drawn.weights * seen))
    every = coalitions_of(np.arange(n), n)
    inner = (every.sum(axis=1) > 1) & (every.sum(axis=1) < n)
    share = np.array([1 / math.comb(n, int(s)) for s in every.sum(axis=1)])
    expected = every[inner].T @ (share * utilities)[inner]
    error = np.std(sums, axis=0) / math.sqrt(len(sums))
    assert (np.abs(np.mean(sums, axis=0) - expected) < 5 * error).all()
