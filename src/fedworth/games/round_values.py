"""Values round by round: what each member of a round's game is worth in it, estimated where coalitions are too many.

A value is the sum over the rounds. Draws of different rounds are independent, so variances are summed too; of the
covariance only the sum over the rounds is kept, since one matrix a round would be larger than the ledger.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedworth.arrays import Floats
from fedworth.errors import ArtefactError, UtilityError


@dataclass(frozen=True)
class RoundValues:
    """The values of each round's members, how sure they are, and what they cost."""

    values: Floats  # (n_rounds, n_clients), 0 for who is no member
    variances: Floats  # (n_rounds, n_clients)
    covariance: Floats  # (n_clients, n_clients), of the sums over the rounds
    n_evaluations: int

    def __post_init__(self) -> None:
        n_clients = self.values.shape[-1]
        if self.values.shape != self.variances.shape or self.covariance.shape != (n_clients, n_clients):
            found = f"{self.values.shape}, {self.variances.shape} and {self.covariance.shape}"
            raise ArtefactError(f"values by round: shapes {found}, expected (n_rounds, n_clients) twice, and a square")
        if not all(np.isfinite(part).all() for part in (self.values, self.variances, self.covariance)):
            raise ArtefactError("values by round: a number is not finite")


def round_values_arrays(made: RoundValues | None) -> dict[str, NDArray[Any]]:
    """The values as arrays of a file; nothing if there are none."""
    if made is None:
        return {}
    return {
        "games_values": made.values,
        "games_variances": made.variances,
        "games_covariance": made.covariance,
        "games_evaluations": np.array(made.n_evaluations),
    }


def round_values_in(arrays: dict[str, NDArray[Any]]) -> RoundValues | None:
    """The values among the arrays of a file; None if there are none."""
    if "games_values" not in arrays:
        return None
    names = ("games_values", "games_variances", "games_covariance", "games_evaluations")
    missing = [name for name in names if name not in arrays]
    if missing or arrays["games_evaluations"].shape != ():
        raise UtilityError(f"{', '.join(missing) or names[3]}: missing or of a wrong shape beside games_values")
    values, variances, covariance, n_evaluations = (arrays[name] for name in names)
    return RoundValues(values, variances, covariance, int(n_evaluations))
