"""What completing gives: an estimate for every (round, coalition) cell, and the evidence behind it.

`Completion` is what the later stages need of any estimate, whatever made it; `FactorCompletion` is the paper's kind,
X = W Hᵀ. A coalition that no round has shown has no estimate: under the penalty its factor would be 0, an invented
utility. Asking for it is an error, unless zero is asked for by name.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from fedworth.arrays import Memberships, Utilities
from fedworth.completion.als import Status
from fedworth.completion.kernels import Factors
from fedworth.errors import ArtefactError, UnseenError
from fedworth.storage import read_npz, write_npz
from fedworth.utility.coalitions import locate, names


class Completion(Protocol):
    """An estimate of every cell of the utility matrix, perhaps with its variance."""

    @property
    def clients(self) -> tuple[str, ...]:
        """Whose utilities these are."""

    @property
    def n_rounds(self) -> int:
        """How many rounds the matrix has."""

    def has(self, coalitions: Memberships) -> NDArray[np.bool_]:
        """Which of these coalitions have an estimate."""

    def estimates(self, coalitions: Memberships) -> Utilities:
        """(n_rounds, n_coalitions): the estimated cells."""

    def totals(self, coalitions: Memberships) -> Utilities:
        """(n_coalitions,): the estimated cells summed over the rounds."""

    def variances(self, coalitions: Memberships) -> Utilities | None:
        """(n_rounds, n_coalitions): the variances of the estimates, if the method knows them."""

    def summary(self) -> dict[str, Any]:
        """How the estimate was made and how good it is known to be, as JSON."""


@dataclass(frozen=True)
class FactorCompletion:
    """The utility matrix as round factors × coalition factors."""

    clients: tuple[str, ...]
    coalitions: Memberships  # (n_coalitions, n_clients), all seen in some round
    round_factors: Factors  # (n_rounds, rank)
    coalition_factors: Factors  # (n_coalitions, rank)
    rank: int
    penalty: float
    relative_penalty: float
    penalty_kind: str
    objective: float
    residual: float  # root mean square over the seen cells, relative to that of the cells
    status: Status
    stationarity: float
    spectral_ratio: float
    n_sweeps: int

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

    def has(self, coalitions: Memberships) -> NDArray[np.bool_]:
        """Which of these coalitions some round has shown."""
        return locate(coalitions, self.coalitions) >= 0

    def estimates(self, coalitions: Memberships) -> Utilities:
        """(n_rounds, n_coalitions): w_t·h_S."""
        return np.asarray(self.round_factors @ self._factors(coalitions).T)

    def totals(self, coalitions: Memberships) -> Utilities:
        """(n_coalitions,): Σ_t w_t·h_S, without making the cells."""
        return np.asarray(self._factors(coalitions) @ self.round_factors.sum(axis=0))

    def variances(self, coalitions: Memberships) -> Utilities | None:  # noqa: ARG002 - factors know none
        """None: two factors say nothing of their variance."""
        return None

    def summary(self) -> dict[str, Any]:
        """How the factors were found and how good they are known to be."""
        return {
            "rank": self.rank,
            "penalty": self.penalty,
            "relative_penalty": self.relative_penalty,
            "penalty_kind": self.penalty_kind,
            "objective": self.objective,
            "residual": self.residual,
            "status": str(self.status),
            "stationarity": self.stationarity,
            "spectral_ratio": self.spectral_ratio,
            "n_sweeps": self.n_sweeps,
        }

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


def save_completion(completion: FactorCompletion, path: Path) -> None:
    """Write a completion, whole or not at all."""
    numbers = {name: np.array(value) for name, value in completion.summary().items()}
    write_npz(
        path,
        {
            "clients": np.array(completion.clients, dtype=np.str_),
            "coalitions": completion.coalitions,
            "round_factors": completion.round_factors,
            "coalition_factors": completion.coalition_factors,
            **numbers,
        },
    )


def load_completion(path: Path) -> FactorCompletion:
    """The completion at `path`."""
    arrays = read_npz(path)
    try:
        return FactorCompletion(
            clients=tuple(str(name) for name in arrays["clients"]),
            coalitions=arrays["coalitions"],
            round_factors=arrays["round_factors"],
            coalition_factors=arrays["coalition_factors"],
            rank=int(arrays["rank"]),
            penalty=float(arrays["penalty"]),
            relative_penalty=float(arrays["relative_penalty"]),
            penalty_kind=str(arrays["penalty_kind"]),
            objective=float(arrays["objective"]),
            residual=float(arrays["residual"]),
            status=Status(str(arrays["status"])),
            stationarity=float(arrays["stationarity"]),
            spectral_ratio=float(arrays["spectral_ratio"]),
            n_sweeps=int(arrays["n_sweeps"]),
        )
    except (KeyError, ValueError, TypeError) as error:
        raise ArtefactError(f"{path}: not a completion ({error})") from error
