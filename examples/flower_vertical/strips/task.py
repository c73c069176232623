"""Handwritten digits in strips: each client's rows of pixels and its model, the server's head and labels."""

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn

from fedworth import Task, Vertical

N_CLIENTS, N_VALIDATION, WIDTH = 3, 500, 4


def digits() -> tuple[torch.Tensor, torch.Tensor]:
    """All images, (n, 8, 8), and their labels, shuffled once and for all; the first ones validate."""
    images, labels = load_digits(return_X_y=True)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    return torch.tensor(images / 16, dtype=torch.float32)[order].reshape(-1, 8, 8), torch.tensor(labels)[order]


def strip(index: int) -> tuple[torch.Tensor, torch.Tensor]:
    """One client's rows of all images, to train on and to validate with."""
    rows = torch.from_numpy(np.array_split(np.arange(8), N_CLIENTS)[index])
    pixels = digits()[0][:, rows].flatten(1)
    return pixels[N_VALIDATION:], pixels[:N_VALIDATION]


def bottom(index: int) -> nn.Module:
    """One client's model before training; nobody else sees it."""
    torch.manual_seed(1 + index)
    return nn.Linear(strip(index)[0].shape[1], WIDTH)


def vertical() -> Vertical:
    """The server's side: its head, and the labels of the validation samples."""
    torch.manual_seed(0)
    clients = {f"partition-{index}": WIDTH for index in range(N_CLIENTS)}
    return Vertical(nn.Linear(N_CLIENTS * WIDTH, 10), digits()[1][:N_VALIDATION], clients)


def task() -> Task:
    """What the ledger is valued on: `fedworth report LEDGER --task strips/task.py:task`."""
    return vertical().task()
