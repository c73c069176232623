"""Local training: every client of a round starts at the global model and takes its steps.

w_i ← w_i − η^t ∇F_i(w_i) (eq. local_step), F_i the mean cross-entropy of the client's samples or of a batch.
Clients whose model is a plain perceptron train side by side in one computation (`side_by_side`); others one
after the other, which measured faster for convolutions on a CPU.

Identical data must give identical models, to the bit: the order of batches depends on the seed, the round
and the number of samples, never on the client; and equal data sets are trained once.
"""

import hashlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from fedworth.arrays import Indices, stream
from fedworth.errors import ModelError
from fedworth.ledger.ledger import Model, check_finite
from fedworth.simulation.data.dataset import Samples
from fedworth.simulation.local import LocalTraining
from fedworth.simulation.models import state_of
from fedworth.simulation.side_by_side import is_perceptron, slopes
from fedworth.task.copies import copied


@dataclass(frozen=True)
class ClientData:
    """One client's samples, ready for torch; equal samples have equal fingerprints."""

    inputs: torch.Tensor  # (n_samples, ...)
    labels: torch.Tensor  # (n_samples,)
    fingerprint: str

    def __len__(self) -> int:
        return len(self.labels)


def client_data(samples: Samples, dtype: torch.dtype) -> ClientData:
    """A client's samples as tensors."""
    digest = hashlib.sha256(samples.features.tobytes() + samples.labels.tobytes())
    inputs = torch.from_numpy(samples.features).to(dtype)
    return ClientData(inputs, torch.from_numpy(samples.labels), digest.hexdigest())


def batches_of(local: LocalTraining, n_samples: int, *, seed: int, round_index: int) -> list[Indices]:
    """The samples of each step, in order."""
    size = local.batch_size or n_samples
    n_per_epoch = math.ceil(n_samples / size)
    n_steps = local.n_steps or (local.n_epochs or 0) * n_per_epoch
    if size >= n_samples:
        return [np.arange(n_samples)] * n_steps
    steps: list[Indices] = []
    for epoch in range(math.ceil(n_steps / n_per_epoch)):
        order = stream(seed, "batches", round_index, epoch).permutation(n_samples)
        steps += np.split(order, range(size, n_samples, size))
    return steps[:n_steps]


def train_clients(
    module: nn.Module,
    start: Model,
    clients: Sequence[ClientData],
    local: LocalTraining,
    *,
    learning_rate: float,
    seed: int,
    round_index: int,
    trained: dict[str, Model],
) -> list[Model]:
    """Each client's model after the round's local training, in the order given.

    `trained` holds the models of this round by the fingerprint of their data, and grows: equal data is not
    trained again, since the same sums in a batch of another size may round otherwise.
    """
    distinct = {c.fingerprint: c for c in clients if c.fingerprint not in trained}
    orders = {n: batches_of(local, n, seed=seed, round_index=round_index) for n in {len(c) for c in clients}}
    if is_perceptron(module):
        for group in _of_like_size(list(distinct.values())):
            models = _train_side_by_side(module, start, group, [orders[len(c)] for c in group], learning_rate)
            trained.update(zip((client.fingerprint for client in group), models, strict=True))
    else:
        for fingerprint, client in distinct.items():
            trained[fingerprint] = _train_alone(module, start, client, orders[len(client)], learning_rate)
    _refuse_divergence(trained, learning_rate, round_index)
    return [trained[client.fingerprint] for client in clients]


def _train_side_by_side(
    module: nn.Module, start: Model, group: Sequence[ClientData], orders: list[list[Indices]], rate: float
) -> list[Model]:
    """Gradient descent of all clients of a group at once; shorter batches are padded with weight 0."""
    inputs = nn.utils.rnn.pad_sequence([c.inputs for c in group], batch_first=True)  # (n_clients, n_most, ...)
    labels = nn.utils.rnn.pad_sequence([c.labels for c in group], batch_first=True)  # (n_clients, n_most)
    states = {name: torch.stack([tensor] * len(group)) for name, tensor in start.items()}
    rows = torch.arange(len(group))[:, None]
    whole = all(len(step) == len(client) for client, steps in zip(group, orders, strict=True) for step in steps)
    for indices, weights in _padded_steps(orders, inputs.dtype):
        batch = (inputs, labels) if whole else (inputs[rows, indices], labels[rows, indices])
        for name, slope in slopes(module, states, *batch, weights):
            states[name] = states[name] - rate * slope
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


def _train_alone(module: nn.Module, start: Model, client: ClientData, steps: list[Indices], rate: float) -> Model:
    """Gradient descent of one client, for any module."""
    local = copied(module)
    local.load_state_dict(start)
    local.train()
    for step in steps:
        local.zero_grad()
        F.cross_entropy(local(client.inputs[step]), client.labels[step]).backward()
        with torch.no_grad():
            for parameter in local.parameters():
                if parameter.grad is not None:
                    parameter.sub_(rate * parameter.grad)
    return state_of(local)


def _of_like_size(clients: list[ClientData]) -> Iterator[list[ClientData]]:
    """Groups whose largest member is at most twice the smallest, so that padding costs little."""
    group: list[ClientData] = []
    for client in sorted(clients, key=lambda c: (len(c), c.fingerprint)):
        if group and len(client) > 2 * len(group[0]):
            yield group
            group = []
        group.append(client)
    if group:
        yield group


def _refuse_divergence(trained: dict[str, Model], rate: float, round_index: int) -> None:
    for model in trained.values():
        try:
            check_finite(model, f"local training, round {round_index}")
        except ModelError as error:
            raise ModelError(f"{error}; it diverged: lower the learning rate, which was {rate}") from None
