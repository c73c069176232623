"""A round's models in the names and dtypes of the module that they are loaded into.

Servers change dtypes as they average (a counter of batches, int64 in the module, comes back as float64), and clients
may send others. What is evaluated is the task's module, so its dtypes hold; integers are rounded, as when averaging.
Frameworks that exchange lists of arrays name them 0, 1, …: these stand for the module's state, in its order.
"""

from collections.abc import Mapping

import torch

from fedworth.errors import ModelError
from fedworth.ledger.ledger import Model, Round, check_alike
from fedworth.task.adapters import renamed
from fedworth.task.task import Task


def fitted(round_: Round, task: Task) -> Round:
    """The same round with tensors as the task's module has them; a global model of other tensors is refused."""
    like = task.state
    _refuse_others(fitted_model(round_.global_model, task, like), like, task)
    return Round(
        round_.entry,
        fitted_model(round_.global_model, task, like),
        _all(round_.client_models, task, like),
        _all(round_.apart_models, task, like),
    )


def fitted_model(model: Model, task: Task, like: Model | None = None) -> Model:
    """Tensors that fit already are passed on as they are, still memory-mapped."""
    like = task.state if like is None else like
    own = _by_place(model, like) if task.exchanged is None else renamed(_by_place(model, like), like)
    return {name: _as(tensor, like[name].dtype) if name in like else tensor for name, tensor in own.items()}


def _by_place(model: Model, like: Model) -> Model:
    """Tensors that are named by their place alone, under the module's names; shapes are compared later."""
    places = [str(place) for place in range(len(like))]
    if set(model) != set(places) or set(model) == set(like):
        return model
    return {name: model[place] for name, place in zip(like, places, strict=True)}


def _all(models: Mapping[int, Model], task: Task, like: Model) -> dict[int, Model]:
    return {index: fitted_model(model, task, like) for index, model in models.items()}


def _refuse_others(model: Model, like: Model, task: Task) -> None:
    try:
        check_alike(model, like, "global model, against the task's module")
    except ModelError as error:
        is_less = set(model) < set(like)
        if is_less and task.exchanged is None:
            raise ModelError(
                f"{error}; if the federation exchanges only part of the module, such as adapters, name it: "
                "Task(…, exchanged='lora_'), and the other tensors are the module's own"
            ) from error
        raise


def _as(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    is_rounded = tensor.is_floating_point() and not dtype.is_floating_point
    return (tensor.round() if is_rounded else tensor).to(dtype)
