"""Gradients of several clients at once, each at its own model: what `torch.func.vmap(grad(…))` gives, to the bit.

Perceptrons alone: flattened samples, linear layers, relu. The products are those that autograd makes for one client,
all clients in one call. `torch.func` itself loads the compiler of torch, two seconds before the first step.
"""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

from fedworth.ledger.ledger import Model

LAYERS = (nn.Flatten, nn.Linear, nn.ReLU)


def is_perceptron(module: nn.Module) -> bool:
    """Whether a module is layer after layer of those known here, samples flattened first."""
    if not isinstance(module, nn.Sequential) or not len(module) or type(module[0]) is not nn.Flatten:
        return False
    flattens = [layer for layer in module if isinstance(layer, nn.Flatten)]
    is_usual = all((layer.start_dim, layer.end_dim) == (1, -1) for layer in flattens)
    return is_usual and all(type(layer) in LAYERS for layer in module)


def slopes(
    module: nn.Module, states: Model, inputs: torch.Tensor, labels: torch.Tensor, weights: torch.Tensor
) -> Iterator[tuple[str, torch.Tensor]]:
    """Each tensor's gradient of Σ weight · cross-entropy, a client a row; states, samples and weights have rows too."""
    at = {name: tensor.detach().requires_grad_() for name, tensor in states.items()}
    with torch.enable_grad():
        logits = _logits(module, at, inputs)  # (n_clients, n_samples, n_classes)
        chosen = torch.log_softmax(logits, -1).gather(2, labels[..., None])[..., 0]  # (n_clients, n_samples)
        loss = (-chosen * weights).sum()
    return zip(at, torch.autograd.grad(loss, list(at.values())), strict=True)


def _logits(module: nn.Module, states: Model, inputs: torch.Tensor) -> torch.Tensor:
    values = inputs.flatten(2)
    for name, layer in module.named_children():
        if isinstance(layer, nn.ReLU):
            values = values.relu()
        elif isinstance(layer, nn.Linear):
            values = _products(values, states[f"{name}.weight"])
            values = values if layer.bias is None else values + states[f"{name}.bias"][:, None]
    return values


class _Products(torch.autograd.Function):
    """x Wᵀ of each client. Its gradient by W is made as gᵀ x, as for one client; torch would make (xᵀ g)ᵀ of a batch,
    which rounds otherwise."""

    @staticmethod
    def forward(ctx: Any, inputs: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(inputs, weights)
        return torch.bmm(inputs, weights.mT)

    @staticmethod
    def backward(ctx: Any, *slopes: torch.Tensor) -> tuple[torch.Tensor | None, torch.Tensor]:
        inputs, weights = ctx.saved_tensors
        (slope,) = slopes
        of_inputs = torch.bmm(slope, weights) if ctx.needs_input_grad[0] else None
        return of_inputs, torch.bmm(slope.mT, inputs)


_products: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] = _Products.apply
