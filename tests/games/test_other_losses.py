"""The surrogate of a round under other losses: its slopes and bends, and none where there are none."""

from dataclasses import replace

import numpy as np
import pytest
from torch import nn

from fedworth.coalitions import coalitions_of
from fedworth.games import RoundGame, sampled_values
from fedworth.games.surrogate import measure_surrogate
from fedworth.oracle.fast import FastOracle
from fedworth.oracle.oracle import LoopOracle, mix, quality
from fedworth.task.samples import widened
from fedworth.valuation.shapley import shapley_values
from tests.support.tasks import task_with
from tests.support.zoo import round_of

N = 6


def game_of(name, measure="loss", oracle=LoopOracle):
    return played(wide(task_with(name)), measure, oracle)


def wide(task):
    return replace(task, module=task.module.double(), inputs=widened(task.inputs))


def played(task, measure="loss", oracle=LoopOracle):
    return RoundGame(oracle(task, measure), round_of(task.module, N), np.arange(N), np.ones(N), "uniform")


def at(game, coefficients):
    """The quality of a mixture of the members' models."""
    model = mix(game.round_.global_model, dict(game.round_.client_models), coefficients, 0.0)
    return quality(game.oracle.task, game.criterion, model)


@pytest.mark.parametrize("name", ["squared-error", "binary", "cox", "tokens", "pairwise"])
def test_slopes_are_first_differences(name):
    game = game_of(name)
    step, mean = 1e-3, np.full(N, 1 / N)
    ahead, behind = (np.array([at(game, (1 - x) * mean + x * np.eye(N)[k]) for k in range(N)]) for x in (step, -step))
    assert game.slopes() == pytest.approx((ahead - behind) / (2 * step), rel=1e-3, abs=1e-6)


def test_bends_of_a_linear_model_are_mixed_second_differences():
    game = played(wide(replace(task_with("binary"), module=nn.Linear(6, 1))))
    bends, step = measure_surrogate(game, 0.0, np.zeros(N)).bends[0], 1e-3

    def moved(x, y):
        return at(game, np.full(N, (1 - x - y) / N) + x * np.eye(N)[0] + y * np.eye(N)[3])

    mixed = moved(step, step) - moved(step, -step) - moved(-step, step) + moved(-step, -step)
    assert bends[0, 3] == pytest.approx(mixed / (4 * step**2), rel=1e-3)
    assert not np.diag(bends).any()


@pytest.mark.parametrize(("name", "measure"), [("binary", "auc"), ("hinge", "loss"), ("cross-entropy", "accuracy")])
def test_what_has_no_slope_is_estimated_without_one(name, measure):
    game = game_of(name, measure)
    assert game.slopes() is None
    surrogate = measure_surrogate(game, 0.0, np.zeros(N))
    assert not surrogate.bends[0].any()
    found = sampled_values(game, budget=45, rng=np.random.default_rng(0))
    assert np.isfinite(found.values).all()


@pytest.mark.parametrize("name", ["squared-error", "cox"])
def test_few_evaluations_come_near_the_exact_values(name):
    game = game_of(name, oracle=FastOracle)
    true = shapley_values(np.concatenate([[0.0], game(coalitions_of(np.arange(N), N)[1:])]))
    found = sampled_values(game, budget=45, rng=np.random.default_rng(1)).values
    assert np.linalg.norm(found - true) < 0.25 * np.linalg.norm(true - true.mean())
