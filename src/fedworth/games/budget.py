"""How precise values must be, and how much may be measured for them."""

import math
from dataclasses import dataclass

from fedworth.errors import UsageError


@dataclass(frozen=True)
class Budget:
    """How precise values must be, and how much may be measured for them.

    Args:
        precision: Where measuring all coalitions would take long, sample them until the sampling error is at most this
            part of the test set's standard error; 0 measures all coalitions of up to 12 clients.
        evaluations: Measure about this many utilities for each method; those known already cost nothing. A sampled
            round takes at least one for each client and four more.
        seconds: Measure for about this many seconds for each method, at least as long as the fewest evaluations take.

    Example:
        settings = fedworth.ValuationSettings(budget=fedworth.Budget(precision=0.5, seconds=600))
    """

    precision: float = 0.25
    evaluations: int | None = None
    seconds: float | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.precision < math.inf:
            raise UsageError(f"a precision of {self.precision}: expected 0 or more")
        if self.evaluations is not None and self.evaluations < 1:
            raise UsageError(f"a budget of {self.evaluations} evaluations: expected 1 or more")
        if self.seconds is not None and not 0 < self.seconds < math.inf:
            raise UsageError(f"a budget of {self.seconds} seconds: expected more than 0")
