"""Choosing rank and penalty: by cells that were hidden, the same way every time."""

import numpy as np
import pytest

from fedworth.completion.complete import FactorSettings
from fedworth.completion.crossvalidation import choose_factors, held_out_error
from fedworth.errors import CompletionError
from tests.support.games import low_rank, matrix_of, participation

RANKS, PENALTIES = (1, 2, 4), (0.1, 0.001)


def seen(rank, seed=0, n_rounds=40):
    rng = np.random.default_rng(seed)
    return matrix_of(low_rank(n_rounds, 5, rank, rng), participation(n_rounds, 5, 3, rng))


def rng():
    return np.random.default_rng(1)


def test_hidden_cells_of_a_low_rank_matrix_are_predicted():
    assert held_out_error(seen(1), FactorSettings(rank=1, relative_penalty=1e-3), rng=rng()) < 0.05
    assert held_out_error(seen(2), FactorSettings(rank=2, relative_penalty=1e-3), rng=rng()) < 0.1


def test_hidden_cells_of_pure_noise_are_not():
    noise, random = np.random.default_rng(2).normal(size=(40, 32)), np.random.default_rng(3)
    noise[:, 0] = 0
    matrix = matrix_of(noise, participation(40, 5, 3, random))
    assert held_out_error(matrix, FactorSettings(rank=2), rng=rng()) > 0.8


@pytest.mark.parametrize("rank", [1, 2])
def test_the_rank_chosen_is_at_least_the_true_one_and_predicts(rank):
    choice = choose_factors(seen(rank), ranks=RANKS, relative_penalties=PENALTIES, rng=rng())
    assert choice.settings.rank >= rank
    assert choice.settings.relative_penalty == 0.001
    assert choice.error < 0.1
    assert choice.error == min(error for _, _, error in choice.candidates)
    assert [(r, f) for r, f, _ in choice.candidates] == [(r, f) for r in RANKS for f in PENALTIES]
    assert choice.n_hidden > 100


def test_the_chosen_error_is_the_held_out_error_of_the_settings():
    choice = choose_factors(seen(1), penalty_kind="uniform", ranks=(1, 2), relative_penalties=(0.01,), rng=rng())
    assert choice.settings.penalty_kind == "uniform"
    assert held_out_error(seen(1), choice.settings, rng=rng()) == choice.error


def test_the_choice_is_the_same_for_the_same_generator():
    one, two = (choose_factors(seen(2), ranks=(1, 2), relative_penalties=(0.01,), rng=rng()) for _ in range(2))
    assert one == two


def test_an_absolute_penalty_is_used_as_it_is():
    matrix = seen(1)
    relative = held_out_error(matrix, FactorSettings(rank=1), rng=rng())
    assert held_out_error(matrix, FactorSettings(rank=1, penalty=1e-6), rng=rng()) < relative
    with pytest.raises(CompletionError, match="positive"):
        held_out_error(matrix, FactorSettings(rank=1, penalty=0.0), rng=rng())


def test_too_few_cells_seen_twice_are_refused():
    utilities = np.random.default_rng(0).normal(size=(2, 4))
    utilities[:, 0] = 0
    for participants in ([[True, True]], [[True, False], [False, True]], [[True, True], [True, True]]):
        with pytest.raises(CompletionError, match="too few cells"):
            choose_factors(matrix_of(utilities[: len(participants)], participants), rng=rng())


def test_hidden_cells_that_are_all_zero_are_refused():
    utilities = np.array([[0, 1.0, 2.0, 3.0], [0, 0, 0, 0]])
    matrix = matrix_of(utilities, [[True, True], [True, False]])
    with pytest.raises(CompletionError, match="0"):
        held_out_error(matrix, FactorSettings(rank=1), rng=rng())
