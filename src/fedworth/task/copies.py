"""Copies of modules, also of those that keep tensors they have made.

`torch.nn.utils.weight_norm` and `prune` keep a weight that is made of parameters, and made again before every forward
pass; torch refuses to copy a tensor that has a history. What was made is copied without it.
"""

import copy
from typing import TypeVar

import torch
from torch import nn

Module = TypeVar("Module", bound=nn.Module)


def copied(module: Module) -> Module:
    """A module like this one, with tensors of its own."""
    kept = [value for part in module.modules() for value in vars(part).values() if isinstance(value, torch.Tensor)]
    made = {id(tensor): tensor.detach().clone() for tensor in kept if not tensor.is_leaf}
    return copy.deepcopy(module, made)
