"""One round by the plain loop, a mixture at a time, and how far another oracle may be from it.

How far two oracles may differ is a matter of rounding. A logit is a sum of n terms on the way through the layers, so it
errs by about

    e = u √n max(1, |logits|),        u = 2^-24 in float32

(Higham and Mary, 2019), a mean cross-entropy by no more, and a utility is a difference of two of them, by two oracles:
4 e. What it does to other losses and measures is tried out: outputs are moved by 4 e with random signs. Where large
numbers cancel on the way, roundings are larger than the logits show; so a difference beyond is held against the plain
loop in float64, whose distance from float32, sample by sample, is what rounding does to this module.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch

from fedworth.errors import ModelError
from fedworth.ledger.ledger import Model, Round
from fedworth.names import Measure
from fedworth.oracle.batches import Witness
from fedworth.oracle.fitting import fitted, fitted_model
from fedworth.oracle.oracle import mix
from fedworth.oracle.recheck.evaluation import Evaluation, evaluation
from fedworth.oracle.weighting import Mixtures
from fedworth.task.losses import CROSS_ENTROPY, Criterion
from fedworth.task.modules import copied
from fedworth.task.samples import widened
from fedworth.task.task import Task

MakeModel = Callable[[Round, Mixtures, int], Model]
"""The model of the coalition in a row of the mixtures."""

N_PROJECTIONS = 16
LARGEST_CHANCE = 8.0
"""Σ ± e_i over n samples exceeds 8 e √n with a chance below 2 exp(−8²/2), 3e-14 (Hoeffding)."""

TIMES_ROUNDING = 8.0
"""By how much more than the plain loop's own rounding another float32 evaluation of the module may err."""


BEARABLE = 1e-3
"""Of a mean cross-entropy, or of 1 where that is less: what rounding may make of two oracles' difference."""

UNSURE = 0.1
"""Of the same: where rounding may move a loss by more, whatever the two oracles happened to give, it means nothing."""


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

    def disagreement(self, mixtures: Mixtures, row: int, utility: float, after: Evaluation | None = None) -> str:
        """Nothing if they agree; else what the plain loop gives, and how large a difference rounding could have
        made."""
        after = after or self.after(mixtures, row)
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

    def is_noise(self, utility: float, after: Evaluation) -> bool:
        """Whether rounding has moved a utility so far that it says nothing, or might have."""
        return self._is_moved(utility, after) or not self.is_sure(after)

    def _is_moved(self, utility: float, after: Evaluation) -> bool:
        """Whether a cross-entropy's difference is more than rounding can be allowed; 16 bits know no better."""
        share = max(BEARABLE, 64 * self._roundoff)
        difference = abs(utility - (after.quality - self.before.quality))
        return self._criterion is CROSS_ENTROPY and difference > share * self._size(after)

    def is_sure(self, after: Evaluation) -> bool:
        """Whether rounding cannot move a cross-entropy, nor what is right or wrong by it, by much."""
        is_logits = self._criterion is CROSS_ENTROPY or after.gaps is not None
        share = max(UNSURE, 64 * self._roundoff)
        return not is_logits or 4 * self._error(after) <= share * self._size(after)

    def _size(self, after: Evaluation) -> float:
        return max(1.0, *(float(np.abs(of.losses).mean()) for of in (self.before, after)))

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
        try:
            task = replace(self.task, module=copied(self.task.module).double(), inputs=widened(self.task.inputs))
            wide = replace(self, task=task)
            return wide if np.isfinite(wide.before.losses).all() else None
        except (ModelError, RuntimeError, TypeError, ValueError):
            return None
