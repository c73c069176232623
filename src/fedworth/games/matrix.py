"""The utility matrix 𝒰 of Section VI: all rounds × all coalitions, of which few cells are seen.

Kept as a list of seen cells over named columns. A cell that is not in the list is unseen: it has no default.
U_t(∅) = 0 is known without measuring, so the empty coalition is a seen cell of every round; the paper's sums
over S ⊆ I_t count it.
"""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from fedworth.arrays import Indices, Memberships, Permutations, Utilities
from fedworth.coalitions import are_distinct, are_within, coalitions_of, distinct, locate, names, prefixes
from fedworth.errors import UtilityError
from fedworth.games.planning.design import check_design
from fedworth.games.round_values import RoundValues
from fedworth.trail import Trail

LARGEST = 1e100
"""Utilities up to this size can be squared and summed without leaving float64."""


@dataclass(frozen=True)
class UtilityMatrix:
    """Observations (round, coalition, utility), and who took part when.

    `permutations` say for which Monte Carlo estimate the cells were measured, `round_permutations` (one array a round)
    for which estimate of FedSV, or `round_designs` if that is a stratified one. `is_truth`: cells of coalitions beyond
    the participants may be seen. `notes`: what a reader of any value from these cells must know.

    Example:
        print(utilities.n_rounds, utilities.n_clients, len(utilities.utilities))
    """

    clients: tuple[str, ...]
    participants: NDArray[np.bool_]  # (n_rounds, n_clients)
    coalitions: Memberships  # (n_coalitions, n_clients), all different
    round_indices: Indices  # (n_seen,)
    coalition_indices: Indices  # (n_seen,)
    utilities: Utilities  # (n_seen,)
    permutations: Permutations | None = None
    round_permutations: tuple[Permutations, ...] | None = None
    is_truth: bool = False
    notes: tuple[str, ...] = ()
    round_designs: tuple[Memberships, ...] | None = None
    trail: Trail | None = None
    left_out: tuple[str, ...] = ()  # clients that were to count for nothing
    round_values: RoundValues | None = None  # of each round's participants (the truth: of everyone), estimated

    def __post_init__(self) -> None:
        n_rounds, n_clients = self.participants.shape
        if n_rounds == 0 or n_clients == 0:
            raise UtilityError(
                f"utility matrix: {n_rounds} rounds of {n_clients} clients, expected one or more of each"
            )
        if len(self.clients) != n_clients or self.coalitions.shape[1:] != (n_clients,):
            found = f"{len(self.clients)} names, {self.coalitions.shape[1:]} members"
            raise UtilityError(f"utility matrix: {found}, expected {n_clients} clients as in the participants")
        if not are_distinct(self.coalitions):
            raise UtilityError("coalitions: two rows are the same set of clients; give each once")
        for cells, kind in ((self.round_indices, "i"), (self.coalition_indices, "i"), (self.utilities, "f")):
            if cells.dtype.kind != kind or cells.shape != (len(self.utilities),):
                found = f"{cells.dtype} of shape {cells.shape}"
                raise UtilityError(
                    f"utility matrix: {found} among rounds, coalitions and utilities of the cells; "
                    "expected as many of each, int, int and float64"
                )
        if len(self.utilities) and not (
            0 <= self.round_indices.min() <= self.round_indices.max() < n_rounds
            and 0 <= self.coalition_indices.min() <= self.coalition_indices.max() < len(self.coalitions)
        ):
            raise UtilityError(f"utility matrix: a cell outside {n_rounds} rounds × {len(self.coalitions)} coalitions")
        self._check_cells()
        self._check_permutations()
        self._check_designs()

    def _check_cells(self) -> None:
        bad = np.flatnonzero(~np.isfinite(self.utilities))
        if len(bad):
            raise UtilityError(f"{self._where(bad[0])}: utility is {self.utilities[bad[0]]}, expected a finite number")
        huge = np.flatnonzero(np.abs(self.utilities) > LARGEST)
        if len(huge):
            found = f"utility is {self.utilities[huge[0]]}, expected at most {LARGEST:g} in size"
            raise UtilityError(f"{self._where(huge[0])}: {found}; give them in another unit")
        cells = self.round_indices * len(self.coalitions) + self.coalition_indices
        if len(np.unique(cells)) != len(cells):
            raise UtilityError("utility matrix: a cell is given twice")
        unseen = np.flatnonzero(np.bincount(self.coalition_indices, minlength=len(self.coalitions)) == 0)
        if len(unseen):
            first = names(self.coalitions[unseen[0]], self.clients)
            raise UtilityError(
                f"utility matrix: coalition {first} has a column but no cell; leave out what is not seen"
            )
        is_empty = np.asarray(~self.coalitions.any(axis=1))
        wrong = np.flatnonzero(is_empty[self.coalition_indices] & (self.utilities != 0))
        if len(wrong):
            found = self.utilities[wrong[0]]
            raise UtilityError(
                f"{self._where(wrong[0])}: utility is {found}, expected 0 for the empty coalition; "
                "subtract it from the round's other utilities"
            )
        if not self.is_truth:
            outside = np.flatnonzero(~self._within_participants())
            if len(outside):
                raise UtilityError(
                    f"{self._where(outside[0])}: seen, though not all of its members took part; expected "
                    "only coalitions of participants, unless the truth is asked for"
                )

    def _check_permutations(self) -> None:
        if self.permutations is not None:
            _check_permutations_of(self.permutations, self.n_clients, "permutations")
            left_out = set(np.flatnonzero(self.heard).tolist()) - set(self.permutations[:1].flat)
            if left_out:
                raise UtilityError(f"permutations: clients {sorted(left_out)} were heard, but are in none; add them")
        if self.round_permutations is None:
            return
        if len(self.round_permutations) != self.n_rounds:
            found = f"found {len(self.round_permutations)}, expected {self.n_rounds}"
            raise UtilityError(f"permutations of the rounds: {found}, one array a round")
        for round_index, permutations in enumerate(self.round_permutations):
            what = f"permutations of round {round_index}"
            _check_permutations_of(permutations, self.n_clients, what)
            members = np.flatnonzero(self.participants[round_index])
            if not np.array_equal(np.sort(permutations[:1].reshape(-1)), members):
                raise UtilityError(f"{what}: of other clients than its participants {members.tolist()}")

    def _check_designs(self) -> None:
        if self.round_designs is None:
            return
        if self.round_permutations is not None:
            raise UtilityError("utility matrix: permutations and designs of the rounds; expected one estimate of FedSV")
        if len(self.round_designs) != self.n_rounds:
            raise UtilityError(f"designs of the rounds: found {len(self.round_designs)}, expected {self.n_rounds}")
        for round_index, design in enumerate(self.round_designs):
            members = np.flatnonzero(self.participants[round_index])
            check_design(design, members, f"design of round {round_index}")

    @property
    def n_rounds(self) -> int:
        return len(self.participants)

    @property
    def n_clients(self) -> int:
        return len(self.clients)

    @property
    def heard(self) -> NDArray[np.bool_]:
        """(n_clients,): who took part in any round."""
        return np.asarray(self.participants.any(axis=0))

    @property
    def heard_permutations(self) -> Permutations | None:
        """The permutations without the clients that no round has heard."""
        if self.permutations is None or self.heard.all():
            return self.permutations
        kept = self.heard[self.permutations]  # (n_permutations, n_clients)
        return self.permutations[kept].reshape(len(self.permutations), -1)

    def dense(self) -> Utilities:
        """(n_rounds, n_coalitions) with NaN where unseen."""
        cells = np.full((self.n_rounds, len(self.coalitions)), np.nan)
        cells[self.round_indices, self.coalition_indices] = self.utilities
        return cells

    def row(self, round_index: int, coalitions: Memberships) -> Utilities:
        """One round's utilities of these coalitions, NaN where unseen."""
        mine = self.round_indices == round_index
        cells = np.full(len(self.coalitions) + 1, np.nan)  # the last stands for columns that are not there
        cells[self.coalition_indices[mine]] = self.utilities[mine]
        return cells[locate(coalitions, self.coalitions)]

    def within(self, coalitions: Memberships) -> "UtilityMatrix":
        """The same matrix with these columns only (those that it has)."""
        columns = np.isin(np.arange(len(self.coalitions)), locate(coalitions, self.coalitions))
        return self._keep(columns, np.ones(len(self.utilities), dtype=bool), is_truth=self.is_truth)

    def seen_part(self) -> "UtilityMatrix":
        """What the server could have seen: the cells of coalitions within the participants, and their columns."""
        cells = self._within_participants()
        columns = np.isin(np.arange(len(self.coalitions)), self.coalition_indices[cells])
        return self._keep(columns, cells, is_truth=False)

    def _keep(self, columns: NDArray[np.bool_], cells: NDArray[np.bool_], *, is_truth: bool) -> "UtilityMatrix":
        """The matrix with these columns and those of these cells that lie in them."""
        cells = cells & columns[self.coalition_indices]
        renumbered = np.cumsum(columns) - 1
        return replace(
            self,
            coalitions=self.coalitions if columns.all() else self.coalitions[columns],
            round_indices=self.round_indices[cells],
            coalition_indices=renumbered[self.coalition_indices[cells]],
            utilities=self.utilities[cells],
            is_truth=is_truth,
        )

    def _within_participants(self) -> NDArray[np.bool_]:
        """(n_seen,): whether all members of the cell's coalition took part in the cell's round."""
        return are_within(self.coalitions, self.coalition_indices, self.participants, self.round_indices)

    def _where(self, cell: np.intp | int) -> str:
        coalition = names(self.coalitions[self.coalition_indices[cell]], self.clients)
        return f"round {self.round_indices[cell]}, coalition {coalition}"


def matrix_from_cells(
    clients: tuple[str, ...],
    participants: NDArray[np.bool_],
    rows: list[tuple[Memberships, Utilities]],
    *,
    permutations: Permutations | None = None,
    round_permutations: tuple[Permutations, ...] | None = None,
    is_truth: bool = False,
    notes: tuple[str, ...] = (),
    round_designs: tuple[Memberships, ...] | None = None,
    trail: Trail | None = None,
    left_out: tuple[str, ...] = (),
) -> UtilityMatrix:
    """A matrix from each round's measured coalitions; its columns are all that were measured, and the empty one."""
    is_empty = np.zeros((1, len(clients)), dtype=bool)
    measured = [np.flatnonzero(coalitions.any(axis=1)) for coalitions, _ in rows]
    listed = [part for (c, _), kept in zip(rows, measured, strict=True) for part in (is_empty, _rows(c, kept))]
    values = [part for (_, u), kept in zip(rows, measured, strict=True) for part in ([0.0], u[kept])]
    coalitions, columns = distinct(np.concatenate(listed))
    return UtilityMatrix(
        clients,
        participants,
        coalitions,
        np.repeat(np.arange(len(rows)), [1 + len(kept) for kept in measured]),
        columns,
        np.concatenate(values),
        permutations,
        round_permutations,
        is_truth,
        notes,
        round_designs,
        trail,
        left_out,
    )


def _rows(coalitions: Memberships, kept: Indices) -> Memberships:
    """Those rows; without a copy if they are all."""
    return coalitions if len(kept) == len(coalitions) else coalitions[kept]


def needed_columns(matrix: UtilityMatrix) -> Memberships:
    """The columns that a value rests on: the prefixes of the permutations, or all coalitions of the heard."""
    if matrix.heard_permutations is not None:
        return distinct(prefixes(matrix.heard_permutations, matrix.n_clients))[0]
    return distinct(coalitions_of(np.flatnonzero(matrix.heard), matrix.n_clients))[0]


def _check_permutations_of(permutations: Permutations, n_clients: int, what: str) -> None:
    is_right = permutations.ndim == 2 and permutations.dtype.kind == "i"
    if not is_right or (permutations.size and not (0 <= permutations.min() <= permutations.max() < n_clients)):
        raise UtilityError(f"{what}: expected one row of client numbers from 0 to {n_clients - 1} each")
    ascending = np.sort(permutations, axis=1)
    if (ascending != ascending[:1]).any() or (np.diff(ascending, axis=1) == 0).any():
        raise UtilityError(f"{what}: expected the same clients in every row, each once")
