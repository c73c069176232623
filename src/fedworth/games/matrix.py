"""The paper's utility matrix: rounds × coalitions, of which only coalitions of a round's participants can be seen.

It is needed for the completion by factors, for Algorithm 1's permutations, and for utilities of the user's own. It is
kept as a list of seen cells over named columns; a cell that is not in the list is unseen and has no default. The empty
coalition (U_t(∅) = 0) is a seen cell of every round; the paper's sums over S ⊆ I_t count it.

On disk it is an `.npz` file without pickle, in either of two forms:

    dense    utilities     float64 (n_rounds, n_coalitions[, n_blocks]), NaN where unseen
             coalitions    bool    (n_coalitions, n_clients)
             participants  bool    (n_rounds, n_clients)
             permutations  int     (n_permutations, n_clients), optional: Algorithm 1
             clients       str     (n_clients,), optional
    cells    the same with cell_rounds, cell_coalitions int (n_seen,) and utilities float64 (n_seen, n_blocks), since a
             large matrix is nearly all unseen; `save` writes this one
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedworth.arrays import Floats, Indices, Memberships, Permutations
from fedworth.coalitions import are_distinct, are_within, coalitions_of, distinct, locate, names, prefixes
from fedworth.errors import UtilityError
from fedworth.storage import Place, read_npz, write_npz

LARGEST = 1e100
"""Utilities up to this size can be squared and summed without leaving float64."""

Arrays = dict[str, NDArray[Any]]


@dataclass(frozen=True)
class UtilityMatrix:
    """Measured utilities (round, coalition), and who took part when.

    Example:
        print(utilities.n_rounds, utilities.n_clients, len(utilities.utilities))
    """

    clients: tuple[str, ...]
    participants: NDArray[np.bool_]  # (n_rounds, n_clients)
    coalitions: Memberships  # (n_coalitions, n_clients), all different
    round_indices: Indices  # (n_seen,)
    coalition_indices: Indices  # (n_seen,)
    utilities: Floats  # (n_seen, n_blocks)
    permutations: Permutations | None = None  # of Algorithm 1, whose prefixes are the columns; None: all coalitions

    def __post_init__(self) -> None:
        n_rounds, n_clients = self.participants.shape
        if n_rounds == 0 or n_clients == 0:
            raise UtilityError(
                f"utility matrix: {n_rounds} rounds of {n_clients} clients, expected one or more of each"
            )
        if len(self.clients) != n_clients or self.coalitions.shape[1:] != (n_clients,):
            found = f"{len(self.clients)} names and coalitions of shape {self.coalitions.shape}"
            raise UtilityError(f"utility matrix: {found}, expected {n_clients} clients as in the participants")
        if len(set(self.clients)) != n_clients:
            twice = next(name for name in self.clients if self.clients.count(name) > 1)
            raise UtilityError(f"clients: the name {twice!r} is given twice; give every client a name of its own")
        if not are_distinct(self.coalitions):
            raise UtilityError("coalitions: two rows are the same set of clients; give each once")
        self._check_shapes()
        self._check_cells()
        self._check_permutations()

    def _check_shapes(self) -> None:
        n_seen = len(self.utilities)
        for name, cells in (("rounds", self.round_indices), ("coalitions", self.coalition_indices)):
            if cells.dtype.kind != "i" or cells.shape != (n_seen,):
                found = f"{cells.dtype} of shape {cells.shape}"
                raise UtilityError(f"{name} of the cells: {found}, expected whole numbers of shape ({n_seen},)")
        if self.utilities.dtype.kind != "f" or self.utilities.ndim != 2:
            found = f"{self.utilities.dtype} of shape {self.utilities.shape}"
            raise UtilityError(f"utilities of the cells: {found}, expected float64 (n_seen, n_blocks)")
        if n_seen and not (
            0 <= self.round_indices.min() <= self.round_indices.max() < self.n_rounds
            and 0 <= self.coalition_indices.min() <= self.coalition_indices.max() < len(self.coalitions)
        ):
            shape = f"{self.n_rounds} rounds × {len(self.coalitions)} coalitions"
            raise UtilityError(f"utility matrix: a cell outside {shape}")

    def _check_cells(self) -> None:
        bad = np.flatnonzero(~(np.abs(self.utilities) <= LARGEST).all(axis=1))
        if len(bad):
            found = self.utilities[bad[0]][~(np.abs(self.utilities[bad[0]]) <= LARGEST)][0]
            raise UtilityError(
                f"{self._where(bad[0])}: utility is {found}, expected a finite number of at most {LARGEST:g} in size"
            )
        cells = self.round_indices * len(self.coalitions) + self.coalition_indices
        if len(np.unique(cells)) != len(cells):
            raise UtilityError("utility matrix: a cell is given twice")
        unseen = np.flatnonzero(np.bincount(self.coalition_indices, minlength=len(self.coalitions)) == 0)
        if len(unseen):
            first = names(self.coalitions[unseen[0]], self.clients)
            raise UtilityError(f"utility matrix: coalition {first} has a column but no cell; leave it out")
        is_empty = np.asarray(~self.coalitions.any(axis=1))[self.coalition_indices]
        wrong = np.flatnonzero(is_empty & self.utilities.any(axis=1))
        if len(wrong):
            raise UtilityError(
                f"{self._where(wrong[0])}: utility is {self.utilities[wrong[0]].sum()}, expected 0 for the empty "
                "coalition; subtract it from the round's other utilities"
            )
        within = are_within(self.coalitions, self.coalition_indices, self.participants, self.round_indices)
        outside = np.flatnonzero(~within)
        if len(outside):
            raise UtilityError(
                f"{self._where(outside[0])}: seen, though not all of its members took part; expected only coalitions "
                "of participants"
            )

    def _check_permutations(self) -> None:
        rows = self.permutations
        if rows is None:
            return
        if (
            rows.ndim != 2
            or rows.dtype.kind != "i"
            or (rows.size and not 0 <= rows.min() <= rows.max() < self.n_clients)
        ):
            raise UtilityError(f"permutations: expected rows of client numbers from 0 to {self.n_clients - 1}")
        ascending = np.sort(rows, axis=1)
        if (ascending != ascending[:1]).any() or (np.diff(ascending, axis=1) == 0).any():
            raise UtilityError("permutations: expected the same clients in every row, each once")
        missing = set(np.flatnonzero(self.heard).tolist()) - set(rows[:1].flat)
        if missing:
            raise UtilityError(f"permutations: clients {sorted(missing)} took part, but are in none; add them")

    @property
    def n_rounds(self) -> int:
        return len(self.participants)

    @property
    def n_clients(self) -> int:
        return len(self.clients)

    @property
    def n_blocks(self) -> int:
        return int(self.utilities.shape[1])

    @property
    def totals(self) -> Floats:
        """(n_seen,): the paper's utilities, summed over the blocks of test samples."""
        return np.asarray(self.utilities.sum(axis=1))

    @property
    def heard(self) -> NDArray[np.bool_]:
        """(n_clients,): who took part in any round."""
        return np.asarray(self.participants.any(axis=0))

    @property
    def heard_permutations(self) -> Permutations | None:
        """The permutations without the clients that took part in no round."""
        if self.permutations is None or self.heard.all():
            return self.permutations
        kept = self.heard[self.permutations]  # (n_permutations, n_clients)
        return self.permutations[kept].reshape(len(self.permutations), -1)

    def needed_coalitions(self) -> Memberships:
        """The columns that a value rests on: the permutations' prefixes, or all coalitions of those who took part."""
        if self.heard_permutations is not None:
            return distinct(prefixes(self.heard_permutations, self.n_clients))[0]
        return distinct(coalitions_of(np.flatnonzero(self.heard), self.n_clients))[0]

    def dense(self) -> Floats:
        """(n_rounds, n_coalitions): utilities summed over blocks, NaN where unseen."""
        cells = np.full((self.n_rounds, len(self.coalitions)), np.nan)
        cells[self.round_indices, self.coalition_indices] = self.totals
        return cells

    def row(self, round_index: int, coalitions: Memberships) -> Floats:
        """(n_coalitions, n_blocks): one round's utilities of these coalitions, NaN where unseen."""
        mine = self.round_indices == round_index
        cells = np.full((len(self.coalitions) + 1, self.n_blocks), np.nan)  # the last row: columns that are not there
        cells[self.coalition_indices[mine]] = self.utilities[mine]
        return cells[locate(coalitions, self.coalitions)]

    def within(self, coalitions: Memberships) -> "UtilityMatrix":
        """The same matrix with only these columns (those that it has)."""
        columns = np.isin(np.arange(len(self.coalitions)), locate(coalitions, self.coalitions))
        cells = columns[self.coalition_indices]
        renumbered = np.cumsum(columns) - 1
        return UtilityMatrix(
            self.clients,
            self.participants,
            self.coalitions if columns.all() else self.coalitions[columns],
            self.round_indices[cells],
            renumbered[self.coalition_indices[cells]],
            self.utilities[cells],
            self.permutations,
        )

    def coverage(self) -> dict[str, Any]:
        """How much was seen of the columns that values rest on (without the empty coalition), as JSON.

        A coalition larger than the number of participants is seen in all-clients rounds only. If there is one such
        round, then h_S = w_1 U_{1,S}/(‖w_1‖² + λ): its estimates are that round rescaled. So a report shows how much of
        a value rests on a single round.
        """
        columns = self.needed_coalitions()
        columns = columns[columns.any(axis=1)]  # (n_columns, n_clients)
        seen = self.within(columns)
        n_seen = np.bincount(seen.coalition_indices, minlength=len(seen.coalitions))  # rounds that show each column
        n_by_size = np.bincount(columns.sum(axis=1), minlength=self.n_clients + 1)[1:]
        cells_by_size = np.bincount(seen.coalitions.sum(axis=1), weights=n_seen, minlength=self.n_clients + 1)[1:]
        return {
            "n_rounds": self.n_rounds,
            "n_rounds_heard": self.participants.sum(axis=0).tolist(),
            "n_columns": len(columns),
            "n_columns_unseen": len(columns) - int((n_seen > 0).sum()),
            "n_columns_seen_once": int((n_seen == 1).sum()),
            "share_seen": float(n_seen.sum() / max(len(columns) * self.n_rounds, 1)),
            "share_seen_by_size": (cells_by_size / np.maximum(n_by_size * self.n_rounds, 1)).tolist(),
            "n_columns_by_size": n_by_size.tolist(),
        }

    def save(self, path: Place) -> None:
        """Write the matrix atomically.

        Args:
            path: An `.npz` file.

        Example:
            utilities.save("utilities.npz")
        """
        arrays: Arrays = {
            "clients": np.array(self.clients, dtype=np.str_),
            "participants": self.participants,
            "coalitions": self.coalitions,
            "cell_rounds": self.round_indices,
            "cell_coalitions": self.coalition_indices,
            "utilities": self.utilities,
        }
        if self.permutations is not None:
            arrays["permutations"] = self.permutations
        write_npz(path, arrays)

    @classmethod
    def load(cls, path: Place) -> "UtilityMatrix":
        """The utility matrix at `path`, checked.

        Args:
            path: What `observe` wrote, or an `.npz` file of your own.

        Example:
            utilities = fedworth.UtilityMatrix.load("mine.npz")
        """
        arrays = read_npz(path)
        is_listed = "cell_rounds" in arrays
        for name in ("utilities", "coalitions", "participants", *(["cell_coalitions"] if is_listed else [])):
            if name not in arrays:
                raise UtilityError(f"{path}: no array {name!r}; found {sorted(arrays)}")
        try:
            if not is_listed:
                return _from_dense(arrays)
            utilities, cells = arrays["utilities"], (arrays["cell_rounds"], arrays["cell_coalitions"])
            utilities = utilities[:, None] if utilities.ndim == 1 else utilities
            flags = _flags(arrays, "participants"), _flags(arrays, "coalitions")
            return cls(_clients(arrays), *flags, *cells, utilities, _permutations(arrays))
        except UtilityError as error:
            raise UtilityError(f"{path}: {error}") from None

    def _where(self, cell: np.intp | int) -> str:
        coalition = names(self.coalitions[self.coalition_indices[cell]], self.clients)
        return f"round {self.round_indices[cell]}, coalition {coalition}"


def matrix_from_rounds(
    clients: tuple[str, ...],
    participants: NDArray[np.bool_],
    rounds: list[tuple[Memberships, Floats]],
    permutations: Permutations | None = None,
) -> UtilityMatrix:
    """A matrix from each round's coalitions, (n, n_clients), and their utilities, (n, n_blocks).

    The empty coalition is added to every round.
    """
    empty = np.zeros((1, len(clients)), dtype=bool)
    listed, utilities, counts = [], [], []
    n_blocks = max((found.shape[1] for _, found in rounds), default=1)
    for coalitions, found in rounds:
        kept = coalitions.any(axis=1)
        listed += [empty, coalitions[kept]]
        utilities += [np.zeros((1, n_blocks)), found[kept].reshape(-1, n_blocks)]
        counts.append(1 + int(kept.sum()))
    coalitions, columns = distinct(np.concatenate(listed))
    rows = np.repeat(np.arange(len(rounds)), counts)
    return UtilityMatrix(clients, participants, coalitions, rows, columns, np.concatenate(utilities), permutations)


def _from_dense(arrays: Arrays) -> UtilityMatrix:
    participants, coalitions = _flags(arrays, "participants"), _flags(arrays, "coalitions")
    utilities = arrays["utilities"]
    expected = (len(participants), len(coalitions))
    if utilities.dtype != np.float64 or utilities.shape[:2] != expected or utilities.ndim > 3:
        found = f"{utilities.dtype} of shape {utilities.shape}"
        raise UtilityError(f"utilities are {found}, expected float64 of shape {expected}, blocks after that if any")
    if len(participants) == 0 or participants.shape[1] != coalitions.shape[1]:
        found = f"participants of shape {participants.shape} and coalitions of shape {coalitions.shape}"
        raise UtilityError(f"{found}, expected one round or more, and the same number of clients in both")
    if not are_distinct(coalitions):
        raise UtilityError("coalitions: two rows are the same set of clients; give each once")
    if np.isinf(utilities).any():
        where = tuple(int(k) for k in np.argwhere(np.isinf(utilities))[0])
        raise UtilityError(f"utilities{list(where)} is infinite, expected a finite number, or NaN where unseen")
    cells = utilities.reshape(*expected, -1)  # (n_rounds, n_coalitions, n_blocks)
    of_nobody = np.nan_to_num(cells[:, ~coalitions.any(axis=1)])
    if of_nobody.any():
        found = of_nobody[of_nobody != 0][0]
        raise UtilityError(f"utility of the empty coalition is {found}, expected 0; subtract it from its round")
    is_seen = np.asarray(~np.isnan(cells).any(axis=2))  # (n_rounds, n_coalitions)
    rounds = [(coalitions[seen], row[seen]) for seen, row in zip(is_seen, cells, strict=True)]
    return matrix_from_rounds(_clients(arrays), participants, rounds, _permutations(arrays))


def _flags(arrays: Arrays, name: str) -> NDArray[np.bool_]:
    array = arrays[name]
    if array.dtype != np.bool_ or array.ndim != 2:
        found = f"{array.dtype} of shape {array.shape}"
        raise UtilityError(f"{name} is {found}, expected bool with a column for each client")
    return array


def _clients(arrays: Arrays) -> tuple[str, ...]:
    n_clients = arrays["participants"].shape[1]
    if "clients" not in arrays:
        return tuple(str(k) for k in range(n_clients))
    found = arrays["clients"]
    if found.shape != (n_clients,):
        raise UtilityError(f"clients are of shape {found.shape}, expected a name for each of {n_clients}")
    return tuple(str(name) for name in found)


def _permutations(arrays: Arrays) -> Permutations | None:
    if "permutations" not in arrays:
        return None
    if arrays["permutations"].dtype.kind not in "iu":
        raise UtilityError(f"permutations are {arrays['permutations'].dtype}, expected whole client numbers")
    return arrays["permutations"].astype(np.int64)
