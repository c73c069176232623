"""Handwritten digits among a few sites: the model, each site's part, and the server's test set."""

import torch
from sklearn.datasets import load_digits
from torch import nn

from fedworth import Task

N_TEST = 500
Part = tuple[torch.Tensor, torch.Tensor]


def build() -> nn.Module:
    """Logistic regression on 8×8 images."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 10))


def digits() -> Part:
    """All images, shuffled once and for all."""
    images, labels = load_digits(return_X_y=True)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    return torch.tensor(images / 16, dtype=torch.float32)[order], torch.tensor(labels)[order]


def part(index: int, n_sites: int) -> Part:
    """One site's images; later sites have more."""
    inputs, labels = (tensor[N_TEST:] for tensor in digits())
    share = len(labels) // (n_sites * (n_sites + 1) // 2)
    start = share * index * (index + 1) // 2
    return inputs[start : start + share * (index + 1)], labels[start : start + share * (index + 1)]


def train(model: nn.Module, data: Part, learning_rate: float = 0.5, n_steps: int = 5) -> float:
    """A few steps of gradient descent on all the site's images; the last loss."""
    optimizer = torch.optim.SGD(model.parameters(), lr=learning_rate)
    for _ in range(n_steps):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(data[0]), data[1])
        loss.backward()
        optimizer.step()
    return float(loss.detach())


def task() -> Task:
    """What the server needs to value the ledger: `fedworth observe LEDGER --task task.py:task`."""
    inputs, labels = (tensor[:N_TEST] for tensor in digits())
    return Task(build(), inputs, labels)
