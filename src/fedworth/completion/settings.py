"""Settings of the paper's completion by factors."""

from dataclasses import dataclass

from fedworth.errors import CompletionError
from fedworth.names import PenaltyKind, checked_name


@dataclass(frozen=True, slots=True)
class FactorSettings:
    """Rank and penalty of the completion by factors.

    Args:
        rank: Number of factors of the paper's completion.
        penalty: Penalty λ of the completion, as an absolute number (default: the relative penalty decides).
        relative_penalty: Penalty of the completion, as a part of the smallest λ that makes every factor zero.
        penalty_kind: Penalise each factor for every seen cell (`counts`), or once (`uniform`, as the paper prints).
        max_sweeps: The most sweeps of the solver.

    Example:
        completion = fedworth.complete(utilities, fedworth.FactorSettings(rank=3, relative_penalty=0.03))
    """

    rank: int = 5
    penalty: float | None = None
    relative_penalty: float = 0.01
    penalty_kind: PenaltyKind = "counts"
    max_sweeps: int = 10_000

    def __post_init__(self) -> None:
        checked_name("penalty kind", PenaltyKind, self.penalty_kind)
        if self.rank < 1 or self.max_sweeps < 1:
            raise CompletionError(f"rank {self.rank}, {self.max_sweeps} sweeps: expected 1 or more of each")
