"""What the recipe's models are measured on: a linear model whose only array has the recipe's name for it."""

import torch
from torch import nn

from fedworth import Task


class Linear(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.numpy_key = nn.Parameter(torch.zeros(2, 3))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return inputs @ self.numpy_key.T


def task() -> Task:
    inputs = torch.randn(30, 3, generator=torch.Generator().manual_seed(1))
    return Task(Linear(), inputs, (inputs[:, 0] > 0).long())
