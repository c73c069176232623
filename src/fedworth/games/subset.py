"""A smaller test set in which every class keeps its share.

Utilities are differences of mean losses, so with n of N test samples they cost n/N of the time. One subset for all
coalitions keeps equal clients exactly equal. A subset drawn without regard to labels would add much noise to the values
of clients with few classes.

Systematic sampling: the samples are sorted by label, in random order within a label; with a random start u in [0, 1)
those at ⌊(u + k) N/n⌋, k = 0 … n−1, are taken. Each sample has the chance n/N, so mean losses are unbiased; a class of
N_c samples gets ⌊n N_c/N⌋ or ⌈n N_c/N⌉. Numeric labels are spread in the same way; samples with several labels have no
order and are drawn at random.
"""

from dataclasses import replace

import numpy as np
import torch

from fedworth.errors import UsageError
from fedworth.task.samples import rows
from fedworth.task.task import Task


def stratified_subset(task: Task, n_samples: int, *, rng: np.random.Generator) -> Task:
    """The task with fewer test samples, in their original order and each class in proportion."""
    n_all = len(task.labels)
    if not 1 <= n_samples <= n_all:
        raise UsageError(f"{n_samples} test samples: expected 1 to {n_all}")
    shuffled = rng.permutation(n_all)
    labels = task.labels.cpu().numpy()[shuffled]
    by_label = shuffled[np.argsort(labels, kind="stable")] if labels.ndim == 1 else shuffled  # (n_all,)
    places = np.floor((rng.random() + np.arange(n_samples)) * n_all / n_samples).astype(np.int64)
    kept = torch.from_numpy(np.sort(by_label[np.minimum(places, n_all - 1)]))  # (n_samples,)
    groups = task.groups and {name: [of[k] for k in kept.tolist()] for name, of in task.groups.items()}
    return replace(task, inputs=rows(task.inputs, kept), labels=task.labels[kept], groups=groups, blocks=None)
