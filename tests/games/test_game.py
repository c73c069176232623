"""Kinds of games: what they measure, what they remember, and what they refuse."""

from dataclasses import dataclass, field

import numpy as np
import pytest

from fedworth.coalitions import coalitions_of
from fedworth.errors import UtilityError, ValuationError
from fedworth.games.game import CountedGame, MatrixGame, ModelGame, SummedGame, everyone_of
from fedworth.ledger.ledger import Ledger
from tests.support.games import matrix_of
from tests.support.ledgers import write_ledger


@dataclass
class Blocks:
    """Measures two blocks: the number of members, and the coefficient of the last client."""

    n_blocks: int = 2
    asked: list[int] = field(default_factory=list)

    def utilities(self, _round, mixtures):
        self.asked.append(len(mixtures))
        return np.stack([mixtures.memberships.sum(axis=1), mixtures.of_clients[:, -1]], axis=1).astype(float)


@pytest.fixture
def round_(tmp_path):
    write_ledger(tmp_path / "ledger")
    return Ledger.open(tmp_path / "ledger").open_round(0)


def game_of(kind, round_, oracle, clients=(0, 2)):
    return kind(oracle, round_, np.array(clients), np.array([1.0, 2.0, 3.0]), "samples", client_names=("a", "b", "c"))


ALL = coalitions_of(np.arange(2), 2)


def test_coalitions_of_some_clients_are_mixtures_of_all(round_):
    game = game_of(ModelGame, round_, Blocks())
    assert game.n_blocks == 2
    assert game.utilities(ALL).tolist() == [[0, 0], [1, 0], [1, 1], [2, 0.75]]
    assert everyone_of(game).tolist() == [2, 0.75]


def test_a_game_of_models_measures_each_coalition_once_and_the_empty_one_never(round_):
    oracle = Blocks()
    game = game_of(ModelGame, round_, oracle)
    assert game.memory.measured()[1].shape == (0, 2)
    first = game.utilities(ALL[[0, 3, 3]])
    assert first.tolist() == [[0, 0], [2, 0.75], [2, 0.75]]
    assert game.utilities(ALL).tolist() == game_of(ModelGame, round_, Blocks()).utilities(ALL).tolist()
    assert oracle.asked == [1, 2]
    assert len(game.memory) == 3
    coalitions, utilities = game.memory.measured()
    again = game_of(ModelGame, round_, oracle)
    again.memory.add(coalitions, utilities)
    assert again.utilities(ALL).tolist() == game.utilities(ALL).tolist()
    assert oracle.asked == [1, 2]


@dataclass
class AlsoCounted(Blocks):
    """Two blocks, and by another measure the number of members squared."""

    also: tuple[str, ...] = ("squares",)

    def utilities(self, _round, mixtures):
        found = super().utilities(_round, mixtures)
        return np.concatenate([found, found[:, :1] ** 2], axis=1)


def test_another_measure_is_a_game_that_needs_no_other_evaluations(round_):
    oracle = AlsoCounted()
    game = game_of(ModelGame, round_, oracle)
    assert game.utilities(ALL).tolist() == game_of(ModelGame, round_, Blocks()).utilities(ALL).tolist()
    assert game.columns(ALL)[:, game.n_blocks :].tolist() == [[0], [1], [1], [4]]
    assert (game.n_blocks, oracle.asked) == (2, [3])


def test_a_utility_that_is_not_finite_names_round_and_coalition(round_):
    @dataclass
    class Diverged(Blocks):
        def utilities(self, _round, mixtures):
            return np.where(mixtures.memberships[:, 2:], np.nan, super().utilities(_round, mixtures))

    game = game_of(ModelGame, round_, Diverged())
    with pytest.raises(UtilityError, match=r"round 0, coalition \{c\}: utility is nan"):
        game.utilities(ALL)


def test_a_matrix_game_has_seen_cells_only():
    matrix = matrix_of(np.array([[0.0, 1, 2, 4], [0, 3, 5, 9]]), [[True, True], [True, False]])
    game = MatrixGame(matrix, 0, np.arange(2))
    assert game.utilities(ALL).tolist() == [[0], [1], [2], [4]]
    assert MatrixGame(matrix, 1, np.array([0])).utilities(ALL[:2, :1]).tolist() == [[0], [3]]
    with pytest.raises(ValuationError, match=r"round 1: 2 of 4 .* the first is \{b\}"):
        MatrixGame(matrix, 1, np.arange(2)).utilities(ALL)


def test_games_of_the_same_clients_are_summed():
    matrix = matrix_of(np.array([[0.0, 1, 2, 4], [0, 3, 5, 9]]), np.ones((2, 2), dtype=bool))
    games = [MatrixGame(matrix, t, np.arange(2)) for t in range(2)]
    assert SummedGame(games).utilities(ALL).tolist() == [[0], [4], [7], [13]]
    with pytest.raises(ValuationError, match="different clients"):
        SummedGame([games[0], MatrixGame(matrix, 1, np.array([0]))])
    with pytest.raises(ValuationError, match="no games"):
        SummedGame([])


def test_a_counted_game_counts_different_coalitions(round_):
    counted = CountedGame(game_of(ModelGame, round_, Blocks()))
    counted.utilities(ALL[[0, 1, 1]])
    counted.utilities(ALL[[1, 2]])
    assert counted.n_evaluations == 2
    assert counted.utilities(ALL[:0]).shape == (0, 2)
