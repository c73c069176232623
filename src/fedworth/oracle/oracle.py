"""The oracle: what measures a utility; each call costs.

U_t(S) = ℓ(w^t; D_c) − ℓ(w_S; D_c), the task's loss on the server's test set before minus after (eq. utility), or a
measure such as accuracy after minus before. `LoopOracle` is the plain one, obvious and correct: average, load, predict.
Every faster oracle is tested against it.
"""

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray

from fedworth.arrays import Floats, Indices, Utilities
from fedworth.errors import ModelError, UsageError, UtilityError
from fedworth.ledger.ledger import Model, Round
from fedworth.names import Measure
from fedworth.oracle.fitting import fitted
from fedworth.oracle.weighting import Mixtures
from fedworth.task.losses import Criterion
from fedworth.task.task import N_PROBED, Task, refuse_probabilities
from fedworth.threads import fitting_threads

BATCH = 1024
PIECE = 1 << 20
"""Numbers of a tensor that are mixed at a time."""

MOST_OUTPUTS = 1 << 23
"""Numbers that a batch's outputs may have, where a sample has many labels: pixels or tokens, times classes."""


class Oracle(Protocol):
    """Measures the utilities of one round's coalitions, given as mixtures of the round's models."""

    @property
    def n_blocks(self) -> int:
        """The number of blocks of test samples."""

    def utilities(self, round_: Round, mixtures: Mixtures) -> Utilities:
        """(n_mixtures, n_blocks): the utility of each mixture on each block of test samples."""


@runtime_checkable
class TaskOracle(Oracle, Protocol):
    """An oracle that says what it measures on."""

    @property
    def task(self) -> Task:
        """The module and the test set."""

    @property
    def measure(self) -> Measure:
        """`loss`, or the name of a measure that goes with the task's loss."""


def threads_of(oracle: Oracle) -> AbstractContextManager[None]:
    """For as long as it lasts, the threads that fit the module which an oracle measures: models are mixed and compared
    on them too. Torch's own if the oracle does not say what it measures on."""
    if isinstance(oracle, TaskOracle) and isinstance(oracle.task, Task):
        return fitting_threads(oracle.task.module)
    return nullcontext()


def n_threads_of(oracle: Oracle) -> int:
    """How many threads an oracle works on; one if it does not say."""
    return int(getattr(oracle, "n_threads", 1))


@dataclass(frozen=True)
class LoopOracle:
    """One coalition after the other; models are averaged in float64, on the CPU, and evaluated in their own
    precision, where the task is.

    Args:
        task: What models are judged by.
        measure: `loss`, or a measure of the task such as `accuracy`.

    Example:
        utilities = fedworth.observe(ledger, fedworth.LoopOracle(task, measure="accuracy"))
    """

    task: Task
    measure: Measure = "loss"

    def __post_init__(self) -> None:
        self.task.criterion(self.measure)  # refuses what the task does not know

    @property
    def n_blocks(self) -> int:
        """The number of blocks of test samples."""
        return self.task.n_blocks

    def utilities(self, round_: Round, mixtures: Mixtures) -> Utilities:
        """(n_mixtures, n_blocks): the utility of each mixture on each block of test samples."""
        criterion = self.task.criterion(self.measure)
        refuse_whole_by_blocks(self.task, criterion)
        round_ = fitted(round_, self.task)
        models = {**round_.client_models, **round_.apart_models}
        with fitting_threads(self.task.module):
            refuse_unfit(self.task, round_.global_model)
            before = quality(self.task, criterion, round_.global_model)
            after = [
                quality(self.task, criterion, mix(round_.global_model, models, of_clients, of_global))
                for of_clients, of_global in zip(mixtures.of_clients, mixtures.of_global.tolist(), strict=True)
            ]
        return np.array(after).reshape(-1, self.n_blocks) - before


def quality(task: Task, criterion: Criterion, model: Model) -> Floats:
    """(n_blocks,): what a criterion says of a model on each block of test samples; higher is better."""
    pairs = predictions(task, model)
    if criterion.is_whole:
        return np.array([criterion.total(*together(pairs))])
    found, start = np.zeros(task.n_blocks), 0
    for outputs, labels in pairs:
        blocks = None if task.blocks is None else task.blocks[start : start + len(labels)]
        found += block_totals(criterion, outputs, labels, blocks, task.n_blocks)
        start += len(labels)
    return found / criterion.n_counted(task.labels)


def refuse_whole_by_blocks(task: Task, criterion: Criterion) -> None:
    """Refuse a criterion that is no mean over samples where the task has several blocks of them."""
    if criterion.is_whole and task.n_blocks > 1:
        raise UsageError(
            f"{criterion.name} looks at the whole test set at once, so it has no utilities by block of test samples; "
            "leave out the task's blocks, or choose a measure that is a mean over samples"
        )


def block_totals(
    criterion: Criterion, outputs: torch.Tensor, labels: torch.Tensor, blocks: Indices | None, n_blocks: int
) -> Floats:
    """(n_blocks,): the sum over the samples of each block, summed in float64; higher is better."""
    if blocks is None:
        return np.array([criterion.total(outputs, labels)])
    scores = criterion.of(outputs, labels).double().cpu().numpy()  # (n_samples,)
    totals = np.bincount(blocks, scores, minlength=n_blocks).astype(np.float64)
    return totals if criterion.is_better_higher else -totals


def predictions(task: Task, model: Model) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """The model's outputs and the labels of the test set, a batch after the other."""
    size = batch_size(task, model)
    for start in range(0, len(task.labels), size):
        some = slice(start, start + size)
        with torch.inference_mode():
            outputs = task.outputs(model, some)
        refuse_misfit(task, outputs, task.labels[some])
        yield outputs, task.labels[some]


def together(pairs: Iterable[tuple[torch.Tensor, torch.Tensor]]) -> tuple[torch.Tensor, torch.Tensor]:
    """All outputs and all labels."""
    outputs, labels = zip(*pairs, strict=True)
    return torch.cat(outputs), torch.cat(labels)


def batch_size(task: Task, model: Model) -> int:
    """How many samples go through the module together."""
    if task.labels.ndim == 1:
        return BATCH
    with torch.inference_mode():
        return max(1, min(BATCH, MOST_OUTPUTS // max(1, task.outputs(model, slice(0, 1)).numel())))


def refuse_unfit(task: Task, model: Model) -> None:
    """Refuse a module whose outputs the loss cannot judge, as its first samples show it; with the largest label of all
    among theirs."""
    some = slice(0, N_PROBED)
    labels = task.labels[some].clone()
    labels.view(-1)[0] = task.labels.max()
    with torch.inference_mode():
        first, second = task.outputs(model, some), task.outputs(model, some)
        refuse_misfit(task, first, labels)
    if not torch.allclose(first.double(), second.double(), equal_nan=True):
        raise UtilityError(
            "the module gives other outputs when it is called again with the same model, so it cannot be measured; "
            "leave out dropout and other random numbers when it is in evaluation mode"
        )
    refuse_probabilities(task, model)


def refuse_misfit(task: Task, outputs: torch.Tensor, labels: torch.Tensor) -> None:
    """Outputs that the loss cannot judge; a label without a logit would be an index out of range, or go unseen."""
    misfit = task.judged_by.outputs(outputs, labels)
    if misfit:
        raise ModelError(f"the model gives {misfit}, as loss {task.judged_by.criterion.name!r} needs")


def mix(global_model: Model, models: dict[int, Model], of_clients: NDArray[np.float64], of_global: float) -> Model:
    """One mixture of models, summed in float64; integer tensors are averaged and rounded, as the server does."""
    mixed: Model = {}
    members = np.flatnonzero(of_clients)
    missing = sorted(set(members.tolist()) - set(models))
    if missing:
        raise ModelError(f"clients {missing} have no model in this round, so no coalition with them can be measured")
    for name, like in global_model.items():
        parts = [(of_global, like), *((float(of_clients[k]), models[k][name]) for k in members.tolist())]
        mixed[name] = _in_pieces(parts) if like.numel() > PIECE else _summed(parts)
    return mixed


def _in_pieces(parts: list[tuple[float, torch.Tensor]]) -> torch.Tensor:
    """The sum of large tensors: float64 copies of them would take the memory of several models."""
    like = parts[0][1]
    made = torch.empty_like(like, memory_format=torch.contiguous_format)
    for start in range(0, like.numel(), PIECE):
        some = slice(start, start + PIECE)
        made.view(-1)[some] = _summed([(weight, tensor.reshape(-1)[some]) for weight, tensor in parts])
    return made


def _summed(parts: list[tuple[float, torch.Tensor]]) -> torch.Tensor:
    """The weighted sum of tensors, in the dtype of the first."""
    (weight, like), *others = parts
    total = weight * like.to(torch.float64)
    for weight, tensor in others:
        total += weight * tensor.to(torch.float64)
    return total.to(like.dtype) if like.is_floating_point() else total.round().to(like.dtype)
