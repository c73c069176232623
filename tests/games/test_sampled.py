"""A round's values from few evaluations: near the exact ones, unbiased, with standard errors that hold."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from fedworth.coalitions import coalitions_of
from fedworth.errors import UsageError, UtilityError
from fedworth.games import RoundGame, default_budget, sampled_values
from fedworth.games import sampled as sampling
from fedworth.games.draws import draw
from fedworth.games.round_game import RAYS
from fedworth.games.surrogate import PLAIN, measure_surrogate
from fedworth.oracle.fast import FastOracle
from fedworth.oracle.oracle import mix
from fedworth.oracle.weighting import round_weights
from fedworth.simulation.settings import SimulationSettings
from fedworth.simulation.simulate import simulate, task_of
from fedworth.valuation.shapley import shapley_values

N = 10


def game_of(folder, weighting="uniform", **settings):
    """The second round of ten clients of digits, two classes each."""
    made = SimulationSettings(
        n_clients=N, n_participants=N, n_rounds=2, copies=(), rate=0.1, n_steps=10, with_truth=False, **settings
    )
    ledger = simulate(made, folder / "ledger")
    weights = round_weights(ledger, 1, weighting)
    oracle = FastOracle(task_of(ledger), n_threads=1)
    return RoundGame(oracle, ledger.open_round(1), np.arange(N), weights, weighting)


@pytest.fixture(scope="module")
def game(tmp_path_factory):
    return game_of(tmp_path_factory.mktemp("logistic"))


@pytest.fixture(scope="module")
def utilities(game):
    """All 2^N of them."""
    return np.concatenate([[0.0], game(coalitions_of(np.arange(N), N)[1:])])


def spread_error(found, true):
    return np.linalg.norm(found - true) / np.linalg.norm(true - true.mean())


def test_ten_evaluations_a_client_come_near_the_exact_values(game, utilities):
    true = shapley_values(utilities)
    found = sampled_values(game, rng=np.random.default_rng(0))
    assert found.n_evaluations <= default_budget(N) + 4
    assert spread_error(found.values, true) < 0.1
    assert found.values.sum() == pytest.approx(utilities[-1], rel=1e-9)


def test_a_hidden_layer_is_estimated_too(tmp_path):
    game = game_of(tmp_path, model="mlp", hidden=(16,))
    true = shapley_values(np.concatenate([[0.0], game(coalitions_of(np.arange(N), N)[1:])]))
    assert spread_error(sampled_values(game, rng=np.random.default_rng(0)).values, true) < 0.15


def test_unequal_weights_cost_precision_and_the_standard_errors_say_so(game):
    """A client's share then depends on who else is there, which the surrogate knows on average only."""
    weighed = replace(game, weights=np.linspace(1, 3, N), weighting="samples")
    true = shapley_values(np.concatenate([[0.0], weighed(coalitions_of(np.arange(N), N)[1:])]))
    found = [sampled_values(weighed, rng=np.random.default_rng(seed)) for seed in range(20)]
    squared = np.mean([(one.values - true) ** 2 for one in found])
    assert 0.5 < squared / np.mean([one.standard_errors**2 for one in found]) < 2


def test_a_budget_for_all_coalitions_gives_the_exact_values(game, utilities):
    found = sampled_values(game, budget=2**N - 1, rng=np.random.default_rng(0))
    assert found.values == pytest.approx(shapley_values(utilities), rel=1e-9, abs=1e-12)
    assert found.n_evaluations == 2**N - 1
    assert not found.standard_errors.any()


@pytest.mark.parametrize("n", [1, 2, 5])
def test_small_rounds_are_exact(game, n):
    small = replace(game, members=np.arange(3, 3 + n))
    rows = np.concatenate([[0.0], small(coalitions_of(np.arange(n), n)[1:])])
    found = sampled_values(small, rng=np.random.default_rng(0))
    assert found.values == pytest.approx(shapley_values(rows), rel=1e-9, abs=1e-12)
    assert found.n_evaluations == 2**n - 1


def test_fewer_than_seven_evaluations_a_client_are_refused(game):
    with pytest.raises(UsageError, match="expected at least 70, 7 a client"):
        sampled_values(game, budget=69, rng=np.random.default_rng(0))


def test_the_same_generator_gives_the_same_bytes(game):
    first, again = (sampled_values(game, rng=np.random.default_rng(5)) for _ in range(2))
    assert first.values.tobytes() == again.values.tobytes()
    assert first.covariance.tobytes() == again.covariance.tobytes()


def test_lone_clients_known_better_change_the_first_layer_alone(game, utilities):
    lone, rng = np.random.default_rng(1).normal(size=N), np.random.default_rng(2)
    changed = utilities.copy()
    changed[1 << np.arange(N)] = lone
    plain, better = sampled_values(game, rng=np.random.default_rng(2)), sampled_values(game, lone=lone, rng=rng)
    expected = shapley_values(changed) - shapley_values(utilities)
    assert better.values - plain.values == pytest.approx(expected, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("is_fitted", [False, True])
def test_estimates_are_unbiased_and_their_standard_errors_hold(game, utilities, is_fitted, monkeypatch):
    """The mean of R estimates is nearly normal: off by 5 of its standard errors with chance 6e-7 a client. The share
    within 1.96 standard errors lies within 5 √(0.05 · 0.95 / R) = 0.044 of its expectation even if all clients moved as
    one. Variances take draws as independent, while most of the 45 pairs are drawn: they are on the large side, up to
    twice the mean squared error, and below it by no more than the relative error of R squares, 5 √(2/R) = 0.29."""
    if not is_fitted:
        monkeypatch.setattr(sampling, "FEWEST_FITTED", 10**9)
    true, rng = shapley_values(utilities), np.random.default_rng(3)
    surrogate = measure_surrogate(game, float(utilities[-1]), utilities[1 << np.arange(N)])
    found = []
    for _ in range(600):
        drawn = draw(N, 59, rng=rng)
        seen = utilities[drawn.coalitions @ (1 << np.arange(N))]
        found.append(sampling.sampled(surrogate, drawn, seen, n_evaluations=0))
    values, errors = np.array([one.values for one in found]), np.array([one.standard_errors for one in found])
    assert (np.abs(values.mean(axis=0) - true) < 5 * values.std(axis=0) / math.sqrt(len(found))).all()
    assert np.mean(np.abs(values - true) <= 1.96 * errors) > 0.95 - 0.044
    assert 0.5 < np.mean((values - true) ** 2) / np.mean(errors**2) < 1.29


def test_the_surrogate_alone_is_near(game, utilities):
    surrogate = measure_surrogate(game, float(utilities[-1]), utilities[1 << np.arange(N)])
    assert spread_error(surrogate.values(PLAIN), shapley_values(utilities)) < 0.05


def mean_and(game, client, x):
    """The model m + x (w_i − m), from scratch."""
    coefficients = np.full(N, (1 - x) / N)
    coefficients[client] += x
    return mix(game.round_.global_model, dict(game.round_.client_models), coefficients, 0.0)


def loss_of(game, model):
    task = game.oracle.task
    with torch.inference_mode():
        logits = torch.func.functional_call(task.module, model, (task.inputs,))
        return float(F.cross_entropy(logits.double(), task.labels))


def test_rays_run_from_the_mean_to_each_client(game):
    before = loss_of(game, game.round_.global_model)
    for x, heights in zip(RAYS, game.rays(), strict=True):
        expected = [before - loss_of(game, mean_and(game, client, x)) for client in range(N)]
        assert heights == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("weighting", ["uniform", "samples"])
def test_coalitions_and_rays_in_one_go_are_the_same_to_the_bit(tmp_path, weighting):
    game, rows = game_of(tmp_path, weighting), coalitions_of(np.arange(N), N)[1:]
    assert (np.ptp(game.weights) > 0) == (weighting == "samples")
    found, rays = game.with_rays(rows)
    assert found.tolist() == game(rows).tolist()
    assert rays.tolist() == game.rays().tolist()


def test_a_client_whose_loss_is_not_finite_is_named_and_nobody_else(game):
    models = {k: dict(model) for k, model in game.round_.client_models.items()}
    models[4] = {name: 1e38 * tensor.sign() for name, tensor in models[4].items()}
    broken = replace(game, round_=replace(game.round_, client_models=models))
    with pytest.raises(UtilityError, match=r"coalition \{4\}.*without '4' it is finite"):
        sampled_values(broken, rng=np.random.default_rng(0))


def test_slopes_are_those_of_the_rays(game):
    step = 1e-3
    ahead, behind = (np.array([loss_of(game, mean_and(game, k, x)) for k in range(N)]) for x in (step, -step))
    assert game.slopes() == pytest.approx((behind - ahead) / (2 * step), rel=0.02, abs=1e-4)


def test_bends_are_the_second_derivatives_of_the_loss(game):
    """Of a logistic regression the logits are linear, so q is the mixed second difference of the utility."""
    surrogate = measure_surrogate(game, 0.0, np.zeros(N))
    step = 0.02

    def loss(i, j, x, y):
        coefficients = np.full(N, (1 - x - y) / N)
        coefficients[i] += x
        coefficients[j] += y
        return loss_of(game, mix(game.round_.global_model, dict(game.round_.client_models), coefficients, 0.0))

    for i, j in ((0, 1), (2, 7)):
        mixed = loss(i, j, step, step) - loss(i, j, step, -step) - loss(i, j, -step, step) + loss(i, j, -step, -step)
        assert surrogate.bends[0][i, j] == pytest.approx(-mixed / (4 * step**2), rel=0.05, abs=0.02)
