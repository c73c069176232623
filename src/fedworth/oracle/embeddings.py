"""The oracle of vertical federations: coalitions of embeddings.

    U_t(S) = mean over samples of  ℓ(head_t(h^{t−1} of all)) − ℓ(head_t(h^t of S, h^{t−1} of the others))

head_t is the server's head as the embeddings of round t found it, before the server learned from them. An absent
client's embeddings are stale, so a client that changes nothing adds exactly nothing.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from fedworth.arrays import Indices, Utilities
from fedworth.errors import ModelError
from fedworth.ledger.ledger import Model, Round
from fedworth.names import Measure
from fedworth.oracle.oracle import criteria_of, fitted, in_columns, outputs_on, quality, refuse_unfit
from fedworth.oracle.weighting import Mixtures
from fedworth.task.task import Task
from fedworth.threads import fitting_threads


@dataclass(frozen=True)
class EmbeddingOracle:
    """Measures coalitions of a vertical federation, one after the other."""

    task: Task
    measure: Measure = "loss"
    also: tuple[Measure, ...] = ()

    @property
    def n_blocks(self) -> int:
        """The number of blocks of samples."""
        return self.task.n_blocks

    def utilities(self, round_: Round, mixtures: Mixtures) -> Utilities:
        """(n_mixtures, n_columns): the utility of each coalition on each block of samples, then by other measures."""
        criteria, round_ = criteria_of(self.task, self.measure, self.also), fitted(round_, self.task)
        with fitting_threads(self.task.module):
            refuse_unfit(self.task, criteria, round_.global_model)
            before = quality(self.task, criteria, round_.global_model)
            after = [quality(self.task, criteria, _mixed(round_, members)) for members in mixtures.memberships]
        return in_columns(np.array(after).reshape(-1, *before.shape) - before)

    def outputs(self, round_: Round, mixtures: Mixtures, which: Sequence[Indices]) -> Iterator[torch.Tensor]:
        """The outputs of each coalition on its own samples, given by their numbers."""
        round_ = fitted(round_, self.task)
        refuse_unfit(self.task, criteria_of(self.task, self.measure, ()), round_.global_model)
        for members, samples in zip(mixtures.memberships, which, strict=True):
            with fitting_threads(self.task.module):
                outputs = outputs_on(self.task, _mixed(round_, members), samples)
            yield outputs


def _mixed(round_: Round, members: np.ndarray) -> Model:
    """The head with the members' new embeddings and the others' old ones."""
    mixed = dict(round_.global_model)
    for k in np.flatnonzero(members).tolist():
        if k not in round_.client_models:
            raise ModelError(f"round {round_.entry.number}: a coalition has a member without embeddings in this round")
        mixed[f"embeddings.{k}"] = round_.client_models[k][f"embeddings.{k}"]
    return mixed
