"""What embeddings add to those that others have: a vertical federation's head, fitted anew for each coalition.

    U(S) = loss(nobody's embeddings) − loss(embeddings of S, as they came and as they changed)

VerFedSV is about training: what a client's step added while the others took theirs. Steps of one round hardly interact,
so two clients with the same features both earn, and what somebody has already makes no difference. Here the game is one
of information: the server has everyone's embeddings and the labels, so it can fit a linear head to those of any
coalition. Clients that train together leave to each other what both have, so their last embeddings do not tell what
each would have learned alone. What came before does: a client's first step is towards all that its own features tell.
Of a client that has sent h_0, …, h_m the head gets

    h_0,  h_1 − h_0,  h_√m − h_1,  h_m − h_√m        side by side, each number with mean 0 and mean square 1
    head_S = argmin  mean loss + PENALTY ‖weights‖²

What varies by less than `ROUNDING` of h_0 is not enlarged: it may be rounding. Outputs are measured on samples that
the head was not fitted to, so useless embeddings add nothing, or a little less. Samples are divided into `N_FOLDS` in
`N_DIVISIONS` ways, each class alike and samples with the same embeddings together. The utility is the mean over the
divisions, and their spread tells how much the values depend on them.
"""

import math
from collections.abc import Callable
from itertools import pairwise

import numpy as np
import torch

from fedworth.arrays import Floats, Indices, Memberships, stream
from fedworth.errors import ValuationError
from fedworth.games.federation import RecordedFederation
from fedworth.games.game import Memory
from fedworth.games.shapley import MOST_ENUMERATED
from fedworth.oracle.oracle import block_totals, criteria_of, fitted, n_counted
from fedworth.storage import Progress, silent
from fedworth.threads import one_torch_thread

PENALTY = 0.01
ROUNDING = 1e-4
N_FOLDS, N_DIVISIONS = 4, 4
CURVATURE = 0.25
"""About the second derivative of a loss by an output; it only changes how fast a head is found."""

NO_DIRECTION = 1e-8
"""Directions of the embeddings with a smaller mean square are left out; the penalty leaves no weight to them."""

MOST_STEPS, TOLERANCE = 60, 1e-7
"""Of the search for heads: steps of L-BFGS, and the gradient of the loss, relative to the loss, at which it ends."""

MOST_WORK = 1e8
"""Numbers that a coalition's fits handle, above which coalitions are drawn from `MOST_SLOW` clients on."""
MOST_SLOW = 7


class RefittedGame:
    """The game among the clients of a vertical federation on their embeddings in the course of the training."""

    def __init__(self, federation: RecordedFederation, progress: Progress = silent) -> None:
        self.task, self.clients, self.n_blocks = federation.oracle.task, federation.heard, federation.oracle.n_blocks
        if self.task.judged_by.criterion.is_own or not self.task.judged_by.criterion.is_smooth:
            raise ValuationError("refitted-head needs a loss with derivatives, and this task's may have none")
        self._progress, self._labels = progress, self.task.labels.cpu()
        self._embeddings = [self._of_client(federation, k) for k in self.clients.tolist()]
        with torch.inference_mode():
            model = fitted(federation.round(0), self.task).global_model
            self._shape = self.task.outputs(model, slice(0, 1)).shape[1:]  # of a sample's output
        self._folds = divisions(torch.cat(self._embeddings, dim=1).numpy(), self._labels)
        self._n_heads = N_DIVISIONS * (int(self._folds.max()) + 1)
        self._criteria = criteria_of(self.task, federation.oracle.measure, ())
        self._memory = Memory(len(self.clients), N_DIVISIONS * self.n_blocks)
        self._of_nobody = self._qualities(np.zeros(0, dtype=int))

    def _of_client(self, federation: RecordedFederation, k: int) -> torch.Tensor:
        """(n_samples, up to 4 × width): the embeddings of a client, as they came and as they changed."""
        sent = np.flatnonzero(federation.participants[:, k])
        last = len(sent) - 1
        rounds = sent[sorted({min(place, last) for place in (0, 1, math.isqrt(last), last)})].tolist()
        models = [fitted(federation.round(t), self.task).client_models[k] for t in rounds]
        held = [model[f"embeddings.{k}"][self.task.inputs].cpu().double() for model in models]  # of samples to judge
        held = [h - h.mean(dim=0) for h in held]
        least = max(ROUNDING * float(held[0].square().mean().sqrt()), 1e-12)
        parts = [held[0], *(after - before for before, after in pairwise(held))]
        return torch.cat([h / h.square().mean(dim=0).sqrt().clamp_min(least) for h in parts], dim=1)

    @property
    def most_enumerated(self) -> int:
        """Of more clients, coalitions are drawn. This does not depend on the machine, so all get the same values."""
        n_columns = min(sum(h.shape[1] for h in self._embeddings), len(self._labels))
        work = len(self._labels) * n_columns * self._n_heads * int(np.prod(self._shape))
        return MOST_ENUMERATED if work <= MOST_WORK else MOST_SLOW

    def utilities(self, coalitions: Memberships) -> Floats:
        """(n_coalitions, n_blocks): what each coalition's embeddings gain over none."""
        return np.asarray(self._by_division(coalitions).mean(axis=1))

    def of_division(self, division: int) -> "OneDivision":
        """The same game by one division of the samples."""
        return OneDivision(self, division)

    def _by_division(self, coalitions: Memberships) -> Floats:
        found = self._memory.utilities(coalitions, self._measure)
        return found.reshape(len(coalitions), N_DIVISIONS, self.n_blocks)

    @one_torch_thread()
    def _measure(self, coalitions: Memberships) -> Floats:
        found = []
        for n_done, row in enumerate(coalitions, 1):
            found.append(self._qualities(np.flatnonzero(row)) - self._of_nobody)
            self._progress("fitting heads", n_done, len(coalitions))
        return np.array(found)

    def _qualities(self, members: Indices) -> Floats:
        """(N_DIVISIONS × n_blocks,): scores of outputs that are each made by a head that has not seen the sample."""
        inputs = torch.cat([torch.zeros(len(self._labels), 0).double(), *(self._embeddings[k] for k in members)], dim=1)
        outputs = self._fitted_outputs(inputs)
        samples, found = torch.arange(len(self._labels)), []
        for division, folds in enumerate(self._folds):
            apart = outputs[samples, division * (self._n_heads // N_DIVISIONS) + folds]
            totals = block_totals(self._criteria, apart, self._labels, self.task.blocks, self.n_blocks)
            found.append((totals / n_counted(self._criteria, self._labels))[0])
        return np.concatenate(found)

    def _fitted_outputs(self, inputs: torch.Tensor) -> torch.Tensor:
        """(n_samples, n_heads, …): outputs of all samples, by a head for each fold of each division left out.

        All heads are fitted together, in coordinates in which the loss is about as curved in all directions.
        """
        n, n_outputs, criterion = len(inputs), int(np.prod(self._shape)), self.task.judged_by.criterion
        rotated, squares = _principal(inputs)
        scale = (CURVATURE * squares + 2 * PENALTY).rsqrt()  # (rank,)
        inputs = rotated * scale
        weights = torch.zeros(inputs.shape[1], self._n_heads * n_outputs, dtype=torch.float64, requires_grad=True)
        bias = torch.zeros(self._n_heads * n_outputs, dtype=torch.float64, requires_grad=True)
        n_folds = self._n_heads // N_DIVISIONS
        is_fitted = self._folds.T[:, :, None] != torch.arange(n_folds)  # (n_samples, N_DIVISIONS, n_folds)
        samples, heads = torch.nonzero(is_fitted.reshape(n, self._n_heads), as_tuple=True)

        if not len(samples):  # of one sample there is nothing to fit to
            return torch.zeros(n, self._n_heads, *self._shape, dtype=torch.float64)

        def outputs() -> torch.Tensor:
            return (inputs @ weights + bias / CURVATURE**0.5).reshape(n, self._n_heads, *self._shape)

        def loss() -> torch.Tensor:
            found = outputs()
            penalty = PENALTY * (weights * scale[:, None]).square().sum() / self._n_heads
            if not criterion.is_whole:
                return penalty - criterion.quality(found[samples, heads], self._labels[samples])
            each = [
                criterion.quality(found[some, head], self._labels[some])
                for head in range(self._n_heads)
                for some in (samples[heads == head],)
            ]
            return penalty - torch.stack(each).mean()

        _minimise(loss, [weights, bias])
        return outputs().detach()


class OneDivision:
    """A `RefittedGame` by one division of the samples."""

    def __init__(self, game: RefittedGame, division: int) -> None:
        self._game, self._division = game, division
        self.clients, self.n_blocks, self.most_enumerated = game.clients, game.n_blocks, game.most_enumerated

    def utilities(self, coalitions: Memberships) -> Floats:
        """(n_coalitions, n_blocks): what each coalition's embeddings gain over none."""
        return self._game._by_division(coalitions)[:, self._division]


def divisions(embeddings: Floats, labels: torch.Tensor) -> torch.Tensor:
    """(N_DIVISIONS, n_samples): the fold of each sample. Classes are spread, equal rows of embeddings kept together."""
    _, first, group_of = np.unique(embeddings, axis=0, return_index=True, return_inverse=True)
    if len(first) < N_FOLDS:
        first = group_of = np.arange(len(embeddings))
    is_class = labels.ndim == 1 and not labels.is_floating_point()
    classes = labels.numpy()[first] if is_class else np.zeros(len(first))
    found = np.empty((N_DIVISIONS, len(first)), dtype=np.int64)
    for division in range(N_DIVISIONS):
        order = stream(0, "folds of samples", division).permutation(len(first))
        order = order[np.argsort(classes[order], kind="stable")]
        found[division, order] = np.arange(len(first)) % min(N_FOLDS, len(first))
    return torch.from_numpy(found[:, group_of.reshape(-1)])


def _principal(inputs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The inputs in their principal directions, (n_samples, rank), and the mean squares of these, (rank,)."""
    n, n_columns = inputs.shape
    if n_columns <= n:
        squares, directions = torch.linalg.eigh(inputs.T @ inputs / n)
        rotated = inputs @ directions
    else:
        squares, directions = torch.linalg.eigh(inputs @ inputs.T / n)
        rotated = directions * (squares.clamp_min(0) * n).sqrt()
    kept = squares > NO_DIRECTION
    return rotated[:, kept], squares[kept]


def _minimise(loss: Callable[[], torch.Tensor], parameters: list[torch.Tensor]) -> None:
    """Minimise a smooth loss from where the parameters are; its size does not matter."""
    size = abs(float(loss().detach())) or 1.0
    optimizer = torch.optim.LBFGS(
        parameters, max_iter=MOST_STEPS, tolerance_grad=TOLERANCE, tolerance_change=0, line_search_fn="strong_wolfe"
    )

    def step() -> torch.Tensor:
        optimizer.zero_grad()
        found = loss() / size
        found.backward()
        return found

    optimizer.step(step)
