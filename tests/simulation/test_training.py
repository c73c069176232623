"""Local training: batches, equal data, and gradients of several clients at once."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.func import functional_call, grad, vmap

from fedworth.errors import ModelError, UsageError
from fedworth.ledger.ledger import Model
from fedworth.simulation import training
from fedworth.simulation.datasets import Samples
from fedworth.simulation.models import ModelSpec, build_model, state_of
from fedworth.simulation.settings import SimulationSettings
from fedworth.simulation.training import ClientData, batches_of, client_data, gradients, is_perceptron, train_clients


def training_by(
    n_steps: int | None = 1, n_epochs: int | None = None, batch_size: int | None = None, rate: float = 0.1, **more: Any
) -> SimulationSettings:
    return SimulationSettings(n_steps=n_steps, n_epochs=n_epochs, batch_size=batch_size, rate=rate, **more)


LOCALS = {
    "one full step": training_by(),
    "three full steps": training_by(n_steps=3),
    "five steps in batches": training_by(n_steps=5, batch_size=8),
    "two epochs in batches": training_by(n_steps=None, n_epochs=2, batch_size=8),
    "two epochs on everything": training_by(n_steps=None, n_epochs=2),
    "momentum": training_by(n_steps=None, n_epochs=3, batch_size=8, momentum=0.9),
    "adam": training_by(n_steps=None, n_epochs=3, batch_size=8, optimizer="adam"),
    "proximal": training_by(n_steps=None, n_epochs=3, batch_size=8, proximal=0.5),
    "batches that some clients fill and others do not": training_by(n_steps=None, n_epochs=2, batch_size=25),
}
KINDS = {
    "logistic": ModelSpec("logistic", (1, 8, 8), 4, dtype="float64"),
    "mlp": ModelSpec("mlp", (1, 8, 8), 4, (6,), dtype="float64"),
    "cnn": ModelSpec("cnn", (1, 8, 8), 4, (2, 3, 4), dtype="float64"),
}


def client(seed: int, n_samples: int = 20, dtype: torch.dtype = torch.float64) -> ClientData:
    rng = np.random.default_rng(seed)
    features = rng.normal(size=(n_samples, 1, 8, 8)).astype(np.float32)
    return client_data(Samples(features, rng.integers(0, 4, n_samples)), dtype)


def train(
    kind: str,
    clients: Sequence[ClientData],
    local: SimulationSettings,
    *,
    trained: dict[str, Model] | None = None,
    round_index: int = 0,
) -> list[Model]:
    module, trained = build_model(KINDS[kind], seed=1), {} if trained is None else trained
    return train_clients(module, state_of(module), clients, local, round_index=round_index, trained=trained)


def by_hand(kind: str, data: ClientData, local: SimulationSettings) -> Model:
    """The slow obvious reference: a module and torch's optimizers; nothing shared with the code under test but the
    order of the batches."""
    module = build_model(KINDS[kind], seed=1)
    start = [parameter.detach().clone() for parameter in module.parameters()]
    optimizer: torch.optim.Optimizer = torch.optim.SGD(module.parameters(), local.rate, momentum=local.momentum)
    if local.optimizer == "adam":
        optimizer = torch.optim.Adam(module.parameters(), local.rate)
    for step in batches_of(local, len(data), 0):
        optimizer.zero_grad()
        far = sum(((now - then) ** 2).sum() for now, then in zip(module.parameters(), start, strict=True))
        outputs, labels = module(data.inputs[step]), data.labels[step]
        are_numbers = labels.is_floating_point()
        loss = F.mse_loss(outputs[:, 0], labels) if are_numbers else F.cross_entropy(outputs, labels)
        (loss + local.proximal / 2 * far).backward()
        optimizer.step()
    return state_of(module)


def same(a: Model, b: Model) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def assert_close(a: Model, b: Model) -> None:
    assert a.keys() == b.keys()
    for name in a:
        torch.testing.assert_close(a[name], b[name], rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("local", LOCALS.values(), ids=LOCALS.keys())
@pytest.mark.parametrize("kind", KINDS)
def test_identical_data_gives_identical_models_to_the_bit(kind, local):
    models = train(kind, [client(0), client(1), client(2, 33), client(0)], local)
    assert same(models[0], models[3])
    assert not same(models[0], models[1])


@pytest.mark.parametrize("local", LOCALS.values(), ids=LOCALS.keys())
@pytest.mark.parametrize("kind", KINDS)
def test_identical_data_gives_identical_models_when_one_of_the_two_is_absent(kind, local):
    trained: dict[str, Model] = {}
    taking_part = train(kind, [client(1), client(0)], local, trained=trained)
    absent = train(kind, [client(2), client(0), client(3), client(4, 35)], local, trained=trained)
    assert same(taking_part[1], absent[1])


@pytest.mark.parametrize("local", LOCALS.values(), ids=LOCALS.keys())
@pytest.mark.parametrize("kind", KINDS)
def test_side_by_side_equals_one_after_the_other(kind, local):
    """Of different sizes, so that samples and steps are padded; 90 is more than twice 20, so in a group of its own."""
    clients = [client(0), client(1, 33), client(2, 40), client(3, 90), client(4, 1)]
    for model, data in zip(train(kind, clients, local), clients, strict=True):
        assert_close(model, by_hand(kind, data, local))


@pytest.mark.parametrize("kind", ["logistic", "cnn"])
def test_numbers_are_learned_by_squared_error(kind):
    rng, local = np.random.default_rng(0), training_by(n_steps=3, batch_size=8)
    features, labels = (rng.normal(size=size).astype(np.float32) for size in ((20, 1, 8, 8), 20))
    data = client_data(Samples(features, labels), torch.float64)
    (model,) = train(kind, [data], local)
    assert_close(model, by_hand(kind, data, local))


@settings(max_examples=25)
@given(
    st.lists(st.integers(1, 40), min_size=1, max_size=6),
    st.integers(1, 12),
    st.one_of(st.none(), st.integers(1, 45)),
    st.booleans(),
)
def test_side_by_side_equals_one_after_the_other_for_any_sizes_and_batches(sizes, amount, batch_size, in_epochs):
    n_steps, n_epochs = (None, 1 + amount % 2) if in_epochs else (amount, None)
    local = training_by(n_steps, n_epochs, batch_size)
    clients = [client(seed, size) for seed, size in enumerate(sizes)]
    for model, data in zip(train("logistic", clients, local), clients, strict=True):
        assert_close(model, by_hand("logistic", data, local))


def test_equal_data_is_trained_once(monkeypatch):
    seen: list[int] = []
    alone = training._train_side_by_side

    def counting(module, start, group, orders, rate):
        seen.append(len(group))
        return alone(module, start, group, orders, rate)

    monkeypatch.setattr(training, "_train_side_by_side", counting)
    trained: dict[str, Model] = {}
    train("logistic", [client(0), client(0), client(1)], training_by(), trained=trained)
    train("logistic", [client(1), client(0)], training_by(), trained=trained)
    assert seen == [2]


def test_training_leaves_the_start_and_the_module_as_they_were():
    for kind in KINDS:
        module = build_model(KINDS[kind], seed=1)
        start, before = state_of(module), state_of(module)
        train_clients(module, start, [client(0)], training_by(rate=1.0), round_index=0, trained={})
        assert same(start, before)
        assert same(state_of(module), before)


def test_nobody_to_train_gives_no_models():
    assert train("logistic", [], training_by()) == []


def test_a_step_follows_the_gradient_of_the_mean_loss():
    """One step of logistic regression from zero, by the closed form: ∂F/∂b = mean(softmax − onehot)."""
    data = client(0)
    module = build_model(KINDS["logistic"])
    start = {name: torch.zeros_like(tensor) for name, tensor in state_of(module).items()}
    (model,) = train_clients(module, start, [data], training_by(rate=0.5), round_index=0, trained={})
    error = 0.25 - F.one_hot(data.labels, 4).double()  # (n_samples, n_classes)
    torch.testing.assert_close(model["1.bias"], -0.5 * error.mean(dim=0))
    torch.testing.assert_close(model["1.weight"], -0.5 * error.T @ data.inputs.flatten(1) / len(data))


def test_batches_depend_on_the_seed_and_the_round_alone():
    def order(seed=0, round_index=0):
        local = training_by(n_steps=4, batch_size=8, seed=seed)
        return np.concatenate(batches_of(local, 20, round_index)).tolist()

    assert order() == order()
    assert order() != order(seed=1)
    assert order() != order(round_index=1)


@given(st.integers(1, 40), st.integers(1, 40), st.integers(1, 3))
def test_an_epoch_shows_every_sample_once(n_samples, batch_size, n_epochs):
    steps = batches_of(training_by(None, n_epochs, batch_size), n_samples, 0)
    assert len(steps) == n_epochs * -(-n_samples // batch_size)
    assert all(1 <= len(step) <= batch_size for step in steps)
    shown = np.concatenate(steps).reshape(n_epochs, n_samples)
    assert (np.sort(shown, axis=1) == np.arange(n_samples)).all()


def test_epochs_are_shuffled_anew():
    first, second = np.split(np.concatenate(batches_of(training_by(None, 2, 4), 20, 0)), 2)
    assert first.tolist() != second.tolist()


@given(st.integers(1, 40), st.integers(1, 12), st.one_of(st.none(), st.integers(1, 50)))
def test_as_many_steps_are_taken_as_were_asked_for(n_samples, n_steps, batch_size):
    assert len(batches_of(training_by(n_steps, None, batch_size), n_samples, 0)) == n_steps


def test_equal_samples_have_equal_fingerprints_and_other_labels_another():
    a, b = client(0), client(0)
    assert a.fingerprint == b.fingerprint
    features = np.ones((3, 2), dtype=np.float32)
    one, other = (client_data(Samples(features, np.array([0, 1, k])), torch.float64) for k in (0, 1))
    assert one.fingerprint != other.fingerprint
    assert len(one) == 3


def test_training_that_diverges_is_refused_with_the_learning_rate_and_the_round():
    with pytest.raises(ModelError, match=r"round 7.*diverged: lower the learning rate, which was 1e\+308"):
        train("mlp", [client(0)], training_by(n_steps=6, rate=1e308), round_index=7)


@pytest.mark.parametrize(
    ("amounts", "message"),
    [
        ({"n_steps": None}, "None steps, None epochs; expected one of the two"),
        ({"n_epochs": 1}, "1 steps, 1 epochs; expected one of the two"),
        ({"n_steps": 0}, "0 steps"),
        ({"n_steps": None, "n_epochs": 0}, "0 epochs"),
        ({"batch_size": 0}, "batch size 0, expected 1 or more"),
    ],
)
def test_training_that_cannot_be_is_refused(amounts, message):
    with pytest.raises(UsageError, match=message):
        training_by(**amounts)


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
