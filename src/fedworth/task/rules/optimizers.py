"""Servers that take a step of their own along the mean update Δ = Σ n_k w_k / Σ n_k − w^t (Reddi et al. 2021).

    FedAvgM      p ← β p − Δ                                w ← w − η p
    FedAdam      m ← β₁ m + (1 − β₁) Δ,  v ← β₂ v + (1 − β₂) Δ²
                 w ← w + η √(1 − β₂^{r+1}) / (1 − β₁^{r+1}) · m / (√v + τ),  r the round's own number
    FedYogi      m as above,  v ← v − (1 − β₂) Δ² sign(v − Δ²)       w ← w + η m / (√v + τ)
    FedAdagrad   m = Δ,       v ← v + Δ²                            w ← w + η m / (√v + τ)

These are Flower's strategies, with its defaults and its order of operations. m, v and p are replayed from the recorded
rounds; for a coalition S only the last step is taken with S instead of the participants.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from fedworth.names import AdaptiveKind, checked_name
from fedworth.task.rules.rule import Arrays, State, weighted_mean


@dataclass(frozen=True)
class ServerMomentum:
    """FedAvgM: momentum over the mean updates. Linear: a member counts as w^t − η (β p + w^t − w_k)."""

    learning_rate: float = 1.0
    momentum: float = 0.0

    def aggregate(
        self, global_model: Arrays, models: Sequence[Arrays], weights: Sequence[float], state: State
    ) -> tuple[Arrays, State]:
        """One step of momentum from the mean of the models."""
        velocity = self._velocity(global_model, weighted_mean(models, weights), state)
        after = {name: w - self.learning_rate * velocity[name] for name, w in global_model.items()}
        return after, replace(state, memory={"velocity": velocity} if self.momentum > 0 else {})

    def contribution(self, global_model: Arrays, model: Arrays, state: State) -> Arrays:
        """Where the step would lead with this member alone; the step is linear, so their mean is the coalition's."""
        velocity = self._velocity(global_model, model, state)
        return {name: w - self.learning_rate * velocity[name] for name, w in global_model.items()}

    def document(self) -> dict[str, Any]:
        """The rule as JSON."""
        return {"name": "momentum", **asdict(self)}

    def _velocity(self, global_model: Arrays, mean: Arrays, state: State) -> Arrays:
        back = {name: w - mean[name] for name, w in global_model.items()}
        before = state.memory.get("velocity")
        if before is None or self.momentum <= 0:
            return back
        return {name: self.momentum * before[name] + step for name, step in back.items()}


@dataclass(frozen=True)
class Adaptive:
    """FedAdam, FedYogi and FedAdagrad, by `kind`."""

    kind: AdaptiveKind = "adam"
    eta: float = 0.1
    beta_1: float = 0.9
    beta_2: float = 0.99
    tau: float = 1e-3

    def __post_init__(self) -> None:
        checked_name("adaptive server", self.kind)

    def aggregate(
        self, global_model: Arrays, models: Sequence[Arrays], weights: Sequence[float], state: State
    ) -> tuple[Arrays, State]:
        """One step of the server's optimizer; first and second moments are kept."""
        mean = weighted_mean(models, weights)
        step = {name: array - global_model[name] for name, array in mean.items()}
        zeros = {name: np.zeros_like(array) for name, array in mean.items()}
        first, second = state.memory.get("first", zeros), state.memory.get("second", zeros)
        m = {name: self._beta_1 * first[name] + (1 - self._beta_1) * delta for name, delta in step.items()}
        v = {name: self._second(second[name], delta) for name, delta in step.items()}
        rate = self._rate(state.number)
        after = {name: w + rate * m[name] / (np.sqrt(v[name]) + self.tau) for name, w in global_model.items()}
        return after, replace(state, memory={"first": m, "second": v})

    def document(self) -> dict[str, Any]:
        """The rule as JSON."""
        return {"name": "adaptive", **asdict(self)}

    @property
    def _beta_1(self) -> float:
        return 0.0 if self.kind == "adagrad" else self.beta_1

    def _rate(self, number: int) -> float:
        if self.kind != "adam":
            return self.eta
        correction = np.sqrt(1 - np.power(self.beta_2, number + 1.0)) / (1 - np.power(self.beta_1, number + 1.0))
        return float(self.eta * correction)

    def _second(self, before: Any, delta: Any) -> Any:
        if self.kind == "adagrad":
            return before + delta**2
        if self.kind == "yogi":
            return before - (1.0 - self.beta_2) * delta**2 * np.sign(before - delta**2)
        return self.beta_2 * before + (1 - self.beta_2) * delta**2
