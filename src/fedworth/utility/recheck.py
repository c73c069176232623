"""A batch is measured, and a few of its cells once more by the plain loop, whatever the route.

In: an oracle, a round, a batch. Out: the batch's utilities, or an error. Measured again are the last cell of the batch
and the one whose members count least, the two ends between which routes differ; with the global model, that is three
plain evaluations a batch. How far two oracles may differ is a matter of rounding. A logit is a sum of n terms on the
way through the layers, so it errs by about

    e = u √n max(1, |logits|),        u = 2^-24 in float32

(Higham and Mary, 2019), a mean loss by no more, and a utility is a difference of two of them, by two oracles: 4 e.
Where large numbers cancel on the way, roundings are larger than the logits show; so a difference beyond 4 e is held
against the plain loop in float64, whose distance from float32, sample by sample, is what rounding does to this module.

A utility that is not finite is measured again by the plain loop too. If it stays so, the error names a client without
whom it would not be, found by trying.
"""

import copy
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray

from fedworth.errors import UtilityError
from fedworth.federation.simulation.models import state_of
from fedworth.federation.simulation.threads import fitting_threads
from fedworth.federation.task import Task
from fedworth.ledger.ledger import Model, Round
from fedworth.names import Measure
from fedworth.utility.batches import Batch, Measured, Witness
from fedworth.utility.fitting import fitted, fitted_model
from fedworth.utility.oracle import LoopOracle, Oracle, TaskOracle, mix, predictions
from fedworth.utility.server import RuleOracle
from fedworth.utility.weighting import Mixtures

MakeModel = Callable[[Round, Mixtures, int], Model]
"""The model of the coalition in a row of the mixtures."""

N_PROJECTIONS = 16
LARGEST_CHANCE = 8.0
"""Σ ± e_i over n samples exceeds 8 e √n with a chance below 2 exp(−8²/2), 3e-14 (Hoeffding)."""

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
    """What one model makes of the test set, sample by sample."""

    losses: NDArray[np.float64]  # (n_samples,)
    is_correct: NDArray[np.bool_]  # (n_samples,)
    gaps: NDArray[np.float64]  # (n_samples,) between the label's logit and the best other
    largest: float  # logit

    def quality(self, measure: Measure) -> float:
        """Minus the mean loss, or the accuracy."""
        return float(self.is_correct.mean() if measure == "accuracy" else -self.losses.mean())


@dataclass(frozen=True)
class PlainRound:
    """One round by the plain loop, a mixture at a time."""

    task: Task
    measure: Measure
    round_: Round
    model: MakeModel | None = None  # what a server of another rule makes of a coalition; None if it averages

    @cached_property
    def _fitted(self) -> Round:
        return fitted(self.round_, state_of(self.task.module))

    @cached_property
    def before(self) -> Evaluation:
        """What the global model makes of the test set."""
        return evaluation(self.task, self._fitted.global_model)

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
            return evaluation(
                self.task, fitted_model(self.model(self.round_, mixtures, row), state_of(self.task.module))
            )
        models = {**self._fitted.client_models, **self._fitted.apart_models}
        model = mix(self._fitted.global_model, models, mixtures.of_clients[row], float(mixtures.of_global[row]))
        return evaluation(self.task, model)

    def utility(self, mixtures: Mixtures, row: int) -> float:
        """One coalition's utility."""
        return self.after(mixtures, row).quality(self.measure) - self.before.quality(self.measure)

    def disagreement(self, mixtures: Mixtures, row: int, utility: float) -> str:
        """Nothing, or what the plain loop gives instead and how far apart rounding could have brought them."""
        after = self.after(mixtures, row)
        found = after.quality(self.measure) - self.before.quality(self.measure)
        error = max(self._error(self.before), self._error(after))
        if abs(utility - found) <= self._allowed(after, error):
            return ""
        wide = self._widened()
        if wide is not None and self._repeats(error):
            exact, wide_after = wide.utility(mixtures, row), wide.after(mixtures, row)
            pairs = ((self.before, wide.before), (after, wide_after))
            rounding = max(float(np.abs(a.losses - b.losses).max()) for a, b in pairs)
            error = max(error, TIMES_ROUNDING * rounding)
            if abs(utility - exact) <= self._allowed(after, error):
                return ""
        return f"{found:.9g}, and rounding explains a difference of {self._allowed(after, error):.1e} at most"

    def _repeats(self, error: float) -> bool:
        """Whether the module gives the same again."""
        again = evaluation(self.task, self._fitted.global_model).losses
        return bool(np.abs(again - self.before.losses).max() <= 2 * error)

    def _error(self, of: Evaluation) -> float:
        """e: how much a logit may err."""
        floats = [t for t in self._fitted.global_model.values() if t.is_floating_point()]
        n_terms = sum(t.numel() / t.shape[0] for t in floats if t.ndim > 1)
        roundoff = max((torch.finfo(t.dtype).eps / 2 for t in floats), default=2**-24)
        return roundoff * math.sqrt(max(1.0, n_terms) + len(of.losses)) * max(1.0, of.largest)

    def _allowed(self, after: Evaluation, error: float) -> float:
        """How far utilities may differ if logits err so much; an accuracy by the samples that may change sides."""
        if self.measure == "accuracy":
            return sum(float(np.mean(each.gaps <= 4 * error)) for each in (self.before, after)) + 1e-12
        return 4 * error

    def _widened(self) -> "PlainRound | None":
        """The same in float64, or None if the module insists on its own precision."""
        inputs = self.task.inputs.double() if self.task.inputs.is_floating_point() else self.task.inputs
        wide = replace(self, task=replace(self.task, module=copy.deepcopy(self.task.module).double(), inputs=inputs))
        try:
            return wide if np.isfinite(wide.before.losses).all() else None
        except (RuntimeError, ValueError):
            return None


def evaluation(task: Task, model: Model) -> Evaluation:
    """What a model makes of the test set, by the plain loop."""
    with fitting_threads(task.module):
        parts = [_of_batch(logits, labels) for logits, labels in predictions(task, model)]
    losses, is_correct, gaps, largest = zip(*parts, strict=True)
    return Evaluation(np.concatenate(losses), np.concatenate(is_correct), np.concatenate(gaps), max(largest))


def _of_batch(
    logits: torch.Tensor, labels: torch.Tensor
) -> tuple[NDArray[np.float64], NDArray[np.bool_], NDArray[np.float64], float]:
    losses = F.cross_entropy(logits, labels, reduction="none").double()
    own = logits.gather(1, labels[:, None])[:, 0]
    others = logits.scatter(1, labels[:, None], -math.inf).amax(dim=1)
    gaps = (own - others).abs().double()
    is_correct = logits.argmax(dim=1) == labels
    return losses.cpu().numpy(), is_correct.cpu().numpy(), gaps.cpu().numpy(), float(logits.abs().max())


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
