"""The task: what the server needs to value a ledger — a model to load weights into, a test set, and what to judge by.

A coalition's model is loaded into `module` and judged on `inputs` and `labels`, which never leave the server: D_c of
the paper. The loss is cross-entropy on logits unless another is named. For a simulated federation the task is remade
from the ledger's settings.
"""

import hashlib
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn

from fedworth.arrays import Indices
from fedworth.errors import DataError, ModelError, unknown_name
from fedworth.ledger.model import Model
from fedworth.names import LossName, Measure
from fedworth.task.copies import copied
from fedworth.task.exchanged import exchanged_names
from fedworth.task.losses.criterion import Criterion, Loss
from fedworth.task.losses.named import DEFAULT, OwnFunction, identity_of, loss_of, own_criterion
from fedworth.task.rules.rule import Rule
from fedworth.task.samples import Inputs, each, gathered, outputs_of, rows, tensors_of


@dataclass(frozen=True)
class Task:
    """The module that a model's weights belong to, the server's test set, and what judges the one on the other.

    Args:
        module: What a model's weights belong to.
        inputs: The test set's inputs: a tensor, a tuple of them, or a dictionary.
        labels: Its labels.
        rule: What the server makes of its clients' models, if it is not the weighted mean.
        loss: A name (`cross-entropy` on logits, `squared-error`, `binary`, …), or a function of outputs and labels.
        measure: A function of outputs and labels that can be asked for by its name; higher is better.
        exchanged: Which tensors the federation exchanges, if not all: a part of their names, or the names.
        client_noise: The standard deviation of the noise that clients add to their models, if they do.
        blocks: The block number of each test sample, from 0 on; all samples are in block 0 if it is not given.

    Example:
        task = fedworth.Task(torch.nn.Linear(64, 10), torch.rand(50, 64), torch.arange(50) % 10)
    """

    module: nn.Module
    inputs: Any  # `Inputs`: a tensor (n_samples, ...), or several of them in a tuple or by name
    labels: torch.Tensor  # (n_samples, ...)
    rule: Rule | None = None  # what the server makes of its clients' models; None: as the ledger says
    loss: LossName | OwnFunction = DEFAULT
    measure: OwnFunction | None = None
    exchanged: str | Collection[str] | None = None
    client_noise: float | None = None  # the standard deviation of the noise that clients add to every number they send
    blocks: Indices | None = field(default=None, compare=False)  # (n_samples,)

    def __post_init__(self) -> None:
        tensors = tensors_of(self.inputs)
        counts = {len(tensor) for tensor in tensors}
        if counts != {len(self.labels)} or len(self.labels) == 0:
            found = " and ".join(str(count) for count in sorted(counts))
            raise DataError(f"test set: {found} inputs and {len(self.labels)} labels, expected as many")
        complaint = self.judged_by.labels(self.labels)
        if complaint:
            raise DataError(f"test set: {complaint}, as loss {self.judged_by.criterion.name!r} needs")
        if any(t.is_floating_point() and not bool(torch.isfinite(t).all()) for t in tensors):
            raise DataError("test set: some inputs are NaN or infinite")
        if self.blocks is not None and (self.blocks.shape != (len(self.labels),) or self.blocks.min() < 0):
            raise DataError(
                f"test set: blocks of shape {self.blocks.shape} from {self.blocks.min()} on, "
                f"expected one block number from 0 on for each of {len(self.labels)} samples"
            )

    @property
    def n_blocks(self) -> int:
        """The number of blocks of test samples; utilities are measured on each."""
        return 1 if self.blocks is None else int(self.blocks.max()) + 1

    @property
    def judged_by(self) -> Loss:
        """The loss, with what it demands of labels and outputs."""
        return loss_of(self.loss)

    def criterion(self, measure: Measure) -> Criterion:
        """What `measure` asks for: the loss, or a measure that goes with it."""
        if measure == "loss":
            return self.judged_by.criterion
        known = {found.name: found for found in self.judged_by.measures}
        if self.measure is not None:
            own = own_criterion(self.measure, is_better_higher=True)
            known[own.name] = own
        if measure not in known:
            raise unknown_name("measure", measure, ("loss", *known))
        return known[measure]

    @property
    def device(self) -> torch.device:
        """Where the test set is."""
        return self.labels.device

    @property
    def state(self) -> Model:
        """The module's own tensors that the federation exchanges, not copied."""
        own = {name: tensor.detach() for name, tensor in self.module.state_dict().items()}
        if self.exchanged is None:
            return own
        return {name: own[name] for name in exchanged_names(self.exchanged, own)}

    def outputs(self, model: Model, which: slice | torch.Tensor = slice(None)) -> torch.Tensor:
        """What a model makes of some of the samples; a ModelError if the module cannot take them."""
        model = {name: tensor.to(self.device) for name, tensor in model.items()}
        inputs = rows(self.inputs, which)
        try:
            return outputs_of(self.module.eval(), model, inputs)
        except RuntimeError as error:  # what torch raises of shapes and dtypes that do not fit
            raise ModelError(f"the module cannot take the test set: {_mismatch(error, inputs, model)}") from error

    def to(self, device: torch.device | str) -> "Task":
        """The same task on a device, where coalitions are then evaluated; the module is a copy."""
        inputs = each(self.inputs, lambda tensor: tensor.to(device))
        return replace(self, module=copied(self.module).to(device), inputs=inputs, labels=self.labels.to(device))

    @property
    def fingerprint(self) -> str:
        """The sha256 of the test set, on any device, and of what it is judged by: utilities of another one are others.

        Of a module that is exchanged in part, its own tensors count too.
        """
        tensors = tensors_of(self.inputs)
        digest = hashlib.sha256(str((tuple(tensors[0].shape), tensors[0].dtype)).encode())
        for tensor in (*tensors, self.labels):
            digest.update(_bytes_of(tensor))
        for text in self._unusual():
            digest.update(text.encode())
        return digest.hexdigest()

    def _unusual(self) -> Iterable[str]:
        """What a task has beside one tensor of inputs, one class a sample and the default loss."""
        if not isinstance(self.inputs, torch.Tensor):
            names = list(self.inputs) if isinstance(self.inputs, dict) else []
            yield str((names, [(tuple(t.shape), str(t.dtype)) for t in tensors_of(self.inputs)]))
        if self.loss != DEFAULT:
            loss = self.loss if isinstance(self.loss, str) else identity_of(self.loss)
            yield str((loss, tuple(self.labels.shape), str(self.labels.dtype)))
        if self.measure is not None:
            yield identity_of(self.measure)
        if self.exchanged is not None:
            exchanged = self.state
            for name, tensor in sorted(self.module.state_dict().items()):
                if name not in exchanged:
                    yield f"{name} {hashlib.sha256(_bytes_of(tensor)).hexdigest()}"


def _mismatch(error: RuntimeError, inputs: Inputs, model: Model) -> str:
    """What torch says of inputs that do not fit, what was found, and what to do."""
    said = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    shown = ", ".join(f"{tuple(tensor.shape)} {tensor.dtype}" for tensor in tensors_of(inputs))
    kinds = ", ".join(sorted({str(tensor.dtype) for tensor in model.values()}))
    return (
        f"{said} (found inputs {shown} and a model of {kinds}); give inputs of the module's own kind, as .float() does"
    )


def task_from_loader(module: nn.Module, batches: Iterable[object], **more: Any) -> Task:
    """A task whose test set is what a loader gives, gathered into memory.

    A batch is (inputs, labels), (first, second, …, labels) or a dictionary with labels in it; `more` is passed on to
    `Task`. The loader must not shuffle, or the task is another one each time.

    Args:
        module: What a model's weights belong to.
        batches: A loader that does not shuffle. A batch is (inputs, labels), (first, second, …, labels) or a dictionary
            with labels in it.
        **more: The other arguments of `Task`.

    Returns:
        The task.

    Example:
        task = fedworth.task_from_loader(module, test_loader)
    """
    inputs, labels = gathered(batches)
    return Task(module, inputs, labels, **more)


def _bytes_of(tensor: torch.Tensor) -> bytes:
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()  # numpy has no bfloat16
