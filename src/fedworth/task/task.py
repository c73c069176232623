"""The task: what a model is judged by. A module to load weights into, a test set, and a loss or measure.

A coalition's model is loaded into `module` and judged on `inputs` and `labels`, which never leave the server (D_c of
the paper). The task of a simulated federation is made again from the ledger's settings (`fedworth.task_of`).
"""

import hashlib
import importlib.util
import json
import sys
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import nn

from fedworth.arrays import Indices
from fedworth.errors import DataError, FedworthError, ModelError, UsageError, unknown_name
from fedworth.ledger.model import Model, tensor_bytes
from fedworth.task.adapters import exchanged_names, moved, peft_names
from fedworth.task.huggingface import loss_like_models, padded, samples_of, scoring
from fedworth.task.losses import DEFAULT_LOSS, Criterion, Loss, UserFunction, identity_of, loss_of, user_criterion
from fedworth.task.modules import (
    Like,
    MinusUtility,
    UtilityModule,
    copied,
    evaluating,
    labels_for_estimator,
    linear_from_estimator,
    loss_of_estimator,
    refuse_uninitialised,
)
from fedworth.task.rules import Rule
from fedworth.task.samples import Inputs, each, gathered, outputs_of, rows, tensors_of

MOST_SAMPLES, MOST_NUMBERS = 1024, 1 << 23  # in a batch, and in the largest layer for it
N_PROBED = 32  # samples on which outputs are tested for being probabilities
PROBABILITY_TOLERANCE = 1e-3


@dataclass(frozen=True, eq=False)  # tensors have no truth value, dictionaries no hash: a task equals only itself
class Task:
    """A module, the server's test set, and the loss or measure that judges the one on the other.

    Args:
        module: The module that a model's weights belong to.
        inputs: The test set's inputs: a tensor, a tuple of them, or a dictionary.
        labels: The test set's labels.
        rule: How the server aggregates, if it does not take the weighted mean.
        loss: A name (`cross-entropy` on logits, `squared-error`, `binary`, …), or a function of outputs and labels.
        measure: A function of outputs and labels that can be asked for by its name; higher is better.
        exchanged: Which tensors the federation exchanges, if not all: a part of their names, the names in the order in
            which arrays are sent, or a dictionary from the ledger's names to the module's.
        client_noise: The standard deviation of the noise that clients add to their models, if they do.
        groups: A label for each test sample, such as its site, or several groupings by name: `{"site": [...], "age":
            [...]}`. Values are given by group too: by the first grouping, unless another one is asked for (default: the
            class, if samples have one).
        blocks: The number of each test sample's cell; set when a federation is opened.

    Example:
        task = fedworth.Task(torch.nn.Linear(64, 10), torch.rand(50, 64), torch.arange(50) % 10)
    """

    module: nn.Module
    inputs: Any  # `Inputs`: a tensor (n_samples, ...), or several of them in a tuple or by name
    labels: torch.Tensor  # (n_samples, ...)
    rule: Rule | None = None  # None: as the ledger says
    loss: str | UserFunction = DEFAULT_LOSS
    measure: UserFunction | None = None
    exchanged: str | Collection[str] | None = None
    client_noise: float | None = None
    groups: Any = None  # labels, (n_samples,), or such by name; `dict[str, tuple[str, ...]]` once the task is made
    blocks: Indices | None = None  # (n_samples,)

    def __post_init__(self) -> None:
        refuse_uninitialised(self.module)
        tensors = tensors_of(self.inputs)
        for what, found_tensors in (("inputs", tensors), ("labels", [self.labels])):
            wrong = next((one for one in found_tensors if not isinstance(one, torch.Tensor)), None)
            if wrong is not None:
                raise DataError(
                    f"test set: found {what} of type {type(wrong).__name__}, expected tensors; "
                    "torch.as_tensor(array) makes one of an array"
                )
        counts = {len(tensor) for tensor in tensors}
        if counts != {len(self.labels)} or len(self.labels) == 0:
            found = " and ".join(str(count) for count in sorted(counts))
            raise DataError(
                f"test set: found {found} inputs and {len(self.labels)} labels; "
                "expected one label for each input, and at least one sample"
            )
        problem = self.judged_by.labels(self.labels)
        if problem:
            raise DataError(f"test set: {problem}, as loss {self.judged_by.criterion.name!r} needs")
        if any(t.is_floating_point() and not bool(torch.isfinite(t).all()) for t in tensors):
            raise DataError("test set: some inputs are NaN or infinite")
        if self.groups is not None:
            given = self.groups if isinstance(self.groups, Mapping) else {"group": self.groups}
            groups = {name: tuple(map(str, getattr(of, "tolist", lambda of=of: of)())) for name, of in given.items()}
            object.__setattr__(self, "groups", groups)  # the class is frozen
            for name, of_samples in groups.items():
                if len(of_samples) != len(self.labels):
                    found = f"{len(of_samples)} labels in {name!r} of groups"
                    raise DataError(f"test set: {found}, expected one for each of {len(self.labels)} samples")
        if self.blocks is not None and (self.blocks.shape != (len(self.labels),) or self.blocks.min() < 0):
            raise DataError(
                f"test set: blocks of shape {self.blocks.shape} from {self.blocks.min()} on, "
                f"expected one block number from 0 on for each of {len(self.labels)} samples"
            )

    @classmethod
    def from_loader(cls, module: nn.Module, batches: Iterable[object], **more: Any) -> "Task":
        """Make a task whose test set is read from a loader into memory.

        Args:
            module: The module that a model's weights belong to.
            batches: A loader. A batch is (inputs, labels), (first, second, …, labels) or a dictionary with labels in
                it. The loader must not shuffle: another order of samples is another task.
            **more: The other arguments of `Task`.

        Returns:
            The task.

        Example:
            task = fedworth.Task.from_loader(module, test_loader)
        """
        inputs, labels = gathered(batches)
        return cls(module, inputs, labels, **more)

    @classmethod
    def from_transformers(cls, model: nn.Module, dataset: Iterable[Mapping[str, Any]], **more: Any) -> "Task":
        """Make the task of a Hugging Face model, with the model's own loss and what PEFT exchanges of it.

        Args:
            model: A model of transformers, or of PEFT: then the federation exchanges what `get_peft_model_state_dict`
                gives, under these names or as arrays in this order.
            dataset: Tokenized samples, or batches of a loader that does not shuffle: dictionaries with `input_ids` and
                labels. Each item is one sample, which may be of any length; without labels it is its own.
            **more: The other arguments of `Task`. `loss` is found, unless it is given.

        Returns:
            The task.

        Example:
            task = fedworth.Task.from_transformers(model, tokenized_test_set)
        """
        samples = samples_of(model, dataset)
        together = padded(samples, getattr(getattr(model, "config", None), "pad_token_id", None))
        if "loss" not in more:
            more["loss"] = loss_like_models(model, samples, together)
        if "exchanged" not in more:
            more["exchanged"] = peft_names(model)
        labels = together["labels"]
        if more["loss"] == "texts":
            return cls(scoring(model), together, labels, **more)
        return cls(model, {name: tensor for name, tensor in together.items() if tensor is not labels}, labels, **more)

    @classmethod
    def from_estimator(
        cls,
        estimator: Any,
        inputs: Any,
        labels: Any,
        *,
        names: tuple[str, str] = ("coef_", "intercept_"),
        loss: str | UserFunction | None = None,
        rule: Rule | None = None,
    ) -> "Task":
        """Make the task of a federation of linear models of scikit-learn, which exchanges coefficients.

        Args:
            estimator: A fitted linear classifier or regressor. Only its shapes and its classes matter.
            inputs: The test set's rows.
            labels: The test set's labels, as the estimator knows them.
            names: What the ledger calls coefficients and intercept: `("0", "1")` if a list of arrays was sent.
            loss: The estimator's own loss unless named.
            rule: How the server aggregates, if it does not take the weighted mean.

        Returns:
            The task.

        Example:
            task = fedworth.Task.from_estimator(fitted, test_inputs, test_labels)
        """
        module, chosen = linear_from_estimator(estimator, names), loss or loss_of_estimator(estimator)
        dtype = next(module.parameters()).dtype
        tensor = torch.as_tensor(np.asarray(inputs)).to(dtype)  # (n_samples, n_features)
        return cls(module, tensor, labels_for_estimator(labels, estimator, chosen, dtype), rule, loss=chosen)

    @classmethod
    def from_utility(cls, utility: Callable[[Any], float], like: Like, *, rule: Rule | None = None) -> "Task":
        """Make a task whose models are judged by a function of your own, for models that no torch module can load.

        The rest of fedworth sees one test sample, whose output is the utility.

        Args:
            utility: Says how good a model is; higher is better.
            like: A model in the form that `utility` wants: arrays by name, or a list of them. Its numbers do not
                matter.
            rule: How the server aggregates, if it does not take the weighted mean.

        Returns:
            The task.

        Example:
            task = fedworth.Task.from_utility(lambda model: -my_loss(model), {"weights": weights})
        """
        module = UtilityModule(utility, like)
        return cls(module, torch.zeros(1, 1), torch.zeros(1, 1), rule, loss=MinusUtility(utility))

    @staticmethod
    def load(text: str) -> "Task":
        """Load the task that `mytask.py:task` names.

        Args:
            text: A Python file and a name in it: a task, or a function that makes one. The file is run, so give only
                files that you would run yourself. It can import what lies beside it, or beside its package.

        Returns:
            The task.

        Example:
            task = fedworth.Task.load("mytask.py:task")
        """
        file, _, name = text.rpartition(":")
        if not file or not name:
            raise UsageError(f"--task {text}: expected a Python file and a name in it, such as mytask.py:task")
        module = _run_file(Path(file))
        if not hasattr(module, name):
            known = ", ".join(key for key in vars(module) if not key.startswith("_")) or "nothing"
            raise UsageError(f"--task {text}: no {name!r} in the file; it has {known}")
        task = getattr(module, name)
        try:
            task = task() if callable(task) else task
        except FedworthError:
            raise
        except Exception as error:
            raise UsageError(f"--task {text}: {name}() failed with {type(error).__name__}: {error}") from error
        return checked_task(task, f"--task {text}")

    @property
    def n_blocks(self) -> int:
        """The number of blocks of test samples; utilities are measured on each."""
        return 1 if self.blocks is None else int(self.blocks.max()) + 1

    @property
    def classes(self) -> tuple[str, ...] | None:
        """The class of each test sample; None if samples do not have one class each."""
        if not self.judged_by.has_classes or self.labels.numel() != len(self.labels):
            return None
        return tuple(str(int(label)) for label in self.labels.reshape(-1).tolist())

    @property
    def judged_by(self) -> Loss:
        """The loss, with the checks of labels and outputs and the measures that belong to it."""
        return loss_of(self.loss)

    def criterion(self, measure: str) -> Criterion:
        """The criterion that `measure` names: `loss`, or a measure that goes with the task's loss."""
        if measure == "loss":
            return self.judged_by.criterion
        known = {found.name: found for found in self.judged_by.measures}
        if self.measure is not None:
            own = user_criterion(self.measure, is_better_higher=True)
            known[own.name] = own
        if measure not in known:
            raise unknown_name("measure", measure, ("loss", *known))
        return known[measure]

    @property
    def device(self) -> torch.device:
        """The device of the test set."""
        return self.labels.device

    @cached_property
    def batch_size(self) -> int:
        """How many samples the module gets at a time: fewer, if a sample has many labels or is a text.

        Such a sample may need millions of numbers in a layer, which is seen in a forward pass of one sample.
        """
        if len(self.labels) == 1 or (self.labels.ndim == 1 and not isinstance(self.inputs, dict)):
            return MOST_SAMPLES
        sizes = [1]

        def note(_: nn.Module, __: Any, given: Any) -> None:
            sizes.append(given.numel() if isinstance(given, torch.Tensor) else 1)

        handles = [part.register_forward_hook(note) for part in self.module.modules()]
        try:
            with torch.inference_mode():
                self.outputs(self.state, slice(0, 1))
        finally:
            for handle in handles:
                handle.remove()
        return max(1, min(MOST_SAMPLES, MOST_NUMBERS // max(sizes)))

    @property
    def state(self) -> Model:
        """The module's tensors that the federation exchanges, not copied."""
        own = {name: tensor.detach() for name, tensor in self.module.state_dict().items()}
        if self.exchanged is None:
            return own
        return {name: own[name] for name in exchanged_names(self.exchanged, own)}

    def outputs(self, model: Model, which: slice | torch.Tensor = slice(None)) -> torch.Tensor:
        """The outputs of a model on some of the samples, in evaluation mode; the module keeps its own mode."""
        model = {name: tensor.to(self.device) for name, tensor in model.items()}
        inputs = rows(self.inputs, which)
        try:
            with evaluating(self.module) as module:
                return outputs_of(module, model, inputs)
        except RuntimeError as error:  # torch's error for shapes and dtypes that do not fit
            raise ModelError(f"the module cannot take the test set: {_mismatch(error, inputs, model)}") from error

    def to(self, device: torch.device | str) -> "Task":
        """The same task on a device, with a copy of the module."""
        inputs = each(self.inputs, lambda tensor: tensor.to(device))
        return replace(self, module=copied(self.module).to(device), inputs=inputs, labels=self.labels.to(device))

    @property
    def fingerprint(self) -> str:
        """The sha256 of the test set, of what judges it, and of the task's rule and noise; equal on all devices.

        If the federation exchanges only part of the module, the module's other tensors count too. The cells of the
        test samples do not: they follow from the rest.
        """
        tensors = tensors_of(self.inputs)
        digest = hashlib.sha256(str((tuple(tensors[0].shape), tensors[0].dtype)).encode())
        for tensor in (*tensors, self.labels):
            digest.update(tensor_bytes(tensor))
        # A task with the defaults adds nothing here, so that its fingerprint stays as it was before there were options.
        if not isinstance(self.inputs, torch.Tensor):
            names = list(self.inputs) if isinstance(self.inputs, dict) else []
            digest.update(str((names, [(tuple(t.shape), str(t.dtype)) for t in tensors])).encode())
        if self.loss != DEFAULT_LOSS:
            loss = self.loss if isinstance(self.loss, str) else identity_of(self.loss)
            digest.update(str((loss, tuple(self.labels.shape), str(self.labels.dtype))).encode())
        if self.measure is not None:
            digest.update(identity_of(self.measure).encode())
        if self.client_noise is not None:
            digest.update(f"client noise {self.client_noise!r}".encode())
        if self.groups is not None:
            digest.update(f"groups {self.groups!r}".encode())
        if self.rule is not None:
            digest.update(f"rule {json.dumps(self.rule.document())}".encode())
        if self.exchanged is not None:
            exchanged = self.state
            digest.update(str((list(exchanged), self.exchanged if isinstance(self.exchanged, dict) else None)).encode())
            for name, tensor in sorted(self.module.state_dict().items()):
                if name not in exchanged:
                    digest.update(f"{name} {hashlib.sha256(tensor_bytes(tensor)).hexdigest()}".encode())
        return digest.hexdigest()


def checked_task(found: Any, where: str) -> Task:
    """The task, or an error that says what was given instead."""
    if not isinstance(found, Task):
        remedy = "; use vertical.task()" if callable(getattr(found, "task", None)) else ""
        raise UsageError(f"{where}: found a {type(found).__name__}, expected a fedworth.Task{remedy}")
    return found


def _mismatch(error: RuntimeError, inputs: Inputs, model: Model) -> str:
    """Torch's message about inputs that do not fit, what was found, and what to do."""
    text = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    shown = ", ".join(f"{tuple(tensor.shape)} {tensor.dtype}" for tensor in tensors_of(inputs))
    dtypes = ", ".join(sorted({str(tensor.dtype) for tensor in model.values()}))
    return (
        f"{text} (found inputs {shown} and a model of {dtypes}); "
        "give inputs of the shape and dtype that the module takes (.float() makes float32)"
    )


def refuse_probabilities(task: Task, model: Model, outputs: torch.Tensor) -> None:
    """Refuse a module that ends in a softmax or sigmoid under a loss that takes logits: values would be wrong.

    Outputs of the first samples are probabilities if they look like it for this model and for others far from it. One
    is very far, as logits of small weights or embeddings may all lie between 0 and 1.
    """
    if task.judged_by.takes_probabilities:
        return
    last_layer = _probability_layer(task, outputs)
    if last_layer is None:
        return
    with torch.inference_mode():
        models = [moved(model, size, seed) for seed, size in enumerate((1, 1, 10))]
        others = [task.outputs(other, slice(0, len(outputs))) for other in models]
    finite = [other for other in others if bool(other.isfinite().all())]
    if not finite or any(torch.equal(o, outputs) or _probability_layer(task, o) != last_layer for o in finite):
        return
    instead = "loss='probabilities'" if last_layer == "softmax" else "a loss of your own"
    name = task.judged_by.criterion.name
    raise ModelError(
        f"the module's outputs are probabilities: it ends in a {last_layer}, and loss {name!r} takes logits; leave the "
        f"{last_layer} out of the task's module, or name a loss that takes probabilities, such as {instead}"
    )


def _probability_layer(task: Task, outputs: torch.Tensor) -> str | None:
    """Which layer such outputs come from, if they may be probabilities."""
    outputs = outputs.to(torch.float64)
    if not bool(((outputs >= 0) & (outputs <= 1)).all()):
        return None
    dimension = task.judged_by.over_classes
    if dimension is None or outputs.ndim <= dimension or outputs.shape[dimension] < 2:
        return "sigmoid"
    sums_to_one = bool(((outputs.sum(dim=dimension) - 1).abs() <= PROBABILITY_TOLERANCE).all())
    return "softmax" if sums_to_one else "sigmoid"


def _run_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise UsageError(f"--task {path}: no such file")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise UsageError(f"--task {path}: not a Python file")
    module = importlib.util.module_from_spec(spec)
    package = path.absolute().parent
    while (package / "__init__.py").is_file():
        package = package.parent
    sys.path[:0] = [str(path.absolute().parent), str(package)]
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise UsageError(f"--task {path}: failed with {type(error).__name__}: {error}") from error
    finally:
        del sys.path[:2]
    return module
