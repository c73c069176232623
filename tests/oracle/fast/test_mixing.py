"""Mixed models: what a round's first statistics lose, and that whoever moved nothing adds nothing."""

import numpy as np
import pytest
import torch
from torch import nn

from fedworth.coalitions import coalitions_of
from fedworth.ledger.ledger import Round
from fedworth.oracle.fast.mixing import FEW, combined, round_models
from fedworth.oracle.fast.oracle import FastOracle
from fedworth.oracle.weighting import mixtures
from fedworth.task.task import Task
from tests.support.tasks import Wide
from tests.support.zoo import round_of

N = 4


def first_round(module, size):
    """Fresh statistics in the global model, those of features of this size in the clients'."""
    usual = round_of(module, N)
    clients = {k: dict(model) for k, model in usual.client_models.items()}
    for k, model in clients.items():
        model["0.running_var"] = torch.full((8,), size**2) * (1 + 0.1 * k)
        model["0.running_mean"] = torch.full((8,), 0.1 * size * k)
    return Round(usual.entry, usual.global_model, clients, {})


@pytest.mark.parametrize("size", [1.0, 1e-2, 1e-3])
def test_tiny_variances_keep_their_bits_beside_fresh_ones(size):
    torch.manual_seed(0)
    module = nn.Sequential(nn.BatchNorm1d(8, eps=1e-12), nn.Linear(8, 6), nn.Tanh(), nn.Linear(6, 3)).eval()
    samples = size * torch.randn(200, 8)
    task = Task(module, samples, torch.randint(0, 3, (200,)))
    wanted = mixtures(coalitions_of(np.arange(N), N)[1:], np.ones(N), "uniform")
    round_ = first_round(module, size)
    error = FastOracle(task).utilities(round_, wanted).sum(axis=1) - Wide(task).utilities(round_, wanted, "loss")
    assert np.abs(error).max() < 1e-7


def test_a_mixture_has_the_dtypes_of_the_models_and_of_who_moved_nothing_it_is_the_model_itself():
    origin = {"a": torch.tensor([1.0, 1e-8, 3.3]), "b": torch.randn(2, 3), "c": torch.randn(4, dtype=torch.float64)}
    moved = {name: tensor + 0.5 for name, tensor in origin.items()}
    mixed = round_models(origin, [origin, moved], set(origin), images=False).mixed(np.array([[1.0, 0.0], [0.5, 0.5]]))
    for name, tensor in origin.items():
        assert mixed[name].dtype == tensor.dtype
        assert torch.equal(mixed[name][0], tensor)
        assert torch.allclose(mixed[name][1], tensor + 0.25)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_few_mixtures_are_the_same_to_the_bit_as_many(dtype):
    generator = torch.Generator().manual_seed(0)
    origin = torch.randn(7, 300, generator=generator, dtype=dtype)
    differences = torch.randn(5, 7, 300, generator=generator, dtype=dtype)
    rows = np.random.default_rng(0).dirichlet(np.ones(5), 3 * FEW)
    rows[::2, 1] = 0
    together = combined(rows, origin, differences)
    apart = [combined(rows[first : first + FEW], origin, differences) for first in range(0, len(rows), FEW)]
    assert torch.equal(together, torch.cat(apart))
