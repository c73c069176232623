"""The inputs of a test set: one tensor, several in a tuple, or several by name; each has one row per sample.

A module takes a tensor as its only argument, a tuple as its arguments, a dictionary as its keyword arguments. It
returns a tensor, or an object with a tensor called `logits`, as models of Hugging Face do.
"""

from collections.abc import Callable, Iterable, Mapping

import torch
from torch import nn
from torch.func import functional_call

from fedworth.errors import DataError, ModelError
from fedworth.ledger.model import Model

Inputs = torch.Tensor | tuple[torch.Tensor, ...] | dict[str, torch.Tensor]
LABELS = ("labels", "label", "targets", "target", "y")  # what a batch that is a dictionary may call its labels


def tensors_of(inputs: Inputs) -> list[torch.Tensor]:
    """The tensors in their order."""
    if isinstance(inputs, torch.Tensor):
        return [inputs]
    return list(inputs.values() if isinstance(inputs, dict) else inputs)


def each(inputs: Inputs, change: Callable[[torch.Tensor], torch.Tensor]) -> Inputs:
    """The same inputs with every tensor changed."""
    if isinstance(inputs, torch.Tensor):
        return change(inputs)
    if isinstance(inputs, dict):
        return {name: change(tensor) for name, tensor in inputs.items()}
    return tuple(change(tensor) for tensor in inputs)


def rows(inputs: Inputs, which: slice | torch.Tensor) -> Inputs:
    """The inputs of some of the samples."""
    return each(inputs, lambda tensor: tensor[which])


def outputs_of(module: nn.Module, model: Model, inputs: Inputs) -> torch.Tensor:
    """The outputs of a module with a model's weights; tied tensors are in a model under each of their names."""
    arguments = inputs if isinstance(inputs, tuple) else () if isinstance(inputs, dict) else (inputs,)
    keywords = inputs if isinstance(inputs, dict) else {}
    outputs = functional_call(module, model, arguments, keywords, tie_weights=False)
    if isinstance(outputs, Mapping) and "logits" in outputs:
        outputs = outputs["logits"]
    outputs = getattr(outputs, "logits", outputs)
    if not isinstance(outputs, torch.Tensor):
        raise ModelError(
            f"the module returns a {type(outputs).__name__}, expected a tensor, or an object with a tensor called "
            "logits; wrap the module in one that returns the tensor which the loss takes"
        )
    return outputs


def gathered(batches: Iterable[object]) -> tuple[Inputs, torch.Tensor]:
    """The inputs and labels of all batches of a loader.

    A batch is (inputs, labels), (first, second, …, labels), or a dictionary with the labels in it. The only input in a
    dictionary is given to the module without its name, which the module need not know.
    """
    parts = [_split(batch) for batch in batches]
    if not parts:
        raise DataError("test set: the loader gives no batches")
    inputs, labels = zip(*parts, strict=True)
    together = [torch.cat(tensors) for tensors in zip(*map(tensors_of, inputs), strict=True)]
    first: Inputs = inputs[0]
    if isinstance(first, torch.Tensor):
        return together[0], torch.cat(labels)
    return dict(zip(first, together, strict=True)) if isinstance(first, dict) else tuple(together), torch.cat(labels)


def _split(batch: object) -> tuple[Inputs, torch.Tensor]:
    if isinstance(batch, Mapping):
        name = next((name for name in LABELS if name in batch), None)
        if name is not None:
            named = {str(key): tensor for key, tensor in batch.items() if key != name}
            return (next(iter(named.values())) if len(named) == 1 else named), batch[name]
    elif isinstance(batch, list | tuple) and len(batch) > 1:
        *inputs, labels = batch
        first = inputs[0]
        if len(inputs) == 1:
            return (tuple(first) if isinstance(first, list) else first), labels
        return tuple(inputs), labels
    expected = f"(inputs, labels), or a dictionary with one of {', '.join(LABELS)}"
    raise DataError(f"test set: the loader gives a {type(batch).__name__}, expected {expected}")
