"""What completing by models gives: an estimate of every cell with its variance, and what the values' intervals need.

The error of a coalition's total over the rounds is taken as the sum of its members' parts: e_i for a client alone,
κ_k f_i for a member of k clients, fading with k as the held-out errors do. `member_covariance` is the covariance of e
and f (`errors`). It follows the posteriors of the two processes, so clients that are alike err alike, and copies the
same.
"""

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedworth.arrays import Floats, Indices, Memberships, Utilities
from fedworth.coalitions import locate, names
from fedworth.completion.doubt import Doubt, heard_once
from fedworth.errors import ArtefactError, UnseenError
from fedworth.games.round_values import RoundValues, round_values_arrays, round_values_in
from fedworth.storage import Place, write_npz
from fedworth.trail import Trail, trail_array, trail_in

KIND = "models"

FAR_OUTSIDE = 4.0
"""A client whose predictions vary so many times as much as the held-out ones is named."""

UNLIKE = "{client} is unlike the clients that predictions were checked on; its interval may be too narrow"


@dataclass(frozen=True)
class ModelCompletion:
    """The utility matrix, seen cells as seen, the others from heard and predicted models."""

    clients: tuple[str, ...]
    coalitions: Memberships  # (n_coalitions, n_clients)
    cells: Utilities  # (n_rounds, n_coalitions)
    cell_variances: Floats  # (n_rounds, n_coalitions), 0 where seen
    heard: Indices  # (n_heard,): the clients that some round has heard
    member_covariance: Floats  # of e and f, (2 n_heard, 2 n_heard)
    size_shares: Floats  # (2, n_heard): what e and f count in a coalition of 1, 2, … clients
    relative_variances: Floats  # (n_heard,): of predicted answers, over that of the held-out ones
    n_rounds_heard: Indices  # (n_heard,)
    lone_noise: float
    n_answers: int
    n_held_out: int
    n_evaluations: int
    everyone_heard: bool
    compared_by: str = "test logits"  # what says how alike two clients are
    by_rounds: RoundValues | None = None  # everyone's values in each round, if there are too many to list cells
    trail: Trail | None = None

    def __post_init__(self) -> None:
        expected = (self.cells.shape[0], len(self.coalitions))
        if self.by_rounds is not None and len(self.by_rounds.values) != len(self.cells):
            raise ArtefactError(
                f"completion: values of {len(self.by_rounds.values)} rounds, expected {len(self.cells)}"
            )
        if self.cells.shape != expected or self.cell_variances.shape != expected:
            raise ArtefactError(f"completion: cells of shape {self.cells.shape}, expected (n_rounds, n_coalitions)")
        if not (np.isfinite(self.cells).all() and np.isfinite(self.member_covariance).all()):
            raise ArtefactError("completion: a cell or its variance is not finite")

    @property
    def n_rounds(self) -> int:
        return len(self.cells)

    @property
    def is_whole(self) -> bool:
        """Every coalition of the heard clients has an estimate, unless there are too many."""
        return self.by_rounds is None

    def has(self, coalitions: Memberships) -> NDArray[np.bool_]:
        """Which of these coalitions have an estimate: those of clients that were heard."""
        return locate(coalitions, self.coalitions) >= 0

    def estimates(self, coalitions: Memberships) -> Utilities:
        """(n_rounds, n_coalitions): the cells."""
        return np.asarray(self.cells[:, self._columns(coalitions)])

    def totals(self, coalitions: Memberships) -> Utilities:
        """(n_coalitions,): the cells summed over the rounds."""
        return np.asarray(self.cells.sum(axis=0)[self._columns(coalitions)])

    def variances(self, coalitions: Memberships) -> Utilities:
        """(n_rounds, n_coalitions): the variances of the cells, from held-out answers."""
        return np.asarray(self.cell_variances[:, self._columns(coalitions)])

    def error_factors(self, coalitions: Memberships) -> Utilities:
        """(n_coalitions, 2 n_heard): L = [1_S if |S| = 1, κ_|S| 1_S] A with A Aᵀ the members' covariance."""
        members, sizes = coalitions[:, self.heard], coalitions.sum(axis=1)
        counted = [np.concatenate([[0.0], shares])[sizes][:, None] * members for shares in self.size_shares]
        return np.asarray(np.concatenate(counted, axis=1) @ self._root)

    @property
    def _root(self) -> Floats:
        """A, with A Aᵀ the members' covariance, or the nearest to it that is one."""
        variances, axes = np.linalg.eigh(self.member_covariance)
        return np.asarray(axes * np.sqrt(np.maximum(variances, 0)))

    def value_covariance(self) -> Floats:
        """(n_clients, n_clients): the covariance of the values' errors from predicting, NaN for who was never heard.

        The game κ_|S| Σ_{i∈S} f_i has the Shapley value v_i = f_i/n + Σ_{j≠i} f_j (κ_n − 1/n)/(n − 1); that of e is the
        same, with all of κ at size 1.
        """
        n = len(self.heard)
        enters = np.empty((n, 2, n))
        enters[:] = ((self.size_shares[:, -1] - 1 / n) / max(n - 1, 1))[:, None]
        enters[np.arange(n), :, np.arange(n)] = 1 / n
        moved = enters.reshape(n, 2 * n) @ self._root
        everyone = np.full((len(self.clients), len(self.clients)), np.nan)
        everyone[np.ix_(self.heard, self.heard)] = moved @ moved.T
        return everyone

    def doubts(self) -> tuple[Doubt, ...]:
        """Clients heard once, and those whose predictions are far less certain than what was held out."""
        told = []
        for client, n_rounds, relative in zip(
            self.heard.tolist(), self.n_rounds_heard.tolist(), self.relative_variances.tolist(), strict=True
        ):
            name = self.clients[client]
            if n_rounds == 1 and self.n_rounds > 1:
                told.append(heard_once(name))
            elif relative > FAR_OUTSIDE:
                told.append(Doubt(name, UNLIKE.format(client=name)))
        return tuple(told)

    def summary(self) -> dict[str, Any]:
        """How the estimate was made, as JSON."""
        return {
            "kind": KIND,
            "n_answers": self.n_answers,
            "n_held_out": self.n_held_out,
            "n_evaluations": self.n_evaluations,
            "lone_noise": self.lone_noise,
            "everyone_heard": self.everyone_heard,
            "compared_by": self.compared_by,
        }

    def _columns(self, coalitions: Memberships) -> Indices:
        columns = locate(coalitions, self.coalitions)
        unknown = np.flatnonzero(columns < 0)
        if len(unknown) and self.by_rounds is not None:
            raise UnseenError(f"{len(self.heard)} clients are too many to list coalitions; only their values are known")
        if len(unknown):
            first = names(coalitions[unknown[0]], self.clients)
            raise UnseenError(
                f"{len(unknown):,} coalitions have no estimate, the first {first}: no round has heard all of its "
                "members, not even one at a time; leave such clients out"
            )
        return columns


def save_model_completion(completion: ModelCompletion, path: Place) -> None:
    """Write a completion, whole or not at all."""
    arrays = {name: np.asarray(getattr(completion, name)) for name in _NUMBERS}
    names = np.array(completion.clients, dtype=np.str_)
    more = {**round_values_arrays(completion.by_rounds), **trail_array(completion.trail)}
    write_npz(path, {"kind": np.array(KIND), "clients": names, **arrays, **more})


def model_completion_from(arrays: dict[str, NDArray[Any]]) -> ModelCompletion:
    """The completion in the arrays of a file."""
    made = {name: _own(arrays[name]) for name in _NUMBERS}
    names = tuple(str(name) for name in arrays["clients"])
    return ModelCompletion(names, **made, by_rounds=round_values_in(arrays), trail=trail_in(arrays))


_NUMBERS = tuple(field.name for field in fields(ModelCompletion) if field.name not in ("clients", "by_rounds", "trail"))


def _own(array: NDArray[Any]) -> Any:
    """A number as a number, an array as it is."""
    return array.item() if array.ndim == 0 else array
