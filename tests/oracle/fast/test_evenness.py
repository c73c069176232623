"""Where one number is far larger than the others, coalitions with it are measured in floats, not in whole units."""

import copy

import numpy as np
import pytest
import torch
from torch import nn

from fedworth.coalitions import coalitions_of
from fedworth.games.observe import observe
from fedworth.ledger.ledger import Round
from fedworth.oracle.fast.kernels.evenness import LOGITS, UNITS, uneven_layers, uneven_outputs
from fedworth.oracle.fast.oracle import FastOracle
from fedworth.oracle.weighting import mixtures
from fedworth.simulation.settings import SimulationSettings
from fedworth.simulation.simulate import simulate
from fedworth.simulation.simulate import task_of as simulated_task
from fedworth.task.task import Task
from tests.support.tasks import Wide
from tests.support.zoo import round_of

N, N_SAMPLES, N_CLASSES = 4, 300, 5
WITH_CLIENT_2 = coalitions_of(np.arange(N), N)[1:, 2]


class Masked(nn.Module):
    """Logits of classes that are not in the task are masked, as in class-incremental learning."""

    def __init__(self, mask):
        super().__init__()
        self.layer, self.mask = nn.Linear(24, 8), mask

    def forward(self, x):
        return self.layer(x).masked_fill(torch.arange(8) >= N_CLASSES, self.mask)


def task_of(module):
    generator = torch.Generator().manual_seed(0)
    samples = torch.randn(N_SAMPLES, 24, generator=generator)
    return Task(module.eval(), samples, torch.randint(0, N_CLASSES, (N_SAMPLES,), generator=generator))


def wanted(weighting="uniform"):
    weights = np.full(N, 0.25 if weighting == "fixed" else 1.0)
    return mixtures(coalitions_of(np.arange(N), N)[1:], weights, weighting)


def network(activation):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(24, 16), activation, nn.Linear(16, N_CLASSES))


def changed(round_, name, place, number):
    """The round with one number of client 2's model set."""
    clients = dict(round_.client_models)
    tensor = clients[2][name].clone()
    tensor[place] = number
    clients[2] = {**clients[2], name: tensor}
    return Round(round_.entry, round_.global_model, clients, {})


@pytest.mark.parametrize("mask", [-1e4, -1e9, float(torch.finfo(torch.float32).min)])
@pytest.mark.parametrize("weighting", ["uniform", "fixed"])
def test_masked_logits_do_not_blur_the_others(mask, weighting):
    torch.manual_seed(0)
    task = task_of(Masked(mask))
    round_ = round_of(task.module, N)
    oracle = FastOracle(task)
    found = oracle.utilities(round_, wanted(weighting)).sum(axis=1)
    assert np.abs(found - Wide(task).utilities(round_, wanted(weighting), "loss")).max() < 1e-7
    assert "graph: " in oracle.describe()
    assert "too uneven for whole units" in oracle.describe()


@pytest.mark.parametrize(
    ("activation", "name", "place", "number"),
    [
        (nn.Tanh(), "0.weight", (0, 0), 1e4),
        (nn.Sigmoid(), "0.weight", (0, 0), 1e8),
        (nn.ReLU(), "0.bias", 0, -1e7),
        (nn.ReLU(), "2.bias", 0, -1e6),
        (nn.Tanh(), "2.weight", (0, 0), -1e3),
    ],
)
def test_one_large_number_of_a_client_blurs_nobody(activation, name, place, number):
    """Also where it comes after the first round, in which the route was checked; others' coalitions keep their bits."""
    task = task_of(network(activation))
    usual = round_of(task.module, N)
    odd = changed(usual, name, place, number)
    oracle = FastOracle(task)
    before, after = oracle.utilities(usual, wanted()).sum(axis=1), oracle.utilities(odd, wanted()).sum(axis=1)
    exact = Wide(task).utilities(odd, wanted(), "loss")
    assert np.abs(after - exact).max() < 1e-7 * max(1.0, float(np.ptp(exact)))
    assert np.array_equal(before[~WITH_CLIENT_2], after[~WITH_CLIENT_2])
    assert "graph: " in oracle.describe()
    assert "; 8 of them again by the next, as numbers are too uneven for whole units" in oracle.describe()


@pytest.mark.parametrize(("name", "place", "times"), [("0.weight", (0, 0), 1000), ("2.weight", (0, 0), 400)])
def test_up_to_the_limit_losses_keep_six_digits(name, place, times):
    task = task_of(network(nn.Tanh()))
    round_ = round_of(task.module, N)
    number = times * float(round_.client_models[2][name].abs().median())
    odd, oracle = changed(round_, name, place, number), FastOracle(task)
    found = oracle.utilities(odd, wanted()).sum(axis=1)
    exact = Wide(task).utilities(odd, wanted(), "loss")
    assert "graph" not in oracle.describe()
    assert np.abs(found - exact).max() < 1e-6 * max(1.0, float(np.ptp(exact)))


def test_clients_with_two_classes_each_are_even_enough(tmp_path):
    settings = SimulationSettings(partition="two-class", model="mlp", n_rounds=5, with_truth=False)
    ledger = simulate(settings, tmp_path / "ledger")
    oracle = FastOracle(simulated_task(ledger))
    observe(ledger, oracle)
    assert oracle.describe().startswith("kernel: ")
    assert "uneven" not in oracle.describe()


def test_an_outlying_sample_blurs_none_of_the_others():
    task = task_of(network(nn.Tanh()))
    inputs = task.inputs.clone()
    inputs[7] = 1e6
    odd = Task(copy.deepcopy(task.module), inputs, task.labels)
    round_ = round_of(odd.module, N)
    found = FastOracle(odd).utilities(round_, wanted()).sum(axis=1)
    assert np.abs(found - Wide(odd).utilities(round_, wanted(), "loss")).max() < 1e-7


def test_what_is_zero_or_even_is_not_uneven():
    rng = np.random.default_rng(0)
    tiles = rng.normal(size=(3, 2, 10, 32)).astype(np.float32)
    tiles[0] = 0
    tiles[1, :, :9] = 0
    extremes = np.stack([tiles.min(axis=(1, 2, 3)), tiles.max(axis=(1, 2, 3))], axis=1)
    assert not uneven_outputs(tiles, extremes, LOGITS).any()
    tiles[2, 1, 4, 5] = -1e3
    extremes[2, 0] = -1e3
    assert uneven_outputs(tiles, extremes, UNITS).tolist() == [False, False, True]
    nothing = np.zeros((3, 4, 5), np.float32), np.zeros((3, 4), np.float32)
    assert not uneven_layers([nothing], 3).any()
