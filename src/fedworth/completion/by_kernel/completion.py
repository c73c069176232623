"""What completing by a kernel gives: an estimate of every cell with its variance, seen cells as seen.

The process is kept as what it rests on: the seen cells, how alike clients are, the rounds' scale. The covariance of
the errors is the process's posterior, times how much the held-out cells are farther off than it says.
"""

from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedworth.arrays import Floats, Indices, Memberships, Utilities
from fedworth.coalitions import distinct, locate, names
from fedworth.completion.by_kernel.process import UtilityProcess, semidefinite_root
from fedworth.completion.doubt import Doubt, heard_once
from fedworth.errors import ArtefactError, UnseenError
from fedworth.storage import Place, write_npz
from fedworth.trail import Trail, trail_array, trail_in

KIND = "kernel"

MOST_WHOLE = 12
"""Heard clients up to which all of their coalitions are listed."""

MOST_TOGETHER = 1 << 12
"""Coalitions that are estimated at once; of more, how their errors vary together is not known."""

NEVER_TOGETHER = (
    "no two clients were ever heard in the same round, so nothing shows what they achieve together: all intervals of "
    "ComFedSV are likely too narrow"
)


@dataclass(frozen=True)
class KernelCompletion:
    """The utility matrix, seen cells as seen, the others by the utility process."""

    clients: tuple[str, ...]
    coalitions: Memberships  # (n_coalitions, n_clients): the seen ones
    round_indices: Indices  # (n_seen,)
    coalition_indices: Indices  # (n_seen,)
    utilities: Utilities  # (n_seen,)
    points: Indices  # (n_points,): which seen cells the process rests on
    likeness: Floats  # C, (n_clients, n_clients)
    weights: Floats  # (n_clients,): what each counts in a mean
    scale: Floats  # g, (n_rounds,)
    heard: Indices  # (n_heard,): the clients that some round has heard
    n_rounds_heard: Indices  # (n_heard,)
    widening: float  # what the process's variances are multiplied by
    n_held_out: int
    compared_by: str  # what says how alike two clients are
    trail: Trail | None = None

    def __post_init__(self) -> None:
        n_clients = len(self.clients)
        if self.likeness.shape != (n_clients, n_clients) or self.weights.shape != (n_clients,):
            raise ArtefactError(f"completion: a likeness of shape {self.likeness.shape} for {n_clients} clients")
        if not all(np.isfinite(part).all() for part in (self.utilities, self.likeness, self.scale)):
            raise ArtefactError("completion: a utility, a likeness or a scale is not finite")

    @property
    def n_rounds(self) -> int:
        return len(self.scale)

    @property
    def is_whole(self) -> bool:
        """Every coalition of the heard clients has an estimate; of many clients they are too many to list."""
        return len(self.heard) <= MOST_WHOLE

    @property
    def by_rounds(self) -> None:
        """Cells are estimated, however many clients there are."""
        return

    @cached_property
    def process(self) -> UtilityProcess:
        """The utility process given its points."""
        rounds, columns = self.round_indices[self.points], self.coalition_indices[self.points]
        told = self.utilities[self.points] / self.scale[rounds]
        return UtilityProcess(self.likeness, self.weights, self.n_rounds, rounds, self.coalitions[columns], told)

    def has(self, coalitions: Memberships) -> NDArray[np.bool_]:
        """Which of these coalitions have an estimate: those of clients that were heard."""
        unheard = np.setdiff1d(np.arange(len(self.clients)), self.heard)
        return np.asarray(~coalitions[:, unheard].any(axis=1))

    def estimates(self, coalitions: Memberships) -> Utilities:
        """(n_rounds, n_coalitions): the cells."""
        self._refuse_unheard(coalitions)
        rows, places = distinct(coalitions)
        return np.asarray(self._estimates(rows)[:, places])

    def totals(self, coalitions: Memberships) -> Utilities:
        """(n_coalitions,): the cells summed over the rounds."""
        self._refuse_unheard(coalitions)
        rows, places = distinct(coalitions)
        parts = [
            self._estimates(rows[start : start + MOST_TOGETHER]).sum(axis=0)
            for start in range(0, len(rows), MOST_TOGETHER)
        ]
        return np.asarray(np.concatenate([np.zeros(0), *parts])[places])

    def variances(self, coalitions: Memberships) -> Utilities:
        """(n_rounds, n_coalitions): the variances of the cells, 0 where seen."""
        self._refuse_unheard(coalitions)
        rows, places = distinct(coalitions)
        found = self.widening * self.scale[:, None] ** 2 * self.process.variances(rows)
        return np.asarray(np.where(np.isnan(self._seen(rows)), found, 0.0)[:, places])

    def error_factors(self, coalitions: Memberships) -> Utilities | None:
        """(n_coalitions, n_factors): L, with L Lᵀ the covariance of the errors of `totals`; None of too many."""
        if len(coalitions) > MOST_TOGETHER:
            return None
        rows, places = distinct(coalitions)
        weights = np.where(np.isnan(self._seen(rows)), self.scale[:, None], 0.0)  # (n_rounds, n_rows)
        root = semidefinite_root(self.process.summed_covariance(rows, weights))
        return np.asarray(np.sqrt(self.widening) * root[places])

    def value_covariance(self) -> None:
        """Not by rounds."""
        return

    def doubts(self) -> tuple[Doubt, ...]:
        """Clients heard once; and everyone, where no two were ever heard together."""
        heard = zip(self.heard.tolist(), self.n_rounds_heard.tolist(), strict=True)
        once = [self.clients[client] for client, n_rounds in heard if n_rounds == 1 and self.n_rounds > 1]
        most_together = self.coalitions[self.coalition_indices].sum(axis=1).max(initial=0)
        of_all = [Doubt(None, NEVER_TOGETHER)] if most_together < 2 <= len(self.heard) else []
        return (*of_all, *(heard_once(name) for name in once))

    def summary(self) -> dict[str, Any]:
        """How the estimate was made, as JSON."""
        return {
            "kind": KIND,
            "n_seen": len(self.utilities),
            "n_points": len(self.points),
            "n_held_out": self.n_held_out,
            "widening": self.widening,
            "compared_by": self.compared_by,
        }

    def _estimates(self, rows: Memberships) -> Utilities:
        """The cells of coalitions of which no two are the same."""
        seen = self._seen(rows)
        made = np.where(np.isnan(seen), self.scale[:, None] * self.process.mean(rows), seen)
        made[:, ~rows.any(axis=1)] = 0.0
        return made

    def _seen(self, rows: Memberships) -> Utilities:
        """(n_rounds, n_rows): what was seen of these, NaN where nothing was; the empty coalition's is 0."""
        place = np.full(len(self.coalitions), -1)
        found = locate(rows, self.coalitions)
        place[found[found >= 0]] = np.flatnonzero(found >= 0)
        columns = place[self.coalition_indices]
        cells = np.full((self.n_rounds, len(rows)), np.nan)
        cells[self.round_indices[columns >= 0], columns[columns >= 0]] = self.utilities[columns >= 0]
        cells[:, ~rows.any(axis=1)] = 0.0
        return cells

    def _refuse_unheard(self, coalitions: Memberships) -> None:
        unknown = np.flatnonzero(~self.has(coalitions))
        if len(unknown):
            first = names(coalitions[unknown[0]], self.clients)
            raise UnseenError(
                f"{len(unknown):,} coalitions have no estimate, the first {first}: no round has heard all of its "
                "members, not even one at a time; leave such clients out"
            )


_KEPT = tuple(field.name for field in fields(KernelCompletion) if field.name not in ("clients", "trail"))


def kernel_arrays(completion: KernelCompletion) -> dict[str, NDArray[Any]]:
    """The completion as arrays, without its trail."""
    named = np.array(completion.clients, dtype=np.str_)
    return {"clients": named, **{name: np.asarray(getattr(completion, name)) for name in _KEPT}}


def save_kernel_completion(completion: KernelCompletion, path: Place) -> None:
    """Write a completion, whole or not at all."""
    write_npz(path, {"kind": np.array(KIND), **kernel_arrays(completion), **trail_array(completion.trail)})


def kernel_completion_from(arrays: dict[str, NDArray[Any]]) -> KernelCompletion:
    """The completion in the arrays of a file."""
    made: dict[str, Any] = {n: arrays[n].item() if arrays[n].ndim == 0 else arrays[n] for n in _KEPT}
    return KernelCompletion(tuple(str(name) for name in arrays["clients"]), **made, trail=trail_in(arrays))
