"""A criterion judges a model's outputs against the labels; a loss is a criterion that says what it needs of both.

    quality = ± Σ over samples of `of` / `n_counted`        − for a loss, + where higher is better

A criterion that is `whole` cannot be taken apart into samples (the order of all samples counts, as in AUC and Cox's
partial likelihood): it sees the outputs of the whole test set at once and gives one number.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch

Function = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""Outputs (n_samples, …) and labels (n_samples, …) → one number a sample, or one number."""


def n_samples(labels: torch.Tensor) -> float:
    """Every sample counts one."""
    return float(len(labels))


@dataclass(frozen=True)
class Criterion:
    """What judges outputs: of every sample, or of all together."""

    name: str
    of: Function
    is_better_higher: bool = False
    is_whole: bool = False
    is_smooth: bool = True  # whether it has first and second derivatives in the outputs
    counted: Callable[[torch.Tensor], float] = n_samples

    def n_counted(self, labels: torch.Tensor) -> float:
        """What sums over the whole test set are divided by."""
        return 1.0 if self.is_whole else self.counted(labels)

    def total(self, outputs: torch.Tensor, labels: torch.Tensor) -> float:
        """Higher is better: the sum over these samples, or what the criterion says of the whole."""
        found = float(self.of(outputs, labels).sum(dtype=torch.float64))
        return found if self.is_better_higher else -found

    def quality(self, outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Higher is better, of these samples taken for the whole, and fit to be differentiated."""
        total = self.of(outputs, labels).sum() / self.n_counted(labels)
        return total if self.is_better_higher else -total


Complaint = Callable[[torch.Tensor], str]
"""What is wrong with labels, and what was expected; nothing if they are as they should be."""

Misfit = Callable[[torch.Tensor, torch.Tensor], str]
"""What is wrong with outputs beside their labels."""


@dataclass(frozen=True)
class Loss:
    """A criterion to be made small, the labels and outputs that it takes, and the measures that go with it."""

    criterion: Criterion
    labels: Complaint
    outputs: Misfit
    measures: tuple[Criterion, ...] = ()
    over_classes: int | None = None  # the dimension of outputs that a constant may be added along without effect
    takes_probabilities: bool = True  # False: outputs must be logits, and probabilities are found and refused
