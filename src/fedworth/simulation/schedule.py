"""How the learning rate falls with the rounds: a constant, 1/(1 + decay·t), or Proposition 2's schedule.

Proposition 2: η^t = 2 / (μ (γ + t)), with t = 1 in the first round. As printed γ = max{8μ/L₂, 1}; Li et al.
(2019), whose theorem the proof rests on, have γ = max{8L₂/μ, 1}. Both are offered by name.
"""

import math
from dataclasses import dataclass

from fedworth.errors import UsageError
from fedworth.names import ScheduleName, checked_name


@dataclass(frozen=True, slots=True)
class Schedule:
    """A learning rate for every round."""

    name: ScheduleName = "constant"
    rate: float = 0.1
    decay: float = 0.0
    convexity: float = 0.0
    smoothness: float = 0.0

    def __post_init__(self) -> None:
        checked_name("learning-rate schedule", self.name)
        if self.name.startswith("proposition-2") and not (self.convexity > 0 and self.smoothness > 0):
            found = f"μ = {self.convexity}, L₂ = {self.smoothness}"
            raise UsageError(f"schedule {self.name!r} needs μ > 0 and L₂ > 0, found {found}")
        if not self.name.startswith("proposition-2") and not (self.rate > 0 and self.decay >= 0):
            found = f"rate {self.rate}, decay {self.decay}"
            raise UsageError(f"schedule {self.name!r} needs a rate > 0 and a decay ≥ 0, found {found}")
        if not all(map(math.isfinite, (self.rate, self.decay, self.convexity, self.smoothness))):
            found = f"rate {self.rate}, decay {self.decay}, μ {self.convexity}, L₂ {self.smoothness}"
            raise UsageError(f"schedule {self.name!r} needs finite numbers, found {found}")

    def at(self, round_index: int) -> float:
        """The learning rate of one round (0 is the first)."""
        match self.name:
            case "constant":
                return self.rate
            case "decay":
                return self.rate / (1 + self.decay * round_index)
        return 2 / (self.convexity * (self.gamma + round_index + 1))

    @property
    def gamma(self) -> float:
        """γ of Proposition 2, as printed or as Li et al. have it."""
        ratio = self.convexity / self.smoothness
        return max(8 * ratio if self.name == "proposition-2" else 8 / ratio, 1.0)
