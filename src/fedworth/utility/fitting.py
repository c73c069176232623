"""A round's models in the dtypes of the module that they are loaded into.

Servers change dtypes as they average (a counter of batches, int64 in the module, comes back as float64), and clients
may send others. What is evaluated is the task's module, so its dtypes hold; integers are rounded, as when averaging.
"""

from collections.abc import Mapping

import torch

from fedworth.ledger.ledger import Model, Round, check_alike


def fitted(round_: Round, like: Model) -> Round:
    """The same round with tensors of the dtypes of `like`; a global model of other tensors is refused."""
    check_alike(round_.global_model, like, "global model, against the task's module")
    return Round(
        round_.entry,
        fitted_model(round_.global_model, like),
        _cast_all(round_.client_models, like),
        _cast_all(round_.apart_models, like),
    )


def _cast_all(models: Mapping[int, Model], like: Model) -> dict[int, Model]:
    return {index: fitted_model(model, like) for index, model in models.items()}


def fitted_model(model: Model, like: Model) -> Model:
    """Tensors that fit already are passed on as they are, still memory-mapped."""
    return {name: _as(tensor, like[name].dtype) for name, tensor in model.items()}


def _as(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    is_rounded = tensor.is_floating_point() and not dtype.is_floating_point
    return (tensor.round() if is_rounded else tensor).to(dtype)
