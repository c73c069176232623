"""How much a client trains in a round. It needs no torch, so that settings are checked before torch is loaded."""

from dataclasses import dataclass

from fedworth.errors import UsageError
from fedworth.simulation.bounds import MOST_STEPS


@dataclass(frozen=True, slots=True)
class LocalTraining:
    """How much a client trains in a round: so many steps or so many epochs, in batches or on everything."""

    n_steps: int | None = 1
    n_epochs: int | None = None
    batch_size: int | None = None

    def __post_init__(self) -> None:
        amounts = [amount for amount in (self.n_steps, self.n_epochs) if amount is not None]
        if len(amounts) != 1 or not 1 <= amounts[0] <= MOST_STEPS:
            found = f"{self.n_steps} steps, {self.n_epochs} epochs"
            raise UsageError(f"local training: {found}; expected one of the two, from 1 to {MOST_STEPS:,}")
        if self.batch_size is not None and self.batch_size < 1:
            raise UsageError(f"local training: batch size {self.batch_size}, expected 1 or more, or none for all")
