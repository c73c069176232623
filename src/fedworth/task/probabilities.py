"""A module that ends in a softmax or a sigmoid, under a loss that takes logits, would be valued wrongly without a word.

Outputs are probabilities if they look like it whatever the weights: for the model at hand, and for two others far from
it, whose logits would lie anywhere.
"""

from dataclasses import dataclass

import torch

from fedworth.errors import ModelError
from fedworth.ledger.model import Model
from fedworth.task.task import Task

N_SAMPLES = 32
TOLERANCE = 1e-3


@dataclass(frozen=True)
class _Kind:
    ends_in: str
    instead: str


SOFTMAX = _Kind("softmax", "loss='probabilities'")
SIGMOID = _Kind("sigmoid", "a loss of your own")


def refuse_probabilities(task: Task, model: Model) -> None:
    """Refuse a module whose outputs are probabilities where the loss takes logits."""
    if task.judged_by.takes_probabilities:
        return
    outputs = _outputs(task, model)
    kind = _kind_of(task, outputs)
    if kind is None:
        return
    others = [_outputs(task, _far_from(task, model, seed)) for seed in range(2)]
    if any(torch.equal(other, outputs) or _kind_of(task, other) != kind for other in others):
        return
    name = task.judged_by.criterion.name
    raise ModelError(
        f"the module's outputs are probabilities: it ends in a {kind.ends_in}, and loss {name!r} takes logits; leave "
        f"the {kind.ends_in} out of the task's module, or name a loss that takes probabilities, such as {kind.instead}"
    )


def _outputs(task: Task, model: Model) -> torch.Tensor:
    with torch.inference_mode():
        return task.outputs(model, slice(0, N_SAMPLES)).to(torch.float64)


def _kind_of(task: Task, outputs: torch.Tensor) -> _Kind | None:
    if not bool(((outputs >= 0) & (outputs <= 1)).all()):
        return None
    dimension = task.judged_by.over_classes
    if dimension is None or outputs.ndim <= dimension or outputs.shape[dimension] < 2:
        return SIGMOID
    return SOFTMAX if bool(((outputs.sum(dim=dimension) - 1).abs() <= TOLERANCE).all()) else SIGMOID


def _far_from(task: Task, model: Model, seed: int) -> Model:
    """The model with noise as large as its parameters; buffers stay."""
    generator = torch.Generator().manual_seed(seed)
    parameters = {name for name, _ in task.module.named_parameters(remove_duplicate=False)}

    def moved(name: str, tensor: torch.Tensor) -> torch.Tensor:
        if name not in parameters or not tensor.is_floating_point():
            return tensor
        noise = torch.randn(tensor.shape, generator=generator, dtype=torch.float64).to(tensor)
        return tensor + noise * (tensor.abs().mean() + 0.1)

    return {name: moved(name, tensor) for name, tensor in model.items()}
