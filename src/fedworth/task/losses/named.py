"""Losses and measures by name, and those of one's own.

A function of one's own gets the outputs and the labels of the whole test set, and gives one number, or one a sample, of
which the mean counts. So it need not know how the test set is cut into batches.
"""

import hashlib
import inspect
from collections.abc import Callable
from typing import Any

import torch

from fedworth.errors import DataError
from fedworth.names import LossName, checked_name
from fedworth.task.losses.classes import OVER_CLASSES
from fedworth.task.losses.criterion import Criterion, Loss
from fedworth.task.losses.numbers import OF_NUMBERS
from fedworth.task.losses.orders import OF_ORDERS
from fedworth.task.losses.shapes import anything

OwnFunction = Callable[[torch.Tensor, torch.Tensor], Any]
LOSSES: dict[str, Loss] = {loss.criterion.name: loss for loss in (*OVER_CLASSES, *OF_NUMBERS, *OF_ORDERS)}
DEFAULT: LossName = "cross-entropy"


def loss_of(loss: LossName | OwnFunction) -> Loss:
    """The loss of a name, or one made of a function."""
    if not isinstance(loss, str):
        return Loss(own_criterion(loss, is_better_higher=False), anything, anything)
    return LOSSES[checked_name("loss", loss)]


def own_criterion(function: OwnFunction, *, is_better_higher: bool) -> Criterion:
    """A criterion of one's own, known by the function's name."""

    def of(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        found = torch.as_tensor(function(outputs, labels))
        if found.ndim > 1 or (found.ndim == 1 and len(found) != len(labels)):
            shape = f"gave numbers of shape {tuple(found.shape)} for {len(labels)} samples"
            raise DataError(f"{name_of(function)}: {shape}, expected one number or one a sample")
        return found.mean(dtype=torch.float64)

    return Criterion(name_of(function), of, is_better_higher, is_whole=True, is_smooth=False)


def name_of(function: Callable[..., Any]) -> str:
    """What a function is called."""
    return str(getattr(function, "__name__", type(function).__name__))


def identity_of(function: Callable[..., Any]) -> str:
    """The sha256 of a function's name and source, as far as they can be had; its witness tells it from another."""
    try:
        source = inspect.getsource(function)
    except (OSError, TypeError):
        source = ""
    return hashlib.sha256(f"{name_of(function)}\n{source}".encode()).hexdigest()
