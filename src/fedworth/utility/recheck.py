"""A batch is measured, and a few of its cells once more by the plain loop, whatever the route.

In: an oracle, a round, a batch. Out: the batch's utilities, or an error. Measured again are the last cell of the batch
and the one whose members count least, the two ends between which routes differ; with the global model, that is three
plain evaluations a batch. How far two oracles may differ is a matter of rounding. A logit is a sum of n terms on the
way through the layers, so it errs by about

    e = u √n max(1, |logits|),        u = 2^-24 in float32

(Higham and Mary, 2019), a mean cross-entropy by no more, and a utility is a difference of two of them, by two oracles:
4 e. What it does to other losses and measures is tried out: outputs are moved by 4 e with random signs. Where large
numbers cancel on the way, roundings are larger than the logits show; so a difference beyond is held against the plain
loop in float64, whose distance from float32, sample by sample, is what rounding does to this module.

A utility that is not finite is measured again by the plain loop too. If it stays so, the error names a client without
whom it would not be, found by trying.
"""

import copy
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray

from fedworth.errors import UtilityError
from fedworth.federation.losses.classes import ACCURACY, CROSS_ENTROPY
from fedworth.federation.losses.criterion import Criterion
from fedworth.federation.samples import widened
from fedworth.federation.simulation.threads import fitting_threads
from fedworth.federation.task import Task
from fedworth.ledger.ledger import Model, Round
from fedworth.names import Measure
from fedworth.utility.batches import Batch, Measured, Witness
from fedworth.utility.fitting import fitted, fitted_model
from fedworth.utility.oracle import LoopOracle, Oracle, TaskOracle, mix, predictions, together
from fedworth.utility.server import RuleOracle
from fedworth.utility.weighting import Mixtures

MakeModel = Callable[[Round, Mixtures, int], Model]
"""The model of the coalition in a row of the mixtures."""

N_PROJECTIONS = 16
LARGEST_CHANCE = 8.0
"""Σ ± e_i over n samples exceeds 8 e √n with a chance below 2 exp(−8²/2), 3e-14 (Hoeffding)."""

N_MOVES = 8
"""How often outputs are moved, to see what rounding does to a criterion."""

TIMES_ROUNDING = 8.0
"""By how much more than the plain loop's own rounding another float32 evaluation of the module may err."""


def measured(oracle: Oracle, round_: Round, batch: Batch) -> Measured:
    """The utilities of a batch, checked; an oracle that does not say what it measures on is believed."""
    mixtures = batch.mixtures()
    utilities = oracle.utilities(round_, mixtures)
    if not isinstance(oracle, TaskOracle):
        return Measured(utilities, None)
    plain = plain_round(oracle, round_)
    for row in np.flatnonzero(~np.isfinite(utilities)).tolist():
        utilities[row] = _finite(plain, mixtures, batch, row)
    if not isinstance(oracle, LoopOracle):
        _refuse_disagreement(plain, mixtures, batch, utilities)
    return Measured(utilities, plain.witness)


def plain_round(oracle: TaskOracle, round_: Round) -> "PlainRound":
    """What the plain loop makes of a round, under the server's rule that the oracle knows."""
    return PlainRound(oracle.task, oracle.measure, round_, oracle.model if isinstance(oracle, RuleOracle) else None)


def ends(mixtures: Mixtures) -> list[int]:
    """The rows that are measured again: the last, and the one whose members count least."""
    counts = np.where(mixtures.is_empty, np.inf, mixtures.memberships @ mixtures.weights)
    return sorted({len(mixtures) - 1, int(counts.argmin())})


@dataclass(frozen=True)
class Evaluation:
    """What one model makes of the test set."""

    losses: NDArray[np.float64]  # (n_samples,), or (1,) of a loss that looks at the whole
    quality: float  # higher is better
    gaps: NDArray[np.float64] | None  # (n_samples,) between the label's logit and the best other, for accuracy
    moves: float  # how far rounding may move the quality, if neither cross-entropy nor accuracy says it
    largest: float  # output


@dataclass(frozen=True)
class PlainRound:
    """One round by the plain loop, a mixture at a time."""

    task: Task
    measure: Measure
    round_: Round
    model: MakeModel | None = None  # what a server of another rule makes of a coalition; None if it averages

    @cached_property
    def _fitted(self) -> Round:
        return fitted(self.round_, self.task)

    @cached_property
    def before(self) -> Evaluation:
        """What the global model makes of the test set."""
        return self._evaluated(self._fitted.global_model)

    @property
    def witness(self) -> Witness:
        """The global model's losses in a few numbers, Σ ± loss / √n with signs drawn once for all: another task gives
        others, unless no sample's loss differs. A loss errs by at most twice as much as logits."""
        n = len(self.before.losses)
        signs = np.random.default_rng(2022).integers(0, 2, (N_PROJECTIONS, n)) * 2.0 - 1.0
        projections = np.asarray(signs @ self.before.losses / math.sqrt(n))
        return Witness(projections, LARGEST_CHANCE * 2 * self._error(self.before))

    def after(self, mixtures: Mixtures, row: int) -> Evaluation:
        """What one coalition's model makes of the test set."""
        if self.model is not None:
            return self._evaluated(fitted_model(self.model(self.round_, mixtures, row), self.task))
        models = {**self._fitted.client_models, **self._fitted.apart_models}
        model = mix(self._fitted.global_model, models, mixtures.of_clients[row], float(mixtures.of_global[row]))
        return self._evaluated(model)

    def utility(self, mixtures: Mixtures, row: int) -> float:
        """One coalition's utility."""
        return self.after(mixtures, row).quality - self.before.quality

    def disagreement(self, mixtures: Mixtures, row: int, utility: float) -> str:
        """Nothing if they agree; else what the plain loop gives, and how large a difference rounding could have
        made."""
        after = self.after(mixtures, row)
        found = after.quality - self.before.quality
        rounding = 0.0
        if abs(utility - found) <= self._allowed(after, rounding):
            return ""
        wide = self._widened()
        if wide is not None and self._repeats(max(self._error(self.before), self._error(after))):
            exact, wide_after = wide.utility(mixtures, row), wide.after(mixtures, row)
            pairs = ((self.before, wide.before), (after, wide_after))
            rounding = max(float(np.abs(a.losses - b.losses).max()) for a, b in pairs)
            if abs(utility - exact) <= self._allowed(after, rounding):
                return ""
        return f"{found:.9g}, and rounding explains a difference of {self._allowed(after, rounding):.1e} at most"

    def _repeats(self, error: float) -> bool:
        """Whether the module gives the same again."""
        again = self._evaluated(self._fitted.global_model).losses
        return bool(np.abs(again - self.before.losses).max() <= max(2 * error, self.before.moves))

    def _evaluated(self, model: Model) -> Evaluation:
        return evaluation(self.task, self._criterion, model, self._roundoff)

    @property
    def _criterion(self) -> Criterion:
        return self.task.criterion(self.measure)

    @cached_property
    def _roundoff(self) -> float:
        """u √n."""
        floats = [t for t in self._fitted.global_model.values() if t.is_floating_point()]
        n_terms = sum(t.numel() / t.shape[0] for t in floats if t.ndim > 1 and t.shape[0])
        roundoff = max((torch.finfo(t.dtype).eps / 2 for t in floats), default=2**-24)
        return roundoff * math.sqrt(max(1.0, n_terms) + len(self.task.labels))

    def _error(self, of: Evaluation) -> float:
        """e: how much an output may err."""
        return self._roundoff * max(1.0, of.largest)

    def _allowed(self, after: Evaluation, rounding: float) -> float:
        """How far utilities may differ if outputs err by e, or losses by so many times what rounding did to them; an
        accuracy by the samples that may change sides."""
        error = max(self._error(self.before), self._error(after), TIMES_ROUNDING * rounding)
        if self._criterion is CROSS_ENTROPY:
            return 4 * error
        if self.before.gaps is not None and after.gaps is not None:
            return sum(float(np.mean(gaps <= 4 * error)) for gaps in (self.before.gaps, after.gaps)) + 1e-12
        return self.before.moves + after.moves + 4 * TIMES_ROUNDING * rounding + 1e-12

    def _widened(self) -> "PlainRound | None":
        """The same in float64, or None if the module insists on its own precision."""
        task = replace(self.task, module=copy.deepcopy(self.task.module).double(), inputs=widened(self.task.inputs))
        wide = replace(self, task=task)
        try:
            return wide if np.isfinite(wide.before.losses).all() else None
        except (RuntimeError, ValueError):
            return None


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


def _refuse_disagreement(plain: PlainRound, mixtures: Mixtures, batch: Batch, utilities: NDArray[np.float64]) -> None:
    for row in ends(mixtures):
        instead = plain.disagreement(mixtures, row, float(utilities[row]))
        if instead:
            raise UtilityError(
                f"{batch.where(row)}: the fast oracle measures a utility of {utilities[row]:.9g}, the plain loop "
                f"{instead}; use --oracle loop, and report it. A module whose answers change from call to call, by "
                "dropout or by other random numbers, cannot be measured by any oracle"
            )


def _finite(plain: PlainRound, mixtures: Mixtures, batch: Batch, row: int) -> float:
    """The plain loop's utility of a cell, or an error that says who makes it infinite."""
    utility = plain.utility(mixtures, row)
    if math.isfinite(utility):
        return utility
    if not np.isfinite(plain.before.losses).all():
        raise UtilityError(
            f"round {batch.round_index}: the global model's loss on the test set is not finite, so no coalition has a "
            "utility; the federation diverged, or the task is another than the one it trained for"
        )
    where = f"{batch.where(row)}: the loss of the coalition's model on the test set is not finite"
    for client in _suspects(plain, mixtures, row):
        without = mixtures.memberships[[row]]
        without[0, client] = False
        if math.isfinite(plain.utility(replace(mixtures, memberships=without), 0)):
            name = batch.clients[client]
            raise UtilityError(f"{where}; without {name!r} it is finite, so leave that client out (--without {name})")
    raise UtilityError(f"{where}, and no single client's absence cures it; leave several out (--without CLIENT)")


def _suspects(plain: PlainRound, mixtures: Mixtures, row: int) -> Iterator[int]:
    """The members, those with the largest numbers first."""
    models = {**plain.round_.client_models, **plain.round_.apart_models}

    def size(client: int) -> float:
        return max(float(t.double().abs().max()) for t in models[client].values() if t.numel())

    yield from sorted(np.flatnonzero(mixtures.memberships[row]).tolist(), key=size, reverse=True)
