"""Every round's game: by rays and pairs where what is measured is smooth, else by strata; with standard errors."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from fedworth.arrays import stream
from fedworth.errors import UtilityError
from fedworth.games import RoundGame, estimate_rounds, sampled_values, strata_values
from fedworth.games.planning.design import draw_design
from fedworth.games.rounds import STRATA_PER_MEMBER
from fedworth.oracle.oracle import LoopOracle
from tests.support.tasks import task_with
from tests.support.zoo import round_of

N = 9


def game_of(measure):
    task = task_with("cross-entropy")
    return RoundGame(LoopOracle(task, measure), round_of(task.module, N), np.arange(N), np.ones(N), "uniform")


def test_what_has_no_logits_to_bend_is_estimated_by_strata():
    game = game_of("accuracy")
    assert not game.has_surrogate
    found = estimate_rounds(lambda _: game, 1, N)
    design = draw_design(np.arange(N), N, STRATA_PER_MEMBER * N, rng=stream(0, "games", 0))
    expected = strata_values(design, game(design))
    np.testing.assert_array_equal(found.values[0], expected.values)
    np.testing.assert_array_equal(found.variances[0], expected.standard_errors**2)
    assert (found.variances[0] > 0).all()
    assert found.n_evaluations == len(design)


def test_a_smooth_loss_is_estimated_by_rays_and_pairs():
    game = game_of("loss")
    assert game.has_surrogate
    found = estimate_rounds(lambda _: game, 1, N)
    expected = sampled_values(game, rng=stream(0, "games", 0))
    np.testing.assert_array_equal(found.values[0], expected.values)
    assert (found.variances[0] > 0).all()


@pytest.mark.parametrize("measure", ["loss", "accuracy"])
def test_a_wrong_number_in_a_game_is_found_by_the_plain_loop(measure):
    class Wrong(LoopOracle):
        def utilities(self, round_, mixtures):
            return super().utilities(round_, mixtures) + 0.3

    game = replace(game_of(measure), oracle=Wrong(task_with("cross-entropy"), measure))
    with pytest.raises(UtilityError, match=r"round 0, coalition \{.*\}: the plain loop measures"):
        estimate_rounds(lambda _: game, 1, N)


def test_a_client_whose_numbers_only_rounding_decides_is_named_in_a_game():
    game = game_of("loss")
    models = {**game.round_.client_models}
    models[4] = {name: torch.full_like(tensor, 1e7) for name, tensor in models[4].items()}
    game = replace(game, round_=replace(game.round_, client_models=models), clients=tuple("abcdefghi"))
    with pytest.raises(UtilityError, match="rounding alone decides its utility; without 'e' it is sure"):
        estimate_rounds(lambda _: game, 1, N)
