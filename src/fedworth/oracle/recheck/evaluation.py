"""One model on the whole test set, by the plain loop: its losses, its quality, and how far rounding may move that."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from fedworth.ledger.ledger import Model
from fedworth.oracle.oracle import predictions, together
from fedworth.task.losses import ACCURACY, CROSS_ENTROPY, Criterion
from fedworth.task.task import Task
from fedworth.threads import fitting_threads

N_MOVES = 8
"""How often outputs are moved, to see what rounding does to a criterion."""


@dataclass(frozen=True)
class Evaluation:
    """What one model makes of the test set."""

    losses: NDArray[np.float64]  # (n_samples,), or (1,) of a loss that looks at the whole
    quality: float  # higher is better
    gaps: NDArray[np.float64] | None  # (n_samples,) between the label's logit and the best other, for accuracy
    moves: float  # how far rounding may move the quality, if neither cross-entropy nor accuracy says it
    largest: float  # output


def evaluation(task: Task, criterion: Criterion, model: Model, roundoff: float) -> Evaluation:
    """What a model makes of the test set, by the plain loop, and how far rounding may move it."""
    loss = task.judged_by.criterion
    with fitting_threads(task.module):
        pairs: Iterable[tuple[torch.Tensor, torch.Tensor]] = predictions(task, model)
        if loss.is_whole or criterion.is_whole:
            pairs = [together(pairs)]
        parts = [_part(loss, criterion, outputs, labels, roundoff) for outputs, labels in pairs]
    n_counted = criterion.n_counted(task.labels)
    gaps = [part.gaps for part in parts if part.gaps is not None]
    return Evaluation(
        np.concatenate([part.losses for part in parts]),
        sum(part.quality for part in parts) / n_counted,
        np.concatenate(gaps) if gaps else None,
        sum(part.moves for part in parts) / n_counted,
        max(part.largest for part in parts),
    )


def _part(
    loss: Criterion, criterion: Criterion, outputs: torch.Tensor, labels: torch.Tensor, roundoff: float
) -> Evaluation:
    """The same of a batch, summed."""
    losses = loss.of(outputs, labels).double().reshape(-1).cpu().numpy()
    largest, gaps, moves = float(outputs.abs().max()), None, 0.0
    if criterion is ACCURACY:
        gaps = _gaps(outputs, labels).cpu().numpy()
    elif criterion is not CROSS_ENTROPY:
        moves = _moves(criterion, outputs, labels, 4 * roundoff * max(1.0, largest))
    return Evaluation(losses, criterion.total(outputs, labels), gaps, moves, largest)


def _gaps(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    own = logits.gather(1, labels[:, None])[:, 0]
    others = logits.scatter(1, labels[:, None], -math.inf).amax(dim=1)
    return (own - others).abs().double()


def _moves(criterion: Criterion, outputs: torch.Tensor, labels: torch.Tensor, step: float) -> float:
    """How far moving outputs by a step, up or down at random, moves each sample's number; of a whole, four times it."""
    generator = torch.Generator().manual_seed(0)
    outputs = outputs.double()
    start = criterion.of(outputs, labels).double()
    most = torch.zeros_like(start)
    for _ in range(N_MOVES):
        signs = torch.randint(0, 2, outputs.shape, generator=generator).to(outputs) * 2 - 1
        most = torch.maximum(most, (criterion.of(outputs + step * signs, labels).double() - start).abs())
    return float(most.sum()) * (4 if criterion.is_whole else 1)
