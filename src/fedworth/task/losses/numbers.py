"""Losses of numbers and of yes or no, one output a label.

squared-error    (output − label)², the mean over all labels
binary           log loss of one logit a sample
hinge-binary     max(0, 1 − y·output), y = ±1
multi-label      log loss of every flag's logit, the mean over all flags
"""

import torch
import torch.nn.functional as F

from fedworth.task.losses.criterion import Criterion, Loss
from fedworth.task.losses.orders import AUC
from fedworth.task.losses.shapes import as_labels, flags, numbers


def _beside(outputs: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Both as (n_samples, n_labels), labels in the outputs' precision."""
    return outputs.reshape(len(labels), -1), labels.reshape(len(labels), -1).to(outputs.dtype)


def _squared(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    found, wanted = _beside(outputs, labels)
    return (found - wanted).square().mean(dim=1)


def _absolute(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    found, wanted = _beside(outputs, labels)
    return -(found - wanted).abs().mean(dim=1)


def _explained(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """R² of all labels together, each column against its own mean."""
    found, wanted = (t.double() for t in _beside(outputs, labels))
    spread = (wanted - wanted.mean(dim=0)).square().sum()
    return 1 - (found - wanted).square().sum() / spread


def _flags(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    found, wanted = _beside(outputs, labels)
    return F.binary_cross_entropy_with_logits(found, wanted, reduction="none").mean(dim=1)


def _right_flags(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    found, wanted = _beside(outputs, labels)
    return ((found > 0) == (wanted > 0)).double().mean(dim=1)


def _hinge(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    found, wanted = _beside(outputs, labels)
    return (1 - (2 * wanted - 1) * found).clamp(min=0).mean(dim=1)


_R2 = Criterion("r2", _explained, is_better_higher=True, is_whole=True)
_MINUS_ABSOLUTE = Criterion("absolute-error", _absolute, is_better_higher=True, is_smooth=False)
_RIGHT = Criterion("accuracy", _right_flags, is_better_higher=True, is_smooth=False)

OF_NUMBERS = (
    Loss(Criterion("squared-error", _squared), numbers, as_labels, (_R2, _MINUS_ABSOLUTE)),
    Loss(Criterion("binary", _flags), flags, as_labels, (_RIGHT, AUC), takes_probabilities=False),
    Loss(Criterion("hinge-binary", _hinge, is_smooth=False), flags, as_labels, (_RIGHT, AUC)),
    Loss(Criterion("multi-label", _flags), flags, as_labels, (_RIGHT,), takes_probabilities=False),
)
