"""A server that clips every update to a norm and adds noise: differential privacy on the server (McMahan et al. 2018).

    w_S = inner rule of { w^t + min(1, C / ‖w_k − w^t‖) (w_k − w^t) : k ∈ S }  +  ν_t,   ν_t ~ N(0, (z C / m)²)

C is the clipping norm, z the noise multiplier, m the number of clients that the server meant to sample. The noise that
was drawn is what the recorded next model has beside the inner rule's: it is taken from there, and is the same for every
coalition of a round. Without a recorded next model the noise of a round is not known, and none is added.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fedworth.errors import UsageError
from fedworth.task.rules.rule import NOISE, Arrays, LinearRule, Rule, State


@dataclass(frozen=True)
class Private:
    """Clipping (unless `clipping_norm` is None: then the clients clip) and noise around a rule that is linear."""

    inner: LinearRule
    clipping_norm: float | None
    noise: float  # standard deviation of every number

    def __post_init__(self) -> None:
        if not isinstance(self.inner, LinearRule):
            raise UsageError(f"private rule around {type(self.inner).__name__}: expected a mean, or momentum over it")

    def aggregate(
        self, global_model: Arrays, models: Sequence[Arrays], weights: Sequence[float], state: State
    ) -> tuple[Arrays, State]:
        """The inner rule's model of the clipped ones, and the round's noise if it is known."""
        clipped = [self._clipped(global_model, model) for model in models]
        after, following = self.inner.aggregate(global_model, clipped, weights, state)
        memory = {name: arrays for name, arrays in following.memory.items() if name != NOISE}
        return _with_noise(after, state), replace(following, memory=memory)

    def contribution(self, global_model: Arrays, model: Arrays, state: State) -> Arrays:
        """What a member adds to the mean: its clipped model, as the inner rule takes it, and the noise."""
        return _with_noise(self.inner.contribution(global_model, self._clipped(global_model, model), state), state)

    def document(self) -> dict[str, Any]:
        """The rule as JSON."""
        inner = self.inner.document()
        return {"name": "private", "inner": inner, "clipping_norm": self.clipping_norm, "noise": self.noise}

    def _clipped(self, global_model: Arrays, model: Arrays) -> Arrays:
        if self.clipping_norm is None:
            return model
        update = {name: array - global_model[name] for name, array in model.items()}
        norm = float(np.sqrt(sum(float(np.linalg.norm(array.ravel())) ** 2 for array in update.values())))
        share = min(1.0, self.clipping_norm / norm) if norm > 0 else 1.0
        return {name: global_model[name] + array * share for name, array in update.items()}


def noise_of(rule: Rule) -> float:
    """The standard deviation of the noise that a server adds to its model: 0 for one that adds none."""
    return rule.noise if isinstance(rule, Private) else 0.0


def _with_noise(model: Arrays, state: State) -> Arrays:
    noise = state.memory.get(NOISE)
    return model if noise is None else {name: array + noise[name] for name, array in model.items()}
