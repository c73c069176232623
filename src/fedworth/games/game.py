"""Cooperative games: what any coalition of some clients achieves, on each block of test samples.

A game's utilities have one column per block; their sum over the blocks is the paper's utility U_t(S), and U_t(∅) = 0.

    ModelGame      a coalition's model is a mixture of one round's models, and the oracle measures it, once
    MatrixGame     utilities that a utility matrix holds
    SummedGame     the sum of several games of the same clients, such as the games of all rounds
    CountedGame    any game, and how many of its coalitions were asked for

A sharing rule (`SharingRule`) divides what everyone achieves together among the clients of a game.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray

from fedworth.arrays import Floats, Indices, Memberships
from fedworth.coalitions import distinct, names
from fedworth.errors import UtilityError, ValuationError
from fedworth.games.matrix import UtilityMatrix
from fedworth.ledger.ledger import Round
from fedworth.names import Weighting
from fedworth.oracle.oracle import ClientModelError, Oracle, OutputOracle, n_columns_of
from fedworth.oracle.store import KeptOutputs
from fedworth.oracle.weighting import Mixtures, mixtures

MOST_LOOKED_UP = 16
"""Clients up to which all coalitions count whose utilities are known, so that nothing has to be measured."""


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


def all_but_one(game: Game) -> Floats:
    """(1 + n, n_blocks): the utility of all clients of a game together, then without each of them."""
    n = len(game.clients)
    return game.utilities(np.concatenate([np.ones((1, n), dtype=bool), ~np.eye(n, dtype=bool)]))


@dataclass(frozen=True, eq=False)
class Sampled:
    """Estimates from sampled coalitions of a game."""

    shapley: Shares
    to_large: Shares  # what each client adds to coalitions of at least half of the others
    by_batch: Floats  # (n, n_batches): Shapley values by batch of test samples


@dataclass(eq=False)
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
    kept: KeptOutputs | None = field(default=None, kw_only=True, repr=False)  # outputs that are known from other runs

    sampled: Sampled | None = field(default=None, init=False, repr=False)  # if coalitions were sampled

    def __post_init__(self) -> None:
        self.memory = Memory(len(self.clients), self.n_columns)

    @property
    def n_blocks(self) -> int:
        return self.oracle.n_blocks

    @property
    def n_columns(self) -> int:
        """How many columns the oracle measures: the blocks, and one for each other measure."""
        return n_columns_of(self.oracle)

    def utilities(self, coalitions: Memberships) -> Floats:
        return self.columns(coalitions)[:, : self.n_blocks]

    def columns(self, coalitions: Memberships) -> Floats:
        return self.memory.utilities(coalitions, self._measure)

    def mixtures(self, coalitions: Memberships) -> Mixtures:
        """The mixtures of models of coalitions, (n_coalitions, n)."""
        rows = np.zeros((len(coalitions), len(self.weights)), dtype=bool)  # coalitions of all clients
        rows[:, self.clients] = coalitions
        return mixtures(rows, self.weights, self.weighting)

    def outputs(self, coalitions: Memberships, which: Sequence[Indices]) -> Iterator[torch.Tensor]:
        """The outputs of each coalition's model on its own test samples, given by their numbers."""
        if self.kept is None:
            return self.measured_outputs(coalitions, which)
        return self.kept.outputs(coalitions, which, self.measured_outputs)

    def measured_outputs(self, coalitions: Memberships, which: Sequence[Indices]) -> Iterator[torch.Tensor]:
        """As `outputs`, but always measured."""
        oracle = self.oracle
        if not isinstance(oracle, OutputOracle):
            raise UtilityError(f"{type(oracle).__name__} gives no outputs of single samples; use another oracle")
        with self._named_clients():
            yield from oracle.outputs(self.round_, self.mixtures(coalitions), which)

    def refuse_infinite(self, coalitions: Memberships, utilities: Floats) -> None:
        """Refuse utilities, (n_coalitions, …), of which some are not finite."""
        bad = np.flatnonzero(~np.isfinite(utilities.reshape(len(coalitions), -1)).all(axis=1))
        if len(bad):
            members = names(coalitions[bad[0]], tuple(self.all_names[k] for k in self.clients))
            raise UtilityError(
                f"round {self.round_.entry.number}, coalition {members}: utility is "
                f"{utilities[bad[0]].sum()}, expected a finite number; see whether a model of the coalition diverged"
            )

    def _measure(self, coalitions: Memberships) -> Floats:
        with self._named_clients():
            found = self.oracle.utilities(self.round_, self.mixtures(coalitions))
        self.refuse_infinite(coalitions, found)
        return found

    @property
    def all_names(self) -> tuple[str, ...]:
        """The names of all clients of the federation."""
        return self.client_names or tuple(map(str, range(len(self.weights))))

    @contextmanager
    def _named_clients(self) -> Iterator[None]:
        """An oracle knows clients by number only; its errors get their names."""
        try:
            yield
        except ClientModelError as error:
            raise UtilityError(
                str(error).replace(f"client {error.client}", f"client {self.all_names[error.client]!r}")
            ) from None


class Memory:
    """Utilities of a game's coalitions in the order in which they were measured, after the empty one, which has 0."""

    def __init__(self, n_clients: int, n_columns: int) -> None:
        self._coalitions, self._utilities = np.zeros((1, n_clients), dtype=bool), np.zeros((1, n_columns))
        self._places = {_keys(self._coalitions)[0]: 0}

    def __len__(self) -> int:
        return len(self._places) - 1

    @property
    def n_bytes(self) -> int:
        """Memory that the utilities take."""
        return self._utilities.nbytes

    def utilities(self, coalitions: Memberships, measure: Callable[[Memberships], Floats]) -> Floats:
        """(n_coalitions, n_columns): known utilities; coalitions that are not known yet are measured together."""
        is_new = ~self.knows(coalitions)
        if is_new.any():
            wanted = distinct(coalitions[is_new])[0]
            self.add(wanted, measure(wanted))
        return self._utilities[np.array([self._places[key] for key in _keys(coalitions)], dtype=np.int64)]

    def knows(self, coalitions: Memberships) -> NDArray[np.bool_]:
        """(n_coalitions,): whether each is known."""
        return np.array([key in self._places for key in _keys(coalitions)], dtype=bool)

    def add(self, coalitions: Memberships, utilities: Floats) -> None:
        """Remember utilities, (n_coalitions, n_columns), of different coalitions."""
        is_new = ~self.knows(coalitions)
        for key in _keys(coalitions[is_new]):
            self._places[key] = len(self._places)
        self._coalitions = np.concatenate([self._coalitions, coalitions[is_new]])
        self._utilities = np.concatenate([self._utilities, utilities[is_new]])

    def measured(self) -> tuple[Memberships, Floats]:
        """All known coalitions but the empty one, (n_measured, n_clients), and their utilities."""
        return self._coalitions[1:], self._utilities[1:]


def _keys(coalitions: Memberships) -> list[bytes]:
    return [row.tobytes() for row in np.packbits(coalitions, axis=1)]


@runtime_checkable
class GameOfColumns(Game, Protocol):
    """A game that is measured by several measures at once."""

    def columns(self, coalitions: Memberships) -> Floats:
        """(n_coalitions, n_columns): utilities on each block of test samples, then by other measures."""


@dataclass(frozen=True, eq=False)
class MatrixGame:
    """One round's game in a utility matrix, among some clients; a coalition that was not seen is an error."""

    matrix: UtilityMatrix
    round_index: int
    clients: Indices  # (n,)
    most_enumerated = MOST_LOOKED_UP

    @property
    def n_blocks(self) -> int:
        return int(self.matrix.utilities.shape[1])

    def utilities(self, coalitions: Memberships) -> Floats:
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


class SummedGame:
    """The sum of games among the same clients."""

    def __init__(self, games: Sequence[Game]) -> None:
        if not games:
            raise ValuationError("a sum of no games: expected one or more")
        if any(not np.array_equal(game.clients, games[0].clients) for game in games):
            raise ValuationError(
                "this shares out the sum of all rounds' games, and rounds have different clients; use another method"
            )
        self.games, self.clients, self.n_blocks = games, games[0].clients, games[0].n_blocks

    def utilities(self, coalitions: Memberships) -> Floats:
        total = np.zeros((len(coalitions), self.n_blocks))
        for game in self.games:  # one at a time: each may hold a round's models
            total += game.utilities(coalitions)
        return total


class CountedGame:
    """A game that counts how many different coalitions were asked for, and asks for each once."""

    def __init__(self, game: Game) -> None:
        self._game, self.clients, self.n_blocks = game, game.clients, game.n_blocks
        self._memory = Memory(len(game.clients), game.n_blocks)

    def utilities(self, coalitions: Memberships) -> Floats:
        return self._memory.utilities(coalitions, self._game.utilities)

    @property
    def n_evaluations(self) -> int:
        """How many different coalitions were asked for, the empty one aside."""
        return len(self._memory)
