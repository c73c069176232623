"""What every completion offers to the stages after it: everyone's game in every round, and how wrong it may be."""

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from fedworth.arrays import Floats, Memberships, Utilities
from fedworth.completion.doubt import Doubt
from fedworth.games.round_values import RoundValues


class Completion(Protocol):
    """An estimate of every cell of the utility matrix, perhaps with its variance.

    Example:
        estimates = completion.estimates(utilities.coalitions)
    """

    @property
    def clients(self) -> tuple[str, ...]:
        """Names of all clients."""

    @property
    def n_rounds(self) -> int:
        """How many rounds there are."""

    @property
    def is_whole(self) -> bool:
        """Whether every coalition of the heard clients has an estimate, so that no permutations are needed."""

    @property
    def by_rounds(self) -> RoundValues | None:
        """The values of everyone's game in each round, if there are too many clients to list cells."""

    def has(self, coalitions: Memberships) -> NDArray[np.bool_]:
        """Which of these coalitions have an estimate."""

    def estimates(self, coalitions: Memberships) -> Utilities:
        """(n_rounds, n_coalitions): the estimated cells."""

    def totals(self, coalitions: Memberships) -> Utilities:
        """(n_coalitions,): the estimated cells summed over the rounds."""

    def variances(self, coalitions: Memberships) -> Utilities | None:
        """(n_rounds, n_coalitions): the variances of the estimates, if they are known."""

    def error_factors(self, coalitions: Memberships) -> Utilities | None:
        """(n_coalitions, n_factors): L, where L Lᵀ is the covariance of the errors of `totals`, if it is known."""

    def value_covariance(self) -> Floats | None:
        """(n_clients, n_clients): of the errors of values `by_rounds`, if they are known."""

    def doubts(self) -> tuple[Doubt, ...]:
        """Clients whose intervals may be too narrow, and why."""

    def summary(self) -> dict[str, Any]:
        """How the estimate was made and how good it is known to be, as JSON."""
