"""A utility of one's own: any function that says how good a model is, for what no loss and no torch module can say.

In: a function `utility(model) → float`, higher is better, and a model like those of the federation. Out: a task. The
function gets a model in the form of `like`: a dictionary of tensors or of arrays by name, or a list of arrays in the
ledger's order, as Keras and JAX have weights. To everything else the task has one sample, whose output is the utility.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from fedworth.errors import UsageError, UtilityError
from fedworth.task.losses.named import name_of
from fedworth.task.rules.rule import Rule
from fedworth.task.task import Task

Like = Mapping[str, Any] | Sequence[Any]


class UtilityModule(nn.Module):
    """Holds a model's tensors under their names, and hands them to a function."""

    def __init__(self, utility: Callable[[Any], float], like: Like) -> None:
        super().__init__()
        self.utility, self.as_list = utility, not isinstance(like, Mapping)
        named = like if isinstance(like, Mapping) else {str(place): array for place, array in enumerate(like)}
        self.as_tensors = all(isinstance(array, torch.Tensor) for array in named.values())
        self.names = list(named)
        for name, array in named.items():
            _hold(self, name, torch.as_tensor(np.asarray(array)) if not isinstance(array, torch.Tensor) else array)

    def forward(self, _: torch.Tensor) -> torch.Tensor:
        """The utility of the tensors that are held now, (1, 1)."""
        held = self.state_dict()
        tensors = {
            name: held[name].detach().clone() for name in self.names
        }  # what the function does to them is its own
        model: Any = tensors if self.as_tensors else {name: tensor.cpu().numpy() for name, tensor in tensors.items()}
        with torch.inference_mode(mode=False):
            found = float(self.utility(list(model.values()) if self.as_list else model))
        if math.isnan(found):
            raise UtilityError(f"{name_of(self.utility)}: gave NaN for a model, expected a number; higher is better")
        return torch.tensor([[found]], dtype=torch.float64)


def task_from_utility(utility: Callable[[Any], float], like: Like, *, rule: Rule | None = None) -> Task:
    """A task whose models are judged by a function of your own.

    Args:
        utility: Says how good a model is; higher is better.
        like: A model in the form that `utility` wants: arrays by name, or a list of them. Its numbers do not matter.
        rule: What the server makes of its clients' models, if it is not the weighted mean.

    Returns:
        The task.

    Example:
        task = fedworth.task_from_utility(lambda model: -my_loss(model), {"weights": weights})
    """
    if len(like) == 0:
        raise UsageError("like: an empty model, expected one with the federation's tensors, whatever their numbers")
    module = UtilityModule(utility, like)
    return Task(module, torch.zeros(1, 1), torch.zeros(1, 1), rule, loss=_Minus(utility))


class _Minus:
    """Minus the utility, as a loss; its source is the function's."""

    def __init__(self, utility: Callable[[Any], float]) -> None:
        self.utility, self.__name__, self.__wrapped__ = utility, name_of(utility), utility

    def __call__(self, outputs: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
        return -outputs.reshape(-1)


def _hold(module: nn.Module, name: str, tensor: torch.Tensor) -> None:
    """Register a tensor under a name with dots in it."""
    *path, last = name.split(".")
    for part in path:
        if part not in module._modules:
            module.add_module(part, nn.Module())
        module = module.get_submodule(part)
    module.register_buffer(last, tensor.detach().clone())
