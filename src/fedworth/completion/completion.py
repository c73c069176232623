"""What completing gives: an estimate for every (round, coalition) cell, and the evidence behind it.

`Completion` is what the later stages need of any estimate, whatever made it; `FactorCompletion` is the paper's kind,
X = W Hᵀ. A coalition that no round has shown has no estimate: under the penalty its factor would be 0, an invented
utility. Asking for it is an error, unless zero is asked for by name.
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from fedworth.arrays import Floats, Memberships, Utilities
from fedworth.coalitions import locate, names
from fedworth.completion.als import Status
from fedworth.completion.doubt import Doubt
from fedworth.completion.kernels.layout import Factors
from fedworth.errors import ArtefactError, UnseenError
from fedworth.games.round_values import RoundValues
from fedworth.names import PenaltyKind, checked_name
from fedworth.storage import Place, write_npz
from fedworth.trail import Trail, trail_array, trail_in

TOO_NARROW = (
    "the intervals of ComFedSV by factors are too narrow: they only say how far other ranks, penalties and held-out "
    "cells move the values, and in simulated federations 90 % intervals of this kind contained 30 to 70 % of the true "
    "values"
)
"""The caveat of intervals that come from alternatives."""

UNKNOWN = (
    "the errors of ComFedSV by factors are unknown: there are too many seen cells to complete them several times, so "
    "the values have no intervals"
)
"""The caveat of a completion without alternatives."""


class Completion(Protocol):
    """An estimate of every cell of the utility matrix, perhaps with its variance.

    Example:
        estimates = completion.estimates(utilities.coalitions)
    """

    @property
    def clients(self) -> tuple[str, ...]:
        """Whose utilities these are."""

    @property
    def n_rounds(self) -> int:
        """How many rounds the matrix has."""

    @property
    def is_whole(self) -> bool:
        """Whether every coalition of the heard clients has an estimate, so that no order of them need be drawn."""

    @property
    def by_rounds(self) -> RoundValues | None:
        """The values of everyone's game in each round, where there are too many clients to list cells."""

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
        """(n_clients, n_clients): of the errors of values `by_rounds`, where these are known."""

    def doubts(self) -> tuple[Doubt, ...]:
        """Clients whose estimates may be worse than their variances say, and why."""

    def summary(self) -> dict[str, Any]:
        """How the estimate was made and how good it is known to be, as JSON."""


@dataclass(frozen=True)
class Alternatives:
    """Other factors that explain the seen cells about as well: how far apart they are says how sure an estimate is.

    The variance of an estimate x is Σ_a weight_a (x_a − x)².
    """

    round_factors: Factors  # (n_alternatives, n_rounds, rank)
    coalition_factors: Factors  # (n_alternatives, n_coalitions, rank)
    weights: Factors  # (n_alternatives,)


@dataclass(frozen=True)
class FactorCompletion:
    """The utility matrix as round factors × coalition factors.

    Example:
        factors = fedworth.complete(utilities)
        print(factors.status, factors.round_factors.shape)
    """

    clients: tuple[str, ...]
    coalitions: Memberships  # (n_coalitions, n_clients), all seen in some round
    round_factors: Factors  # (n_rounds, rank)
    coalition_factors: Factors  # (n_coalitions, rank)
    rank: int
    penalty: float
    relative_penalty: float
    penalty_kind: PenaltyKind
    objective: float
    residual: float  # root mean square over the seen cells, relative to that of the cells
    status: Status
    stationarity: float
    spectral_ratio: float
    n_sweeps: int
    alternatives: Alternatives | None = None
    trail: Trail | None = None

    def __post_init__(self) -> None:
        expected = (len(self.coalitions), self.rank)
        if self.coalition_factors.shape != expected or self.round_factors.shape[1:] != (self.rank,):
            found = f"{self.round_factors.shape} and {self.coalition_factors.shape}"
            raise ArtefactError(
                f"completion: factors of shapes {found}, expected (n_rounds, {self.rank}) and {expected}"
            )
        if not (np.isfinite(self.round_factors).all() and np.isfinite(self.coalition_factors).all()):
            raise ArtefactError("completion: a factor is not finite")

    @property
    def n_rounds(self) -> int:
        return len(self.round_factors)

    @property
    def is_whole(self) -> bool:
        """No: a coalition that no round has shown has no estimate."""
        return False

    @property
    def by_rounds(self) -> None:
        """Factors are of cells, however many clients there are."""
        return

    def has(self, coalitions: Memberships) -> NDArray[np.bool_]:
        """Which of these coalitions some round has shown."""
        return locate(coalitions, self.coalitions) >= 0

    def estimates(self, coalitions: Memberships) -> Utilities:
        """(n_rounds, n_coalitions): w_t·h_S."""
        return np.asarray(self.round_factors @ self._factors(coalitions).T)

    def totals(self, coalitions: Memberships) -> Utilities:
        """(n_coalitions,): Σ_t w_t·h_S, without making the cells."""
        return np.asarray(self._factors(coalitions) @ self.round_factors.sum(axis=0))

    def variances(self, coalitions: Memberships) -> Utilities | None:
        """(n_rounds, n_coalitions): how far the alternatives are from the estimates; None without them."""
        if self.alternatives is None:
            return None
        made, total = self.estimates(coalitions), np.zeros((self.n_rounds, len(coalitions)))
        for W, H, weight in self._others(coalitions):
            total += weight * (W @ H.T - made) ** 2
        return total

    def error_factors(self, coalitions: Memberships) -> Utilities | None:
        """(n_coalitions, n_factors): how far each alternative's totals are from ours. None without them."""
        made = self.totals(coalitions)
        if self.alternatives is None:
            return None
        columns = [np.sqrt(weight) * (H @ W.sum(axis=0) - made) for W, H, weight in self._others(coalitions)]
        return np.stack(columns, axis=1)

    def value_covariance(self) -> None:
        """Not by rounds."""
        return

    def doubts(self) -> tuple[Doubt, ...]:
        """That the intervals are too narrow, or that there are none."""
        return (Doubt(None, UNKNOWN if self.alternatives is None else TOO_NARROW),)

    def summary(self) -> dict[str, Any]:
        """How the factors were found and how well they fit the seen cells."""
        return {
            "kind": "factors",
            "rank": self.rank,
            "penalty": self.penalty,
            "relative_penalty": self.relative_penalty,
            "penalty_kind": self.penalty_kind,
            "objective": self.objective,
            "residual": self.residual,
            "status": str(self.status),
            "is_converged": self.status is not Status.MAX_SWEEPS,
            "stationarity": self.stationarity,
            "spectral_ratio": self.spectral_ratio,
            "n_sweeps": self.n_sweeps,
        }

    def _others(self, coalitions: Memberships) -> Iterator[tuple[Factors, Factors, float]]:
        """Each alternative's round factors, factors of these coalitions, and weight."""
        others = self.alternatives
        if others is not None:
            rows = locate(coalitions, self.coalitions)
            for W, H, weight in zip(others.round_factors, others.coalition_factors, others.weights, strict=True):
                yield W, H[rows], float(weight)

    def _factors(self, coalitions: Memberships) -> Factors:
        rows = locate(coalitions, self.coalitions)
        unseen = np.flatnonzero(rows < 0)
        if len(unseen):
            first = names(coalitions[unseen[0]], self.clients)
            raise UnseenError(
                f"{len(unseen):,} of {len(rows):,} coalitions were never seen, the first {first}; their utilities "
                "cannot be estimated: let a round hear everyone, or ask for zeros by name with --unseen zero"
            )
        return self.coalition_factors[rows]


def save_factors(completion: FactorCompletion, path: Place) -> None:
    """Write a completion, whole or not at all."""
    numbers = {name: np.array(value) for name, value in completion.summary().items()}
    others = {} if completion.alternatives is None else asdict(completion.alternatives)
    write_npz(
        path,
        {
            "clients": np.array(completion.clients, dtype=np.str_),
            "coalitions": completion.coalitions,
            "round_factors": completion.round_factors,
            "coalition_factors": completion.coalition_factors,
            **numbers,
            **{f"other_{name}": array for name, array in others.items()},
            **trail_array(completion.trail),
        },
    )


def factors_from(arrays: dict[str, NDArray[Any]]) -> FactorCompletion:
    """The completion in the arrays of a file."""
    return FactorCompletion(
        clients=tuple(str(name) for name in arrays["clients"]),
        coalitions=arrays["coalitions"],
        round_factors=arrays["round_factors"],
        coalition_factors=arrays["coalition_factors"],
        rank=int(arrays["rank"]),
        penalty=float(arrays["penalty"]),
        relative_penalty=float(arrays["relative_penalty"]),
        penalty_kind=checked_name("penalty kind", str(arrays["penalty_kind"])),
        objective=float(arrays["objective"]),
        residual=float(arrays["residual"]),
        status=Status(str(arrays["status"])),
        stationarity=float(arrays["stationarity"]),
        spectral_ratio=float(arrays["spectral_ratio"]),
        n_sweeps=int(arrays["n_sweeps"]),
        alternatives=_alternatives(arrays),
        trail=trail_in(arrays),
    )


def _alternatives(arrays: dict[str, NDArray[Any]]) -> Alternatives | None:
    if "other_weights" not in arrays:
        return None
    return Alternatives(arrays["other_round_factors"], arrays["other_coalition_factors"], arrays["other_weights"])
