"""Oracles and the sampled estimator work on the task's device, whatever it is."""

import numpy as np
import pytest
import torch
from torch import nn

from fedworth.games.ensemble import ensemble_shapley
from fedworth.games.game import ModelGame
from fedworth.oracle.fast import FastOracle
from fedworth.oracle.oracle import LoopOracle
from fedworth.task.task import Task
from tests.support.devices import DEVICE, Devices, Pretended
from tests.support.zoo import round_of

N, N_SAMPLES = 6, 600


def chain() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 3))


def normalized() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 12), nn.BatchNorm1d(12), nn.ReLU(), nn.Linear(12, 3))


def game_of(module, oracle, device=None):
    torch.manual_seed(1)
    blocks = np.arange(N_SAMPLES) % 4
    task = Task(module, torch.randn(N_SAMPLES, 6), torch.randint(0, 3, (N_SAMPLES,)), blocks=blocks)
    oracle = oracle(task if device is None else task.to(device), also=("accuracy",))
    return ModelGame(oracle, round_of(module, N, size=0.5), np.arange(N), np.ones(N), "uniform")


@pytest.mark.parametrize("oracle", [LoopOracle, FastOracle])
@pytest.mark.parametrize("make", [chain, normalized])
def test_models_are_evaluated_on_the_device_of_the_task(make, oracle):
    torch.manual_seed(0)
    module, rows = make().eval(), np.tri(N, dtype=bool)
    usual = game_of(module, oracle)
    expected = usual.columns(rows), ensemble_shapley(usual, np.random.default_rng(0)).shapley.values
    with Devices():
        there = game_of(module, oracle, DEVICE)
        assert isinstance(there.oracle.task.labels, Pretended)
        found = there.columns(rows), ensemble_shapley(there, np.random.default_rng(0)).shapley.values
    for one, other in zip(found, expected, strict=True):
        assert one == pytest.approx(other, abs=1e-6)


def test_tensors_of_two_devices_do_not_mix():
    with Devices(), pytest.raises(RuntimeError, match="on the CPU and on meta"):
        torch.ones(2).to(DEVICE) + torch.ones(2)


def test_a_model_is_taken_to_the_device_once():
    module = chain().eval()
    with Devices() as devices:
        game = game_of(module, LoopOracle, DEVICE)
        list(game.outputs(np.eye(N, dtype=bool)[:1], [np.arange(N_SAMPLES)]))
        before = devices.n_moved
        list(game.outputs(np.eye(N, dtype=bool)[:2], [np.arange(N_SAMPLES)] * 2))  # of 600 samples, in three batches
        assert devices.n_moved - before < 20  # 2 models of 4 tensors, and the checks before them; by batch 32
