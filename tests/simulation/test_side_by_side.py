"""Clients' gradients side by side are those of torch.func to the bit."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call, grad, vmap

from fedworth.simulation.models import ModelSpec, build_model, state_of
from fedworth.simulation.training import gradients, is_perceptron


def by_torch_func(module, states, inputs, labels, weights):
    def loss(state, inputs, labels, weights):
        found = F.cross_entropy(functional_call(module, state, (inputs,)), labels, reduction="none")
        return (found * weights).sum()

    return vmap(grad(loss))(states, inputs, labels, weights)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("hidden", [(), (33,), (20, 7)])
@pytest.mark.parametrize(("n_clients", "n_samples"), [(1, 1), (3, 2), (5, 37), (2, 120)])
def test_the_gradients_are_those_of_torch_func_to_the_bit(dtype, hidden, n_clients, n_samples):
    torch.manual_seed(n_samples)
    module = build_model(ModelSpec("mlp" if hidden else "logistic", (1, 8, 8), 10, hidden, dtype=dtype), seed=1)
    states = {
        k: torch.stack([t] * n_clients) + 0.1 * torch.randn(n_clients, *t.shape) for k, t in state_of(module).items()
    }
    kind = next(iter(module.parameters())).dtype
    states = {name: tensor.to(kind) for name, tensor in states.items()}
    inputs = torch.randn(n_clients, n_samples, 1, 8, 8, dtype=kind)
    labels = torch.randint(0, 10, (n_clients, n_samples))
    weights = torch.rand(n_clients, n_samples, dtype=kind)
    weights[:, n_samples // 2 + 1 :] = 0.0
    expected = by_torch_func(module, states, inputs, labels, weights)
    found = dict(gradients(module, states, inputs, labels, weights))
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)


def test_only_layers_known_here_make_a_perceptron():
    assert is_perceptron(nn.Sequential(nn.Flatten(), nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2)))
    assert not is_perceptron(nn.Sequential(nn.Flatten(), nn.Linear(4, 3), nn.Tanh()))
    assert not is_perceptron(nn.Sequential(nn.Linear(4, 3)))
    assert not is_perceptron(nn.Sequential(nn.Flatten(2), nn.Linear(4, 3)))
    assert not is_perceptron(nn.Linear(4, 3))
    assert not is_perceptron(nn.Sequential())
