"""What clients' embeddings tell about the labels that those of others do not: a head fitted anew to each coalition.

    U(S) = score of head_S − score of head_∅

VerFedSV measures steps of the joint training, which hardly interact within a round. So it cannot show that two clients
know the same, or that somebody knows it already (`--given`). This game does: a head is fitted to the embeddings of each
coalition. Clients that train together leave to each other what both have, so their last embeddings do not show what
each would have learned alone. What came before does: a client's first step is towards all that its own features tell.
Of a client that has sent h_0, …, h_m the head gets

    h_0,  h_1 − h_0,  h_√m − h_1,  h_m − h_√m        side by side, each number with mean 0 and mean square 1
    head_S = argmin  mean loss + penalty ‖weights‖²

What varies by less than `ROUNDING` of h_0 is not enlarged: it may be rounding. All coalitions have the same penalty:
the next one of `PENALTIES` after that with which heads for all clients do best on samples they have not seen. With
penalties of their own, coalitions differ by the choice, and a client that tells nothing seems to do harm.

Heads are also fitted without each block of samples, and get the constant of the head for all. What a head fits by
chance, by the part d of a direction, makes it better by 2d − d² on its own samples and worse by d² on others, up to a
factor. The score balances both, so embeddings that tell nothing are worth nothing, or nearly:

    (1 − s) · score on samples not seen + s · score on samples seen,    s = Σ d² / (2 Σ d),  d = c q / (c q + 2 penalty)

where q is the mean square of the embeddings in the direction, and c the curvature of the loss where outputs are 0. For
measures that are no smooth losses, as accuracy, s = 0. A block's part in the score counts how heads depend on their
samples, as in a jackknife: it is what its own samples score, and what those of all other blocks gain because the head
is fitted to it.
"""

import math
from collections.abc import Callable, Iterable
from itertools import pairwise

import numpy as np
import torch

from fedworth.arrays import Floats, Indices, Memberships, stream
from fedworth.errors import ValuationError
from fedworth.games.federation import RecordedFederation
from fedworth.games.game import Memory
from fedworth.games.shapley import MOST_ENUMERATED
from fedworth.oracle.oracle import block_totals, fitted
from fedworth.storage import Progress, silent
from fedworth.task.cells import Cells
from fedworth.threads import one_torch_thread

PENALTIES = 100.0, 30.0, 10.0, 3.0, 1.0, 0.3, 0.1, 0.03, 0.01, 0.003, 0.001
ROUNDING = 1e-4
N_FOLDS, FEW_FOLDS = 16, 4
"""Of a test set that is not divided into blocks, and to choose a penalty."""

LEAST_CURVATURE, TINY = 1e-3, 1e-12
"""Of a loss, by an output; and instead of a share of 0, where no label counts."""

NO_DIRECTION = 1e-8
"""Directions of the embeddings with a smaller mean square are left out; the penalty leaves no weight to them."""

FEWEST_SAMPLES, MOST_COLUMNS = 5, 5
"""Samples that heads are fitted to, and numbers for each sample above which values are used with care."""

MOST_STEPS, TOLERANCE = 60, 1e-5
"""Of a search for heads: steps of L-BFGS, and the gradient at which it ends, where a constant head has a loss of 1."""

MOST_WORK = 6e9
"""Products of all coalitions' heads with samples, in one step, above which coalitions are drawn; about a minute."""

TOO_WIDE = (
    "heads are fitted to {n_columns:,} numbers of {n:,} samples, so clients that tell nothing may seem to tell "
    "something; send embeddings of more samples"
)

NOT_FINITE = (
    "refitted-head: {} of a constant head is not finite on these samples, or without some of them; use verfedsv, or "
    "more samples of each kind of label, and a loss of logits instead of probabilities"
)

MOST_OUTPUTS = 5e7
"""Of all heads for all samples together, in one step of a search; about 2 GB of memory."""

TOO_MANY_OUTPUTS = (
    "refitted-head: {} outputs for each of {:,} samples take too much time and memory; use verfedsv, or let clients "
    "send embeddings of fewer samples"
)

FEWEST_DRAWN = 8
"""Of fewer clients, drawing would take as many coalitions as there are."""


class RefittedGame:
    """The game among the clients of a vertical federation on their embeddings in the course of the training."""

    def __init__(self, federation: RecordedFederation, progress: Progress = silent) -> None:
        self.task, self.clients, self.n_blocks = federation.oracle.task, federation.heard, federation.oracle.n_blocks
        if self.task.judged_by.criterion.is_own or not self.task.judged_by.criterion.is_smooth:
            raise ValuationError(
                "refitted-head needs a loss with derivatives, and this task's may have none; use verfedsv, or a loss "
                "that has a name"
            )
        self._progress, self._labels = progress, self.task.labels.cpu()
        if len(self._labels) < FEWEST_SAMPLES:
            raise ValuationError(
                f"refitted-head fits heads to the embeddings: found {len(self._labels)} samples, expected "
                f"{FEWEST_SAMPLES} at least; let clients send embeddings of a few hundred validation samples"
            )
        self._measure, self._cells = self.task.criterion(federation.oracle.measure), federation.cells
        self._embeddings = [self._of_client(federation, k) for k in self.clients.tolist()]
        with torch.inference_mode():
            model = fitted(federation.round(0), self.task).global_model
            self._shape = self.task.outputs(model, slice(0, 1)).shape[1:]  # of a sample's output
        n = len(self._labels)
        if self._cells is None or self.task.blocks is None:
            self._folds, self._groups = stream(0, "folds of samples").permutation(n) % N_FOLDS, np.zeros(n, dtype=int)
        else:
            self._folds, self._groups = (of[self.task.blocks] for of in (self._cells.block_of, self._cells.group_of))
        self._n_folds, self._n_groups = int(self._folds.max()) + 1, int(self._groups.max()) + 1
        if n * self._n_folds * math.prod(self._shape) > MOST_OUTPUTS:
            raise ValuationError(TOO_MANY_OUTPUTS.format(math.prod(self._shape), n))
        self._curvature = self._curvature_at_start()
        self._constant = torch.zeros(math.prod(self._shape), dtype=torch.float64)
        self._unit = self._loss_of_constant()
        self._constant = self._fitted(self._start(1), *_principal(self._inputs(())), 0.0, self._folds)[0, -1]
        self._unit = self._loss_of_constant()
        self._penalty = self._small_penalty()
        self._memory = Memory(len(self.clients), self.n_blocks)
        self._of_nobody = self._score(())
        if not np.isfinite(self._of_nobody).all():
            raise ValuationError(NOT_FINITE.format(self._measure.name))

    @property
    def caution(self) -> str:
        """What calls for care with all values; empty if nothing does."""
        n_columns, n = sum(h.shape[1] for h in self._embeddings), len(self._labels)
        return "" if n_columns <= MOST_COLUMNS * n else TOO_WIDE.format(n_columns=n_columns, n=n)

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
        work = len(self._labels) * n_columns * self._n_folds * math.prod(self._shape)
        return int(np.clip(math.log2(MOST_WORK / max(work, 1)), FEWEST_DRAWN - 1, MOST_ENUMERATED))

    def utilities(self, coalitions: Memberships) -> Floats:
        """(n_coalitions, n_blocks): what each coalition's embeddings gain over none."""
        return self._memory.utilities(coalitions, self._gains)

    def _gains(self, coalitions: Memberships) -> Floats:
        found = []
        for n_done, row in enumerate(coalitions, 1):
            found.append(self._score(np.flatnonzero(row)) - self._of_nobody)
            self._progress("fitting heads", n_done, len(coalitions))
        return np.array(found)

    @one_torch_thread()
    def _score(self, members: Iterable[int]) -> Floats:
        """(n_blocks,): the parts of the blocks in the score of the heads that are fitted to these clients."""
        directions, squares = _principal(self._inputs(members))
        weights = self._fitted(self._start(len(squares)), directions, squares, self._penalty, self._folds)
        weights[0] = weights[0, -1:]  # else a head without a block has less of the block's labels by its constant
        outputs = self._outputs(weights, directions)
        curved = self._curvature * squares[1:]
        fitted_part = curved / (curved + 2 * self._penalty)  # d, (rank,)
        seen = float(fitted_part.square().sum() / (2 * fitted_part.sum()).clamp_min(1e-12))
        if not self._measure.is_smooth:  # the rule above is for losses
            seen = 0.0
        parts = np.zeros(self.n_blocks)
        for weight, of_head in (1 - seen, _unseen(outputs, self._folds)), (seen, outputs[:, -1]):
            totals = block_totals((self._measure,), of_head, self._labels, self.task.blocks, self.n_blocks)
            parts += weight * totals[0] / self._measure.n_counted(self._labels)
        return parts if self._cells is None else parts + self._effects(outputs, self._cells)

    def _effects(self, outputs: torch.Tensor, cells: Cells) -> Floats:
        """(n_blocks,): by how much heads do better on all other blocks if they are fitted to a block, less the mean."""
        shares = cells.by_block(cells.shares[None])[0]  # (B,)
        others = ((b, self._folds != b) for b in range(self._n_folds))
        gained = [self._by_group(outputs[:, -1], some) - self._by_group(outputs[:, b], some) for b, some in others]
        effects = (1 - shares)[:, None] * gained
        effects -= effects.mean(axis=0)  # (B, n_groups)
        found = effects[cells.block_of, cells.group_of]
        elsewhere = effects.sum(axis=1) - cells.by_block(found[None])[0]  # of groups without samples in the block
        found += (elsewhere / np.maximum(shares, TINY))[cells.block_of] * cells.shares
        mean = np.bincount(cells.group_of, found, self._n_groups) / np.maximum(cells.group_shares, TINY)
        return np.asarray(found - mean[cells.group_of] * cells.shares)

    def _by_group(self, outputs: torch.Tensor, some: Memberships) -> Floats:
        """(n_groups,): the groups' parts in the score of some samples."""
        chosen = torch.from_numpy(some)
        labels, groups = self._labels[chosen], self._groups[some]
        totals = block_totals((self._measure,), outputs[chosen], labels, groups, self._n_groups)
        return np.asarray(totals[0] / (self._measure.n_counted(labels) or 1.0))

    def _inputs(self, members: Iterable[int]) -> torch.Tensor:
        """(n_samples, …): what a head gets of these clients."""
        return torch.cat([torch.zeros(len(self._labels), 0).double(), *(self._embeddings[k] for k in members)], dim=1)

    @one_torch_thread()
    def _small_penalty(self) -> float:
        """One step smaller than the penalty with which heads for all clients do best on samples they have not seen."""
        directions, squares = _principal(self._inputs(range(len(self.clients))))
        folds = self._folds % FEW_FOLDS
        weights, most = self._start(len(squares), int(folds.max()) + 1), -math.inf
        for penalty in PENALTIES:
            weights = self._fitted(weights, directions, squares, penalty, folds)
            outputs = _unseen(self._outputs(weights, directions), folds)
            score = float(self.task.judged_by.criterion.quality(outputs, self._labels))
            if not score > most:
                return penalty
            most = score
        return PENALTIES[-1]

    def _curvature_at_start(self) -> float:
        """The second derivative of the loss by an output, where all outputs are 0: tr H² / tr H, by a random H v."""
        outputs = torch.zeros(len(self._labels), *self._shape, dtype=torch.float64, requires_grad=True)
        sign = torch.from_numpy(stream(0, "curvature").choice((-1.0, 1.0), size=outputs.shape))
        loss = -self.task.judged_by.criterion.quality(outputs, self._labels)
        (gradient,) = torch.autograd.grad(loss, outputs, create_graph=True)
        (product,) = torch.autograd.grad((gradient * sign).sum(), outputs)
        ratio = product.square().sum() / (product * sign).sum().clamp_min(1e-12)
        return max(len(outputs) * float(ratio), LEAST_CURVATURE)

    def _loss_of_constant(self) -> float:
        """The loss of a head whose outputs are the same for all samples."""
        outputs = self._constant.expand(len(self._labels), -1).reshape(-1, *self._shape)
        return max(abs(float(self.task.judged_by.criterion.quality(outputs, self._labels))), TINY)

    def _start(self, n_rows: int, n_heads: int = 0) -> torch.Tensor:
        """(n_rows, n_heads, n_outputs): constant heads; by default one without each block, and one for all."""
        weights = torch.zeros(n_rows, n_heads or self._n_folds + 1, math.prod(self._shape), dtype=torch.float64)
        weights[0] = self._constant
        return weights

    def _fitted(
        self, start: torch.Tensor, directions: torch.Tensor, squares: torch.Tensor, penalty: float, folds: Indices
    ) -> torch.Tensor:
        """(1 + rank, n_heads, n_outputs): weights of the heads, each without a fold or the last for all samples.

        All are fitted together, in coordinates in which the loss is about as curved in all directions.
        """
        criterion, n_heads = self.task.judged_by.criterion, start.shape[1]
        samples, heads = np.nonzero(folds[:, None] != np.arange(n_heads))
        if not len(samples):  # of one sample there is nothing to fit to
            return start
        penalties = torch.full_like(squares, penalty)[:, None, None]
        penalties[0] = 0
        scale = (self._curvature * squares[:, None, None] + 2 * penalties).rsqrt()

        def loss(scaled: torch.Tensor) -> torch.Tensor:
            outputs = self._outputs(scaled * scale, directions)
            held = (penalties * (scaled * scale).square()).sum() / n_heads
            if not criterion.is_whole:
                return held - criterion.quality(outputs[samples, heads], self._labels[samples])
            each = [
                criterion.quality(outputs[some, head], self._labels[some])
                for head in range(n_heads)
                for some in (samples[heads == head],)
            ]
            return held - torch.stack(each).mean()

        if not torch.isfinite(loss(start / scale)):
            raise ValuationError(NOT_FINITE.format(criterion.name))
        return _minimise(loss, start / scale, self._unit) * scale

    def _outputs(self, weights: torch.Tensor, directions: torch.Tensor) -> torch.Tensor:
        """(n_samples, n_heads, …): what the heads make of the samples."""
        return (directions @ weights.flatten(1)).reshape(len(directions), weights.shape[1], *self._shape)


def _unseen(outputs: torch.Tensor, folds: Indices) -> torch.Tensor:
    """(n_samples, …): each sample's output by the head that has not seen it."""
    return outputs[np.arange(len(outputs)), folds]


def _principal(inputs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(n, 1 + rank): a column of ones, and the inputs in their principal directions; the mean squares, (1 + rank,)."""
    n, n_columns = inputs.shape
    if n_columns <= n:
        squares, directions = torch.linalg.eigh(inputs.T @ inputs / n)
        rotated = inputs @ directions
    else:
        squares, directions = torch.linalg.eigh(inputs @ inputs.T / n)
        rotated = directions * (squares.clamp_min(0) * n).sqrt()
    kept = squares > NO_DIRECTION
    return torch.cat([torch.ones(n, 1), rotated[:, kept]], dim=1), torch.cat([torch.ones(1), squares[kept]])


def _minimise(loss: Callable[[torch.Tensor], torch.Tensor], start: torch.Tensor, unit: float) -> torch.Tensor:
    """Where a smooth loss is least, from a start on; divided by the unit, the loss is about 1 and curved by about 1."""
    scale = math.sqrt(unit)
    found = (start / scale).requires_grad_()
    optimizer = torch.optim.LBFGS(
        [found], max_iter=MOST_STEPS, tolerance_grad=TOLERANCE, tolerance_change=0, line_search_fn="strong_wolfe"
    )

    def step() -> torch.Tensor:
        optimizer.zero_grad()
        value = loss(found * scale) / unit
        value.backward()
        return value

    optimizer.step(step)
    return found.detach() * scale
