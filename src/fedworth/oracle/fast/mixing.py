"""A round's models and their mixtures, as differences from the global model.

A coalition's coefficients and the global model's sum to 1 in every weighting, g_S + Σ_k c_{S,k} = 1, so

    w_S = w + Σ_k c_{S,k} (w_k − w)

and g_S need not be known. Differences are small where clients have moved little, so float32 loses nothing in the sum;
and a client who sends back w adds exactly 0. Tensors of one dimension are summed in float64: a variance of a first
round is fresh in w, 1, and may be tiny in w_k, where 1 + (w_k − 1) would keep few of its bits. Integer tensors are
averaged and rounded, as the plain loop does.
"""

import math
from collections.abc import Sequence, Set
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from fedworth.ledger.ledger import Model
from fedworth.oracle.fast.kernels.mixing import add_differences
from fedworth.oracle.oracle import mix

MOST_TOGETHER = 16
MIXED_BYTES = 64 << 20
"""What the mixed tensors of a few coalitions may take together."""

FEW = 4
"""Mixtures that are not worth a kernel: those of the self-check, for which none is compiled; the sums are the same."""

LINE = 16
"""Numbers in 64 bytes: mixed tensors start there, as tensors of their own do."""


@dataclass(frozen=True)
class RoundModels:
    """The global model, the clients', and how they differ; `images`: four-dimensional tensors are channels-last."""

    origin: Model
    clients: tuple[Model, ...]
    differences: dict[str, torch.Tensor]  # varying floating tensors: (n_clients, *shape)
    counters: tuple[str, ...]  # varying integer tensors
    images: bool

    @property
    def everybody(self) -> tuple[Model, ...]:
        """The global model, then the clients'."""
        return (self.origin, *self.clients)

    @property
    def together(self) -> int:
        """How many coalitions' models are mixed at once."""
        size = sum(t[0].numel() * t.element_size() for t in self.differences.values())
        return max(1, min(MOST_TOGETHER, MIXED_BYTES // max(1, size)))

    def mixed(self, coefficients: NDArray[np.float64]) -> Model:
        """The varying tensors of each row of coefficients: (n_rows, *shape)."""
        tensors = {name: combined(coefficients, self.origin[name], t) for name, t in self.differences.items()}
        if self.counters:
            rows = [self._counted(row) for row in coefficients]
            tensors |= {name: torch.stack([row[name] for row in rows]) for name in self.counters}
        return tensors

    def _counted(self, row: NDArray[np.float64]) -> Model:
        """Counters averaged; the sum of coefficients is rounded once, so that it is the same in any order."""
        origin = {name: self.origin[name] for name in self.counters}
        clients = {k: {name: model[name] for name in self.counters} for k, model in enumerate(self.clients)}
        return mix(origin, clients, row, 1 - math.fsum(row))


def round_models(origin: Model, clients: Sequence[Model], varying: Set[str], *, images: bool) -> RoundModels:
    """The round's models, of which only the tensors named `varying` differ."""
    floating = [name for name in sorted(varying) if origin[name].is_floating_point()]
    differences = {
        name: stacked([_difference(model[name], origin[name]) for model in clients], images=images) for name in floating
    }
    counters = tuple(sorted(varying - set(floating)))
    ordered = {name: channels_last(tensor) if images else tensor for name, tensor in origin.items()}
    return RoundModels(ordered, tuple(clients), differences, counters, images)


def _difference(tensor: torch.Tensor, origin: torch.Tensor) -> torch.Tensor:
    return tensor - origin if origin.ndim > 1 else tensor.double() - origin.double()


def is_same(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two tensors are equal; not looked into if they are one."""
    return a is b or torch.equal(a, b)


def channels_last(tensor: torch.Tensor) -> torch.Tensor:
    """Images or filters with channels innermost, also where there is one channel and both orders look alike.

    `tensor.contiguous(memory_format=torch.channels_last)` leaves those as they are, and all that follows is slow.
    """
    if tensor.ndim != 4 or not tensor.is_floating_point():
        return tensor
    like = torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device, memory_format=torch.channels_last)
    return like.copy_(tensor)


def stacked(tensors: Sequence[torch.Tensor], *, images: bool) -> torch.Tensor:
    """The tensors side by side in a new first dimension, images channels-last within it."""
    if images and tensors[0].ndim == 4:
        return torch.stack([t.permute(0, 2, 3, 1) for t in tensors]).permute(0, 1, 4, 2, 3)
    return torch.stack(list(tensors))


def combined(coefficients: NDArray[np.float64], origin: torch.Tensor, differences: torch.Tensor) -> torch.Tensor:
    """origin + Σ_k c_k differences_k for each row c: (n_rows, *shape), laid out in memory as the differences are.

    Client after client, and only those whose coefficient is not 0: a row is the same whoever else is measured.
    """
    strides, shape = differences.stride(), differences.shape
    order = sorted(range(1, differences.ndim), key=lambda d: (-strides[d], -shape[d]))
    in_order = differences.permute(0, *order)  # (n_clients, *shape in order of memory)
    start = origin.permute([d - 1 for d in order]).reshape(-1).to(differences.dtype)  # (n_numbers,)
    rows = torch.as_tensor(coefficients, dtype=differences.dtype, device=differences.device)
    total = _summed(rows, start, in_order.reshape(len(differences), len(start)))  # (n_rows, n_numbers)
    back = [1 + order.index(d) for d in range(1, differences.ndim)]
    return total.view(len(rows), *in_order.shape[1:]).permute(0, *back).to(origin.dtype)


def _summed(rows: torch.Tensor, start: torch.Tensor, differences: torch.Tensor) -> torch.Tensor:
    """start + Σ_k c_k differences_k for each row c, (n_rows, n_numbers); every row starts at a full cache line."""
    if len(rows) > FEW and start.device.type == "cpu" and start.dtype in (torch.float32, torch.float64):
        n_numbers = -(-len(start) // LINE) * LINE
        total = torch.empty(len(rows), n_numbers, dtype=start.dtype)
        add_differences(rows.numpy(), start.contiguous().numpy(), differences.contiguous().numpy(), total.numpy())
        return total[:, : len(start)]
    total = start.repeat(len(rows), 1)
    for row, sums in zip(rows, total, strict=True):
        for k in torch.nonzero(row).ravel().tolist():
            sums += row[k] * differences[k]
    return total
