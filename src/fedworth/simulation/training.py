"""Local training: every client of a round starts at the global model and takes its steps.

w_i ← w_i − η^t ∇F_i(w_i) (eq. local_step), F_i the mean cross-entropy (or squared error, if labels are numbers) of the
client's samples or of a batch. Momentum, Adam and FedProx change the step, see `LocalSteps`. Clients whose model is a
plain perceptron train side by side in one computation; others one after the other, which is faster for convolutions on
a CPU.

Identical data must give identical models, to the bit. So the order of batches depends on the seed, the round and the
number of samples, never on the client, and equal data sets are trained once.
"""

import hashlib
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from fedworth.arrays import Indices, stream
from fedworth.errors import ModelError
from fedworth.ledger.model import Model, check_finite
from fedworth.simulation.datasets import Samples
from fedworth.simulation.models import state_of
from fedworth.simulation.settings import SimulationSettings
from fedworth.task.modules import copied

ADAM_MEAN, ADAM_SQUARE, ADAM_EPSILON = 0.9, 0.999, 1e-8


@dataclass(frozen=True)
class ClientData:
    """One client's samples as tensors; equal samples have equal fingerprints."""

    inputs: torch.Tensor  # (n_samples, ...)
    labels: torch.Tensor  # (n_samples,)
    fingerprint: str

    def __len__(self) -> int:
        return len(self.labels)


def client_data(samples: Samples, dtype: torch.dtype) -> ClientData:
    digest = hashlib.sha256(samples.features.tobytes() + samples.labels.tobytes())
    inputs, labels = torch.from_numpy(samples.features).to(dtype), torch.from_numpy(samples.labels)
    return ClientData(inputs, labels.to(dtype) if samples.has_numbers else labels, digest.hexdigest())


def batches_of(settings: SimulationSettings, n_samples: int, round_index: int) -> list[Indices]:
    """The samples of each step, in order."""
    size = settings.batch_size or n_samples
    n_per_epoch = math.ceil(n_samples / size)
    n_steps = settings.n_steps or (settings.n_epochs or 0) * n_per_epoch
    if size >= n_samples:
        return [np.arange(n_samples)] * n_steps
    steps: list[Indices] = []
    for epoch in range(math.ceil(n_steps / n_per_epoch)):
        order = stream(settings.seed_of_training, "batches", round_index, epoch).permutation(n_samples)
        steps += np.split(order, range(size, n_samples, size))
    return steps[:n_steps]


def train_clients(
    module: nn.Module,
    start: Model,
    clients: Sequence[ClientData],
    settings: SimulationSettings,
    *,
    round_index: int,
    trained: dict[str, Model],
) -> list[Model]:
    """Each client's model after the round's local training, in the order given.

    `trained` holds the models of this round by the fingerprint of their data, and grows. Equal data is not trained
    again, since the same sums in a batch of another size may be rounded differently.
    """
    distinct = {c.fingerprint: c for c in clients if c.fingerprint not in trained}
    orders = {n: batches_of(settings, n, round_index) for n in {len(c) for c in clients}}
    rate = settings.learning_rate().at(round_index)
    if is_perceptron(module):
        for group in _of_similar_size(list(distinct.values())):
            steps = LocalSteps(settings, rate, start)
            models = _train_side_by_side(module, start, group, [orders[len(c)] for c in group], steps)
            trained.update(zip((client.fingerprint for client in group), models, strict=True))
    else:
        for fingerprint, client in distinct.items():
            steps = LocalSteps(settings, rate, start)
            trained[fingerprint] = _train_alone(module, start, client, orders[len(client)], steps)
    for model in trained.values():
        refuse_diverged(model, f"local training, round {round_index}", rate)
    return [trained[client.fingerprint] for client in clients]


def refuse_diverged(model: Model, where: str, rate: float) -> None:
    """Refuse a model whose training at this learning rate diverged."""
    try:
        check_finite(model, where)
    except ModelError as error:
        raise ModelError(f"{error}; it diverged: lower the learning rate, which was {rate}") from None


class LocalSteps:
    """The step from a tensor and its gradient to the next: gradient descent, with momentum, or Adam.

        gradient descent   w ← w − η g                            g = ∇F_i + μ (w − w^t), μ of FedProx
        momentum           m ← β m + g,  w ← w − η m
        Adam               m, v ← means of g and g² with memory .9 and .999, w ← w − η m̂ / (√v̂ + 1e-8)

    m̂ and v̂ are m and v over 1 − .9^k and 1 − .999^k in step k (Kingma and Ba 2015). FedProx (Li et al. 2018) adds
    μ/2 · ‖w − w^t‖² to the loss, which keeps local models near the global one. Momentum and Adam start anew in every
    round, as if clients kept nothing between rounds.
    """

    def __init__(self, settings: SimulationSettings, rate: float, start: Model) -> None:
        self.settings, self.rate, self.start = settings, rate, start
        self.means: Model = {}
        self.squares: Model = {}
        self.n_steps = 0  # the number of the present step; the caller counts

    def updated(self, name: str, tensor: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
        """The tensor of this name after the step."""
        if self.settings.proximal:
            gradient = gradient + self.settings.proximal * (tensor - self.start[name])
        if self.settings.optimizer == "adam":
            mean = self.means[name] = ADAM_MEAN * self.means.get(name, 0) + (1 - ADAM_MEAN) * gradient
            square = self.squares[name] = ADAM_SQUARE * self.squares.get(name, 0) + (1 - ADAM_SQUARE) * gradient**2
            root = (square / (1 - ADAM_SQUARE**self.n_steps)).sqrt()
            gradient = mean / (1 - ADAM_MEAN**self.n_steps) / (root + ADAM_EPSILON)
        elif self.settings.momentum:
            gradient = self.means[name] = self.settings.momentum * self.means.get(name, 0) + gradient
        return tensor - self.rate * gradient


def _train_alone(
    module: nn.Module, start: Model, client: ClientData, batches: list[Indices], steps: LocalSteps
) -> Model:
    """Gradient descent of one client, for any module."""
    local = copied(module)
    local.load_state_dict(start)
    local.train()
    for batch in batches:
        local.zero_grad()
        steps.n_steps += 1
        _losses(local(client.inputs[batch]), client.labels[batch]).mean().backward()
        with torch.no_grad():
            for name, parameter in local.named_parameters():
                if parameter.grad is not None:
                    parameter.copy_(steps.updated(name, parameter, parameter.grad))
    return state_of(local)


def _train_side_by_side(
    module: nn.Module, start: Model, group: Sequence[ClientData], orders: list[list[Indices]], steps: LocalSteps
) -> list[Model]:
    """Gradient descent of all clients of a group at once; shorter batches are padded with weight 0.

    A client that has taken all its steps stays where it is: momentum would move it on without a gradient.
    """
    inputs = nn.utils.rnn.pad_sequence([c.inputs for c in group], batch_first=True)  # (n_clients, n_most, ...)
    labels = nn.utils.rnn.pad_sequence([c.labels for c in group], batch_first=True)  # (n_clients, n_most)
    states = {name: torch.stack([tensor] * len(group)) for name, tensor in start.items()}
    rows = torch.arange(len(group))[:, None]
    whole = all(len(batch) == len(client) for client, order in zip(group, orders, strict=True) for batch in order)
    for indices, weights in _padded_steps(orders, inputs.dtype):
        steps.n_steps += 1
        is_training = weights.any(dim=1)  # (n_clients,)
        batch = (inputs, labels) if whole else (inputs[rows, indices], labels[rows, indices])
        for name, gradient in gradients(module, states, *batch, weights):
            before, after = states[name], steps.updated(name, states[name], gradient)
            states[name] = torch.where(is_training.view(-1, *[1] * (before.ndim - 1)), after, before)
    return [{name: tensor[row].clone() for name, tensor in states.items()} for row in range(len(group))]


def _padded_steps(orders: list[list[Indices]], dtype: torch.dtype) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """For each step, the samples of every client and their weights in the mean; 0 where there is none."""
    n_steps = max(len(steps) for steps in orders)
    size = max(len(step) for steps in orders for step in steps)
    for number in range(n_steps):
        indices = torch.zeros(len(orders), size, dtype=torch.int64)
        weights = torch.zeros(len(orders), size, dtype=dtype)
        for row, steps in enumerate(orders):
            if number < len(steps):
                n = len(steps[number])
                indices[row, :n] = torch.from_numpy(steps[number])
                weights[row, :n] = 1 / n
        yield indices, weights


def _of_similar_size(clients: list[ClientData]) -> Iterator[list[ClientData]]:
    """Groups whose largest member is at most twice the smallest, so that padding costs little."""
    group: list[ClientData] = []
    for client in sorted(clients, key=lambda c: (len(c), c.fingerprint)):
        if group and len(client) > 2 * len(group[0]):
            yield group
            group = []
        group.append(client)
    if group:
        yield group


def is_perceptron(module: nn.Module) -> bool:
    """Whether a module flattens its samples, and then has only linear layers and ReLUs."""
    if not isinstance(module, nn.Sequential) or not len(module) or type(module[0]) is not nn.Flatten:
        return False
    flattens = [layer for layer in module if isinstance(layer, nn.Flatten)]
    is_usual = all((layer.start_dim, layer.end_dim) == (1, -1) for layer in flattens)
    return is_usual and all(type(layer) in (nn.Flatten, nn.Linear, nn.ReLU) for layer in module)


def gradients(
    module: nn.Module, states: Model, inputs: torch.Tensor, labels: torch.Tensor, weights: torch.Tensor
) -> Iterator[tuple[str, torch.Tensor]]:
    """Each tensor's gradient of Σ weight · loss for several clients at once, one row per client.

    The result is that of `torch.func.vmap(grad(…))` to the bit. The first call of `vmap` loads torch's compiler, which
    takes two seconds.
    """
    leaves = {name: tensor.detach().requires_grad_() for name, tensor in states.items()}
    with torch.enable_grad():
        values = inputs.flatten(2)  # (n_clients, n_samples, n_features)
        for name, layer in module.named_children():
            if isinstance(layer, nn.ReLU):
                values = values.relu()
            elif isinstance(layer, nn.Linear):
                values = _products(values, leaves[f"{name}.weight"])
                values = values if layer.bias is None else values + leaves[f"{name}.bias"][:, None]
        loss = (_losses(values, labels) * weights).sum()
    return zip(leaves, torch.autograd.grad(loss, list(leaves.values())), strict=True)


def _losses(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """The loss of each sample: cross-entropy of its class, or the squared error if labels are numbers."""
    if labels.is_floating_point():
        return (outputs[..., 0] - labels) ** 2
    return -torch.log_softmax(outputs, -1).gather(-1, labels[..., None])[..., 0]


class _Products(torch.autograd.Function):
    """x Wᵀ of each client.

    Its gradient by W is computed as gᵀ x, as for one client. Torch would compute (xᵀ g)ᵀ, which rounds differently.
    """

    @staticmethod
    def forward(ctx: Any, inputs: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(inputs, weights)
        return torch.bmm(inputs, weights.mT)

    @staticmethod
    def backward(ctx: Any, *outer: torch.Tensor) -> tuple[torch.Tensor | None, torch.Tensor]:
        inputs, weights = ctx.saved_tensors
        (gradient,) = outer
        of_inputs = torch.bmm(gradient, weights) if ctx.needs_input_grad[0] else None
        return of_inputs, torch.bmm(gradient.mT, inputs)


_products: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] = _Products.apply
