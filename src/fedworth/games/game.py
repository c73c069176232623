"""Cooperative games: what any coalition of some clients achieves, on each block of test samples.

A game's utilities have one column a block; their sum over the blocks is the paper's utility U_t(S), and U_t(∅) = 0.

    ModelGame      a coalition's model is a mixture of one round's models, and the oracle measures it
    RecordedGame   the same, and no coalition is measured twice
    MatrixGame     utilities that a utility matrix holds
    SummedGame     the sum of several games of the same clients, such as the games of all rounds
    CountedGame    any game, and how many of its coalitions were asked for

A sharing rule (`SharingRule`) divides what everyone achieves together among the clients of a game.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from fedworth.arrays import Floats, Indices, Memberships
from fedworth.coalitions import distinct, names
from fedworth.errors import UtilityError, ValuationError
from fedworth.games.matrix import UtilityMatrix
from fedworth.ledger.ledger import Round
from fedworth.names import Weighting
from fedworth.oracle.oracle import Oracle
from fedworth.oracle.weighting import mixtures


class Game(Protocol):
    """A cooperative game among some clients: what any coalition of them achieves, on each block of test samples."""

    @property
    def clients(self) -> Indices:
        """(n,): ascending indices of the clients who play."""

    @property
    def n_blocks(self) -> int:
        """How many blocks of test samples there are."""

    def utilities(self, coalitions: Memberships) -> Floats:
        """(n_coalitions, n_blocks): utilities of coalitions, (n_coalitions, n); columns are the game's clients."""


@dataclass(frozen=True)
class Shares:
    """What each client of a game gets by a sharing rule."""

    values: Floats  # (n, n_blocks)
    sampling_covariance: Floats  # (n, n), of the values' sums over blocks; zero if every coalition was measured
    n_evaluations: int  # how many different coalitions were measured
    notes: tuple[str, ...] = ()  # what a reader of these values must know

    @property
    def totals(self) -> Floats:
        """(n,): the values' sums over blocks."""
        return np.asarray(self.values.sum(axis=1))

    @property
    def standard_errors(self) -> Floats:
        """(n,): standard errors of the totals due to sampling of coalitions; NaN where they are unknown."""
        return np.sqrt(np.maximum(np.diag(self.sampling_covariance), 0))


SharingRule = Callable[[Game, np.random.Generator], Shares]
"""Shares out a game; the random generator is used only where coalitions are sampled."""


def everyone_of(game: Game) -> Floats:
    """(n_blocks,): the utility of all clients of a game together."""
    return np.asarray(game.utilities(np.ones((1, len(game.clients)), dtype=bool))[0])


@dataclass(frozen=True, eq=False)
class ModelGame:
    """A game whose coalitions are mixtures of one round's models.

    Args:
        oracle: Measures mixtures.
        round_: The models; every client of the game needs one, among the participants' or those kept apart.
        clients: Who plays, (n,) ascending indices.
        weights: What each client of the federation counts in an average, (n_clients,), from `round_weights`.
        weighting: How the weights are used.
        client_names: Names of all clients of the federation, for error messages.
    """

    oracle: Oracle
    round_: Round
    clients: Indices  # (n,)
    weights: Floats  # (n_clients,)
    weighting: Weighting
    client_names: tuple[str, ...] = field(default=(), kw_only=True)

    @property
    def n_blocks(self) -> int:
        """How many blocks of test samples there are."""
        return self.oracle.n_blocks

    def utilities(self, coalitions: Memberships) -> Floats:
        """(n_coalitions, n_blocks): utilities of coalitions, (n_coalitions, n)."""
        return self.model_utilities(coalitions)

    def model_utilities(self, coalitions: Memberships) -> Floats:
        """(n_coalitions, n_blocks): what the oracle measures of mixtures of the round's models.

        A derived game may know better utilities of some coalitions; this method always measures the models.
        """
        found = np.zeros((len(coalitions), self.n_blocks))  # the empty coalition keeps the global model: 0
        rows = np.zeros((len(coalitions), len(self.weights)), dtype=bool)  # coalitions of all clients
        rows[:, self.clients] = coalitions
        wanted = coalitions.any(axis=1)
        if wanted.any():
            measured = self.oracle.utilities(self.round_, mixtures(rows[wanted], self.weights, self.weighting))
            found[wanted] = measured
        refuse_not_finite(found, rows, f"round {self.round_.entry.number}", self.client_names)
        return found


class Memory:
    """Measured utilities of a game's coalitions; the empty coalition is known to be 0 and is not counted."""

    def __init__(self) -> None:
        self._known: dict[bytes, tuple[Memberships, Floats]] = {}

    def __len__(self) -> int:
        return len(self._known)

    def utilities(self, coalitions: Memberships, n_blocks: int, measure: Callable[[Memberships], Floats]) -> Floats:
        """(n_coalitions, n_blocks): known utilities; coalitions that are not known yet are measured together."""
        keys = _keys(coalitions)
        is_new = np.array([key not in self._known for key in keys], dtype=bool) & coalitions.any(axis=1)
        if is_new.any():
            wanted, _ = distinct(coalitions[is_new])
            self.add(wanted, measure(wanted))
        empty = (coalitions[:0], np.zeros(n_blocks))
        return np.array([self._known.get(key, empty)[1] for key in keys]).reshape(len(coalitions), n_blocks)

    def knows(self, coalitions: Memberships) -> NDArray[np.bool_]:
        """(n_coalitions,): whether each is known."""
        return np.array([key in self._known for key in _keys(coalitions)], dtype=bool) | ~coalitions.any(axis=1)

    def add(self, coalitions: Memberships, utilities: Floats) -> None:
        """Remember utilities, (n_coalitions, n_blocks)."""
        for key, row, utility in zip(_keys(coalitions), coalitions, utilities, strict=True):
            if row.any():
                self._known[key] = (row, utility)

    def all(self) -> tuple[Memberships, Floats]:
        """Every known coalition in the order of measuring, and its utilities."""
        rows, utilities = zip(*self._known.values(), strict=True)
        return np.array(rows), np.array(utilities)


def _keys(coalitions: Memberships) -> list[bytes]:
    return [row.tobytes() for row in np.packbits(coalitions, axis=1)]


@dataclass(frozen=True, eq=False)
class RecordedGame(ModelGame):
    """A game on recorded models that measures each coalition once."""

    memory: Memory = field(default_factory=Memory, init=False, repr=False)

    def utilities(self, coalitions: Memberships) -> Floats:
        """(n_coalitions, n_blocks): utilities of coalitions, (n_coalitions, n)."""
        return self.memory.utilities(coalitions, self.n_blocks, super().model_utilities)

    def model_utilities(self, coalitions: Memberships) -> Floats:
        """(n_coalitions, n_blocks): the same as `utilities`."""
        return self.utilities(coalitions)

    @property
    def n_measured(self) -> int:
        """How many coalitions are known, the empty one aside."""
        return len(self.memory)

    def is_known(self, coalitions: Memberships) -> NDArray[np.bool_]:
        """(n_coalitions,): which coalitions, (n_coalitions, n), need not be measured."""
        return self.memory.knows(coalitions)

    def measured(self) -> tuple[Memberships, Floats]:
        """The known coalitions, (n_measured, n), and their utilities, (n_measured, n_blocks)."""
        if not len(self.memory):
            return np.zeros((0, len(self.clients)), dtype=bool), np.zeros((0, self.n_blocks))
        return self.memory.all()

    def preload(self, coalitions: Memberships, utilities: Floats) -> None:
        """Remember utilities that were measured before, (n_coalitions, n_blocks)."""
        utilities = np.asarray(utilities, dtype=np.float64)
        expected = (len(coalitions), self.n_blocks)
        if coalitions.shape[1:] != self.clients.shape or utilities.shape != expected:
            raise UtilityError(
                f"round {self.round_.entry.number}: {coalitions.shape} coalitions with {utilities.shape} utilities, "
                f"expected {len(self.clients)} columns and utilities of shape {expected}"
            )
        self.memory.add(coalitions, utilities)


@dataclass(frozen=True, eq=False)
class MatrixGame:
    """One round's game in a utility matrix, among some clients; a coalition that was not seen is an error."""

    matrix: UtilityMatrix
    round_index: int
    clients: Indices  # (n,)

    @property
    def n_blocks(self) -> int:
        """How many blocks of test samples there are."""
        return int(self.matrix.utilities.shape[1])

    def utilities(self, coalitions: Memberships) -> Floats:
        """(n_coalitions, n_blocks): utilities of coalitions, (n_coalitions, n)."""
        rows = np.zeros((len(coalitions), self.matrix.n_clients), dtype=bool)
        rows[:, self.clients] = coalitions
        found = np.array(self.matrix.row(self.round_index, rows))
        found[~coalitions.any(axis=1)] = 0.0
        unseen = np.flatnonzero(np.isnan(found).any(axis=1))
        if len(unseen):
            first = names(rows[unseen[0]], self.matrix.clients)
            raise ValuationError(
                f"round {self.round_index}: {len(unseen):,} of {len(rows):,} coalitions that the value rests on "
                f"were not seen, the first is {first}; measure them too"
            )
        return found


@dataclass(frozen=True, eq=False)
class SummedGame:
    """The sum of games among the same clients."""

    games: Sequence[Game]

    def __post_init__(self) -> None:
        if not self.games:
            raise ValuationError("a sum of no games: expected one or more")
        if any(not np.array_equal(game.clients, self.games[0].clients) for game in self.games):
            raise ValuationError("a sum of games among different clients: expected the same clients in all of them")

    @property
    def clients(self) -> Indices:
        """(n,): ascending indices of the clients who play."""
        return self.games[0].clients

    @property
    def n_blocks(self) -> int:
        """How many blocks of test samples there are."""
        return self.games[0].n_blocks

    def utilities(self, coalitions: Memberships) -> Floats:
        """(n_coalitions, n_blocks): utilities of coalitions, (n_coalitions, n)."""
        total = np.zeros((len(coalitions), self.n_blocks))
        for game in self.games:  # one at a time: each may hold a round's models
            total += game.utilities(coalitions)
        return total


class CountedGame:
    """A game that counts how many different coalitions were asked for, and asks for each once."""

    def __init__(self, game: Game) -> None:
        self._game = game
        self._memory = Memory()

    @property
    def clients(self) -> Indices:
        """(n,): ascending indices of the clients who play."""
        return self._game.clients

    @property
    def n_blocks(self) -> int:
        """How many blocks of test samples there are."""
        return self._game.n_blocks

    def utilities(self, coalitions: Memberships) -> Floats:
        """(n_coalitions, n_blocks): utilities of coalitions, (n_coalitions, n)."""
        return self._memory.utilities(coalitions, self.n_blocks, self._game.utilities)

    @property
    def n_evaluations(self) -> int:
        """How many different coalitions were asked for, the empty one aside."""
        return len(self._memory)


def refuse_not_finite(utilities: Floats, coalitions: Memberships, where: str, client_names: Sequence[str] = ()) -> None:
    """Raise an error if a utility is not finite; there is no default for one that failed."""
    bad = np.flatnonzero(~np.isfinite(utilities).all(axis=1))
    if len(bad):
        found = utilities[bad[0]][~np.isfinite(utilities[bad[0]])][0]
        known = tuple(client_names) or tuple(map(str, range(coalitions.shape[1])))
        raise UtilityError(
            f"{where}, coalition {names(coalitions[bad[0]], known)}: utility is {found}, "
            "expected a finite number; see whether a model of the coalition diverged"
        )
