"""Handwritten digits among a few clients: the model, each client's part, and the server's test set."""

import torch
from sklearn.datasets import load_digits
from torch import nn

from fedworth import Task

N_TEST = 500
Part = tuple[torch.Tensor, torch.Tensor]


def build() -> nn.Module:
    """A small network; its batch norm counts batches in an integer, as many real models do."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 10))


def digits() -> Part:
    """All images, shuffled once and for all."""
    images, labels = load_digits(return_X_y=True)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    return torch.tensor(images / 16, dtype=torch.float32)[order], torch.tensor(labels)[order]


def part(index: int, n_clients: int) -> Part:
    """One client's images: client k has k + 1 shares, so that sample counts differ."""
    inputs, labels = (tensor[N_TEST:] for tensor in digits())
    n_shares = n_clients * (n_clients + 1) // 2
    share = len(labels) // n_shares
    start = share * index * (index + 1) // 2
    stop = start + share * (index + 1)
    return inputs[start:stop], labels[start:stop]


def train(model: nn.Module, data: Part, learning_rate: float, n_steps: int = 5) -> float:
    """A few steps of gradient descent on all the client's images; the last loss."""
    inputs, labels = data
    optimizer = torch.optim.SGD(model.parameters(), lr=learning_rate)
    model.train()
    for _ in range(n_steps):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(inputs), labels)
        loss.backward()
        optimizer.step()
    return float(loss.detach())


def task() -> Task:
    """What the server needs to value the ledger: `fedworth observe LEDGER --task handwriting/task.py:task`."""
    inputs, labels = (tensor[:N_TEST] for tensor in digits())
    return Task(build(), inputs, labels)
