"""What a value rests on: what a client adds to large coalitions, and the few coalitions that decide its value.

A Shapley value averages what a client adds to coalitions of all sizes, to the empty one as much as to all others
together. A single coalition can decide it: a model alone that diverged in the first round makes the value negative,
even if the client helps every coalition of others. So harm is only reported if what the client adds to *large*
coalitions, those of at least half of the others, is negative too:

    large_i = Σ_t mean over sizes s ≥ (n − 1)/2 of the mean over S∌i, |S| = s, of U_t(S∪i) − U_t(S)

Where coalitions of models are sampled, the same draws estimate it (`games.ensemble`). Where nothing is known of single
test samples, large coalitions are those of all others (leave-one-out).
"""

from dataclasses import dataclass

import numpy as np

from fedworth.arrays import Floats, Indices
from fedworth.games.game import Game, ModelGame, all_but_one
from fedworth.games.rules import to_large_values
from fedworth.games.shapley import MOST_ENUMERATED, all_utilities

MOST_CELLS = 3
DECIDING = 0.5
"""A few coalitions decide a value if at most MOST_CELLS of them make up this part of it."""


@dataclass(frozen=True)
class Cell:
    """What a client added to one coalition in one round, as a part of its value."""

    round_number: int  # by the federation's own count
    others: tuple[str, ...]  # the coalition without the client; nobody if the client was alone
    part: float  # negative if it has the other sign than the value


@dataclass(frozen=True, eq=False)
class Marginals:
    """What the values of all clients rest on."""

    large: Floats  # (n_clients,): what each adds to large coalitions, summed over the rounds; NaN if unknown
    deciding: tuple[tuple[Cell, ...], ...]  # of each client: the few cells that decide its value, if few do


class MarginalSums:
    """Adds up marginal contributions round by round; `cell_weights`, (n_cells,), are what test samples count."""

    def __init__(self, clients: tuple[str, ...], cell_weights: Floats | None = None) -> None:
        self._clients, self._large, self._weights = clients, np.zeros(len(clients)), cell_weights
        self._cells: list[list[tuple[float, int, Indices]]] = [[] for _ in clients]

    def add(self, round_number: int, game: Game, *, is_exact: bool) -> None:
        """Add a round's game; `is_exact` says that all of its coalitions were measured to share it out."""
        if is_exact and len(game.clients) <= MOST_ENUMERATED:
            self._enumerate(round_number, game)
        elif isinstance(game, ModelGame) and game.sampled is not None:
            self._large[game.clients] += self._totals(game.sampled.to_large.values)
        elif isinstance(game, ModelGame):
            found = self._totals(all_but_one(game))
            self._large[game.clients] += found[0] - found[1:]
        else:
            self._large[game.clients] = np.nan

    def _totals(self, by_cell: Floats) -> Floats:
        return np.asarray(by_cell.sum(axis=1) if self._weights is None else by_cell @ self._weights)

    def _enumerate(self, round_number: int, game: Game) -> None:
        utilities, n = self._totals(all_utilities(game)), len(game.clients)
        integers = np.arange(2**n)
        sizes = np.bitwise_count(integers.astype(np.uint32))
        per_size = np.bincount(sizes, minlength=n + 1) * (n - np.arange(n + 1)) / n  # coalitions without a client
        self._large[game.clients] += to_large_values(utilities)
        for place, client in enumerate(game.clients.tolist()):
            without = integers[integers >> place & 1 == 0]
            each = (utilities[without | 1 << place] - utilities[without]) / per_size[sizes[without]]
            order = np.argsort(each)
            for k in {*order[:MOST_CELLS].tolist(), *order[-MOST_CELLS:].tolist()}:
                members = game.clients[without[k] >> np.arange(n) & 1 == 1]
                self._cells[client].append((float(each[k]) / n, round_number, members))

    def of(self, values: Floats) -> Marginals:
        """What these values, (n_clients,), rest on."""
        large = np.where(np.isnan(values), np.nan, self._large)
        return Marginals(large, tuple(self._deciding(k, value) for k, value in enumerate(values.tolist())))

    def _deciding(self, client: int, value: float) -> tuple[Cell, ...]:
        """The fewest cells that make up DECIDING of a value; none if it takes many."""
        if not abs(value) > 0:
            return ()
        parts = sorted(((term / value, t, members) for term, t, members in self._cells[client]), key=lambda x: -x[0])
        totals = np.cumsum([part for part, _, _ in parts[:MOST_CELLS]])
        enough = np.flatnonzero(totals >= DECIDING)
        n_cells = int(enough[0]) + 1 if len(enough) else 0
        return tuple(Cell(t, tuple(self._clients[k] for k in who), part) for part, t, who in parts[:n_cells])
