"""What embeddings add to those that others have: a vertical federation's head, fitted anew for each coalition.

    U(S) = loss(nobody's embeddings) − loss(embeddings of S, as they came and as they changed)

VerFedSV is about training: what a client's step added while the others took theirs. Steps of one round hardly interact,
so two clients with the same features both earn, and what somebody has already makes no difference. Here the game is one
of information: the server has everyone's embeddings and the labels, so it can fit a linear head to those of any
coalition. Clients that train together leave to each other what both have, so their last embeddings do not tell what
each would have learned alone. What came before does: a client's first step is towards all that its own features tell.
Of a client that has sent h_0, …, h_m the head gets

    h_0,  h_1 − h_0,  h_√m − h_1,  h_m − h_√m        side by side, each scaled to mean square 1
    head_S = argmin  mean loss + PENALTY ‖weights‖²

Outputs are measured on samples that the head was not fitted to (cross-fitting), so useless embeddings add nothing, or a
little less.
"""

import math
from itertools import pairwise

import numpy as np
import torch

from fedworth.arrays import Floats, Memberships, stream
from fedworth.errors import ValuationError
from fedworth.games.federation import RecordedFederation
from fedworth.games.game import Memory
from fedworth.oracle.oracle import block_totals, criteria_of, fitted, n_counted
from fedworth.threads import one_torch_thread

PENALTY = 0.01
N_FOLDS = 4
MOST_STEPS = 60
"""Steps of L-BFGS; a linear head has converged long before."""


class RefittedGame:
    """The game among the clients of a vertical federation on their embeddings in the course of the training."""

    def __init__(self, federation: RecordedFederation) -> None:
        self.task, self.clients, self.n_blocks = federation.oracle.task, federation.heard, federation.oracle.n_blocks
        if self.task.judged_by.criterion.is_own or not self.task.judged_by.criterion.is_smooth:
            raise ValuationError("refitted-head needs a loss with derivatives, and this task's may have none")
        self._embeddings = []  # (n_samples, up to 4 × width) of each client
        for k in self.clients.tolist():
            sent = np.flatnonzero(federation.participants[:, k])
            last = len(sent) - 1
            rounds = sent[sorted({min(place, last) for place in (0, 1, math.isqrt(last), last)})].tolist()
            models = [fitted(federation.round(t), self.task).client_models[k] for t in rounds]
            held = [model[f"embeddings.{k}"][self.task.inputs].double() for model in models]  # of samples to judge
            parts = [held[0], *(after - before for before, after in pairwise(held))]
            self._embeddings.append(torch.cat([h / h.square().mean().sqrt().clamp_min(1e-12) for h in parts], dim=1))
        with torch.inference_mode():
            model = fitted(federation.round(0), self.task).global_model
            self._shape = self.task.outputs(model, slice(0, 1)).shape[1:]  # of a sample's output
        n = len(self.task.labels)
        self._folds = torch.from_numpy(stream(0, "folds of samples").permutation(n) % min(N_FOLDS, n))
        self._criteria = criteria_of(self.task, federation.oracle.measure, ())
        self._memory, self._of_nobody = Memory(len(self.clients), self.n_blocks), self._quality(np.zeros(0, dtype=int))

    def utilities(self, coalitions: Memberships) -> Floats:
        """(n_coalitions, n_blocks): what each coalition's embeddings gain over none."""
        return self._memory.utilities(coalitions, self._measure)

    @one_torch_thread()
    def _measure(self, coalitions: Memberships) -> Floats:
        return np.array([self._quality(np.flatnonzero(row)) - self._of_nobody for row in coalitions])

    def _quality(self, members: np.ndarray) -> Floats:
        """(n_blocks,): the score of the coalition's outputs, each made by a head that has not seen the sample."""
        labels = self.task.labels
        empty = torch.zeros(len(labels), 0, dtype=torch.float64)
        inputs = torch.cat([empty, *(self._embeddings[k] for k in members.tolist())], dim=1)
        outputs = torch.zeros(len(labels), *self._shape, dtype=torch.float64)
        for fold in self._folds.unique().tolist():
            apart = self._folds == fold
            weights, bias = self._fitted(inputs[~apart], labels[~apart])
            outputs[apart] = (inputs[apart] @ weights + bias).reshape(-1, *self._shape)
        totals = block_totals(self._criteria, outputs, labels, self.task.blocks, self.n_blocks)
        return np.asarray((totals / n_counted(self._criteria, labels))[0])

    def _fitted(self, inputs: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The weights and the bias of the head that fits these samples best."""
        n_outputs = int(np.prod(self._shape))
        weights = torch.zeros(inputs.shape[1], n_outputs, dtype=torch.float64, requires_grad=True)
        bias = torch.zeros(n_outputs, dtype=torch.float64, requires_grad=True)
        optimizer = torch.optim.LBFGS(
            [weights, bias], max_iter=MOST_STEPS, tolerance_grad=1e-6, line_search_fn="strong_wolfe"
        )

        def loss() -> torch.Tensor:
            optimizer.zero_grad()
            outputs = (inputs @ weights + bias).reshape(-1, *self._shape)
            found = PENALTY * weights.square().sum() - self.task.judged_by.criterion.quality(outputs, labels)
            found.backward()
            return found

        optimizer.step(loss)
        return weights.detach(), bias.detach()
