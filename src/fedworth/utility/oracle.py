"""The oracle: what measures a utility; each call costs.

U_t(S) = ℓ(w^t; D_c) − ℓ(w_S; D_c), the mean loss on the server's test set before minus after (eq. utility), or
accuracy after minus before. `LoopOracle` is the plain one, obvious and correct: average, load, predict. Every faster
oracle is tested against it.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch.func import functional_call

from fedworth.arrays import Utilities
from fedworth.errors import ModelError
from fedworth.federation.simulation.models import state_of
from fedworth.federation.simulation.threads import fitting_threads
from fedworth.federation.task import Task
from fedworth.ledger.ledger import Model, Round
from fedworth.names import Measure, checked_name
from fedworth.utility.fitting import fitted
from fedworth.utility.weighting import Mixtures

BATCH = 1024


class Oracle(Protocol):
    """Measures the utilities of one round's coalitions, given as mixtures of the round's models."""

    def utilities(self, round_: Round, mixtures: Mixtures) -> Utilities:
        """One utility a mixture, in the order given."""


@runtime_checkable
class TaskOracle(Oracle, Protocol):
    """An oracle that says what it measures on."""

    @property
    def task(self) -> Task:
        """The module and the test set."""

    @property
    def measure(self) -> Measure:
        """Loss or accuracy."""


@dataclass(frozen=True)
class LoopOracle:
    """One coalition after the other; models are averaged in float64, on the CPU, and evaluated in their own precision,
    where the task is."""

    task: Task
    measure: Measure = "loss"

    def __post_init__(self) -> None:
        checked_name("measure", self.measure)

    def utilities(self, round_: Round, mixtures: Mixtures) -> Utilities:
        """One utility a mixture, in the order given."""
        round_ = fitted(round_, state_of(self.task.module))
        models = {**round_.client_models, **round_.apart_models}
        with fitting_threads(self.task.module):
            before = self._quality(round_.global_model)
            after = [
                self._quality(mix(round_.global_model, models, of_clients, of_global))
                for of_clients, of_global in zip(mixtures.of_clients, mixtures.of_global.tolist(), strict=True)
            ]
        return np.array(after) - before

    def _quality(self, model: Model) -> float:
        """Minus the mean loss, or the accuracy: higher is better."""
        total = 0.0
        for logits, labels in predictions(self.task, model):
            if self.measure == "accuracy":
                total += float((logits.argmax(dim=1) == labels).sum())
            else:
                total -= float(F.cross_entropy(logits, labels, reduction="none").sum(dtype=torch.float64))
        return total / len(self.task.labels)


def predictions(task: Task, model: Model) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """The model's logits and the labels of the test set, a batch after the other."""
    module = task.module.eval()
    model = {name: tensor.to(task.inputs.device) for name, tensor in model.items()}
    for start in range(0, len(task.labels), BATCH):
        inputs, labels = task.inputs[start : start + BATCH], task.labels[start : start + BATCH]
        with torch.inference_mode():
            logits = functional_call(module, model, (inputs,), tie_weights=False)
        refuse_other_classes(logits, labels)
        yield logits, labels


def refuse_other_classes(logits: torch.Tensor, labels: torch.Tensor) -> None:
    """A label that the model has no logit for would be an index out of range, or silently a wrong prediction."""
    if logits.ndim != 2 or int(labels.max()) >= logits.shape[1]:
        found = f"logits of shape {tuple(logits.shape)}, labels up to {int(labels.max())}"
        raise ModelError(f"the model gives {found}; expected one row a sample and one logit a class")


def mix(global_model: Model, models: dict[int, Model], of_clients: NDArray[np.float64], of_global: float) -> Model:
    """One mixture of models, summed in float64; integer tensors are averaged and rounded, as the server does."""
    mixed: Model = {}
    members = np.flatnonzero(of_clients)
    missing = sorted(set(members.tolist()) - set(models))
    if missing:
        raise ModelError(f"clients {missing} have no model in this round, so no coalition with them can be measured")
    for name, like in global_model.items():
        total = of_global * like.to(torch.float64)
        for k in members.tolist():
            total = total + float(of_clients[k]) * models[k][name].to(torch.float64)
        mixed[name] = total.to(like.dtype) if like.is_floating_point() else total.round().to(like.dtype)
    return mixed
