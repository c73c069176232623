"""Shapley values from few evaluations: near the exact ones, unbiased, with standard errors that hold."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from fedworth.coalitions import coalitions_of, distinct
from fedworth.games.game import ModelGame
from fedworth.games.sampled import FEWEST_OF_SIZE, draw, estimate, expected_counts, sampled_shapley
from fedworth.games.shapley import all_utilities, shapley, shapley_values
from fedworth.games.surrogates import Additive, Pairwise, can_interpolate, interpolate, lone_surrogate
from fedworth.oracle.fast import FastOracle
from fedworth.oracle.oracle import LoopOracle
from fedworth.oracle.weighting import round_weights
from fedworth.simulation.settings import SimulationSettings
from fedworth.simulation.simulate import simulate, task_of
from fedworth.task.task import Task
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


def test_ten_evaluations_a_client_come_near_the_exact_values(game, utilities):
    true = shapley_values(utilities.sum(axis=1))
    found = sampled_shapley(game, np.random.default_rng(0))
    assert found.n_evaluations <= 10 * N + 4
    assert spread_error(found.totals, true) < 0.1
    assert found.values.sum(axis=0) == pytest.approx(utilities[-1], rel=1e-9)  # on every block


def test_evaluations_are_counted(game):
    fresh = ModelGame(game.oracle, game.round_, game.clients, game.weights, game.weighting)
    found = sampled_shapley(fresh, np.random.default_rng(0))
    assert found.n_evaluations == len(fresh.memory) + 3 * N  # with the interpolation points


def test_a_hidden_layer_is_estimated_too(tmp_path):
    game = game_of(tmp_path, model="mlp", hidden=(16,))
    true = shapley_values(all_utilities(game)[:, 0])
    assert spread_error(sampled_shapley(game, np.random.default_rng(0)).totals, true) < 0.15


@pytest.mark.parametrize(("weights", "weighting"), [(np.linspace(1, 3, N), "samples"), (np.full(N, 1 / N), "fixed")])
def test_standard_errors_are_as_large_as_errors_under_other_weights(game, weights, weighting):
    weighed = replace(game, weights=weights, weighting=weighting)
    assert can_interpolate(weighed) == (weighting == "samples")
    true = shapley_values(all_utilities(weighed).sum(axis=1))
    found = [sampled_shapley(weighed, np.random.default_rng(seed)) for seed in range(20)]
    squared = np.mean([(one.totals - true) ** 2 for one in found])
    assert 0.5 < squared / np.mean([one.standard_errors**2 for one in found]) < 2


@pytest.mark.parametrize("is_interpolated", [False, True])
def test_estimates_are_unbiased_and_their_standard_errors_hold(game, utilities, is_interpolated):
    """The mean of R estimates is nearly normal: off by 5 of its standard errors with chance 6e-7 a client and block.
    The share within 1.96 standard errors lies within 5 √(0.05 · 0.95 / R) = 0.044 of its expectation even if all
    clients moved as one. Variances take draws as independent, while most of the 45 pairs are drawn: they are on the
    large side, up to twice the mean squared error."""
    lone, everyone, rng = utilities[1 << np.arange(N)], utilities[-1], np.random.default_rng(3)
    surrogate = interpolate(game, everyone) if is_interpolated else lone_surrogate(lone)
    values, errors = [], []
    for _ in range(600):
        drawn = draw(INTERPOLATED, 59, rng=rng)
        found = estimate(surrogate, everyone, lone, drawn, utilities[drawn.coalitions @ (1 << np.arange(N))])
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


def test_lone_clients_known_better_change_the_first_layer_alone(game, utilities):
    lone = np.random.default_rng(1).normal(size=(N, 3))

    class Known(ModelGame):
        def utilities(self, coalitions):
            found = super().utilities(coalitions)
            alone = coalitions.sum(axis=1) == 1
            found[alone] = lone[np.argmax(coalitions[alone], axis=1)]
            return found

        def model_utilities(self, coalitions):
            return game.model_utilities(coalitions)

    changed = utilities.copy()
    changed[1 << np.arange(N)] = lone
    known = Known(game.oracle, game.round_, game.clients, game.weights, game.weighting)
    plain, better = (sampled_shapley(each, np.random.default_rng(2)) for each in (game, known))
    expected = shapley_values(changed.T).T - shapley_values(utilities.T).T
    assert better.values - plain.values == pytest.approx(expected, rel=1e-9, abs=1e-9)


def test_a_module_with_batch_norm_is_valued_with_fourteen_clients():
    module = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))
    torch.manual_seed(0)
    task = Task(module, torch.randn(60, 6), torch.randint(0, 3, (60,)))
    game = ModelGame(LoopOracle(task), round_of(module, 14), np.arange(14), np.ones(14), "uniform")
    assert can_interpolate(game)
    found = shapley(game, np.random.default_rng(0))
    assert found.totals.sum() == pytest.approx(float(game.utilities(np.ones((1, 14), dtype=bool)).sum()))
    assert found.n_evaluations < 11 * 14


@pytest.mark.parametrize(
    ("name", "measure", "is_smooth"),
    [("squared-error", "loss", True), ("cox", "loss", True), ("binary", "auc", False), ("hinge", "loss", False)],
)
def test_other_losses_and_measures_are_estimated(name, measure, is_smooth):
    task = task_with(name)
    game = ModelGame(LoopOracle(task, measure), round_of(task.module, N), np.arange(N), np.ones(N), "uniform")
    assert can_interpolate(game) == is_smooth
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


@pytest.mark.parametrize("n", [3, 4, 9])
def test_contrasts_in_closed_form_are_those_of_the_enumeration(n):
    """Of sizes 2 … n−1: with lone clients and everyone at 0, n times the Shapley value."""
    rng = np.random.default_rng(n)
    tables, pairs = rng.normal(size=(n + 1, n, 2)), rng.normal(size=(n, n))
    pairs = pairs + pairs.T
    np.fill_diagonal(pairs, 0)
    shares = rng.random((n + 1, n))
    rows = coalitions_of(np.arange(n), n)
    inner = (rows.sum(axis=1) > 1) & (rows.sum(axis=1) < n)
    for term in (Additive(lambda s: tables[s], n), Pairwise(pairs, lambda s: shares[s], lambda s: 1 / s)):
        for block, contrasts in enumerate(term.contrasts().T):
            utilities = np.zeros(2**n)
            utilities[inner] = term.utilities(rows[inner])[:, block]
            assert contrasts == pytest.approx(n * shapley_values(utilities), rel=1e-9, abs=1e-9)


def test_interpolation_is_exact_for_lone_clients_and_near_for_pairs(game, utilities):
    surrogate = interpolate(game, utilities[-1])
    lone = surrogate.fixed.utilities(np.eye(N, dtype=bool)) + utilities[-1] + surrogate.fixed.of_clients(N).sum(axis=0)
    assert lone == pytest.approx(utilities[1 << np.arange(N)], abs=1e-9)
    rows = coalitions_of(np.arange(N), N)[1:]
    rows = rows[rows.sum(axis=1) == 2]
    near = surrogate.fixed.utilities(rows).sum(axis=1) + surrogate.terms[0].utilities(rows)[:, 0]
    true = (utilities[rows @ (1 << np.arange(N))] - utilities[-1]).sum(axis=1)
    assert np.corrcoef(near, true)[0, 1] > 0.95


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
