"""Completion by factors: its cells and games, its errors, and the choice of rank and penalty."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedworth.arrays import stream
from fedworth.coalitions import coalitions_of, locate
from fedworth.completion import factors as module
from fedworth.completion.completion import Caveat
from fedworth.completion.factors import (
    TOO_NARROW,
    UNKNOWN,
    FactorCompletion,
    choose_factors,
    complete,
    folds_of,
    held_out_error,
    neighbours,
    with_errors,
)
from fedworth.completion.settings import FactorSettings
from fedworth.completion.solver import Status, collapse_penalty, problem_of
from fedworth.errors import CompletionError, UnseenError, UsageError
from fedworth.games.effort import shapley
from fedworth.games.game import SummedGame
from fedworth.games.matrix import UtilityMatrix
from fedworth.games.permutations import permutation_shapley
from fedworth.games.shapley import shapley_values
from fedworth.valuation.federation import value
from tests.support.games import federation, large_federation, low_rank, matrix_of, participation

EVERYONE = coalitions_of(np.arange(5), 5)


def rng():
    return np.random.default_rng(1)


def cells(completion: FactorCompletion, coalitions=EVERYONE):
    """(n_rounds, n_coalitions): the completed utilities of coalitions of the heard clients."""
    games = [completion.game(t) for t in range(completion.n_rounds)]
    return np.stack([game.utilities(coalitions[:, game.clients]).sum(axis=1) for game in games])


def test_the_default_is_rank_5_and_a_hundredth_of_the_collapse_penalty_by_counts():
    _, matrix = federation(0)
    completion = complete(matrix)
    limit = collapse_penalty(problem_of(matrix, "counts"))
    assert (completion.rank, completion.penalty_kind) == (5, "counts")
    assert completion.penalty == pytest.approx(0.01 * limit, rel=1e-12)
    assert completion.relative_penalty == pytest.approx(0.01, rel=1e-12)
    assert completion.status is Status.CERTIFIED


def test_an_absolute_penalty_is_taken_as_it_is():
    _, matrix = federation(0)
    completion = complete(matrix, FactorSettings(penalty=0.2, penalty_kind="uniform"))
    assert completion.penalty == 0.2
    assert completion.relative_penalty == pytest.approx(
        0.2 / collapse_penalty(problem_of(matrix, "uniform")), rel=1e-12
    )


def test_the_summary_says_what_was_reached():
    _, matrix = federation(1)
    completion = complete(matrix, FactorSettings(rank=2))
    problem = problem_of(matrix, "counts")
    W, H = completion.round_factors, completion.coalition_factors
    assert completion.objective == pytest.approx(problem.objective(W, H, completion.penalty), rel=1e-12)
    left = problem.residuals(W, H)
    assert completion.residual == pytest.approx(np.linalg.norm(left) / np.linalg.norm(problem.values), rel=1e-12)
    keys = {"rank", "penalty", "penalty_kind", "objective", "status", "stationarity", "spectral_ratio"}
    assert keys <= set(completion.summary())
    assert "certified" not in str(completion.summary())  # a certificate is of the fit, never of values


def test_the_true_cells_of_a_low_rank_matrix_are_found():
    truth = low_rank(20, 5, 1, np.random.default_rng(3))
    matrix = matrix_of(truth, participation(20, 5, 3, np.random.default_rng(4)))
    completion = complete(matrix, FactorSettings(rank=1, relative_penalty=1e-4))
    assert np.linalg.norm(cells(completion) - truth) < 0.02 * np.linalg.norm(truth)


def test_the_games_of_the_rounds_are_the_products_of_the_factors():
    _, matrix = federation(2)
    completion = complete(matrix)
    X = completion.round_factors @ completion.coalition_factors.T
    wanted = matrix.coalitions[[7, 3, 3]]
    for t in range(6):
        assert completion.game(t).utilities(wanted)[:, 0] == pytest.approx(X[t, [7, 3, 3]], rel=1e-12)
    whole = SummedGame([completion.game(t) for t in range(6)])
    expected = shapley_values(cells(completion).sum(axis=0))
    assert shapley(whole, rng()).totals == pytest.approx(expected, rel=1e-9)
    assert expected == pytest.approx(value(matrix, "comfedsv").values, rel=1e-9)


def test_clients_never_heard_do_not_play():
    utilities, _ = federation(3)
    participants = participation(6, 5, 2, rng())
    participants[:, 1] = False
    completion = complete(matrix_of(utilities, participants))
    assert completion.heard.tolist() == completion.game(0).clients.tolist() == [0, 2, 3, 4]
    assert completion.game(0).utilities(coalitions_of(np.arange(4), 4)).shape == (16, 1)


def test_a_coalition_that_no_round_has_shown_is_refused_or_zero_by_name():
    utilities, _ = federation(4)
    participants = np.zeros((6, 5), dtype=bool)
    participants[:, :2], participants[3:, 2:] = True, [True, False, True]
    participants[5, 2] = participants[3:5, 4] = False  # c and e are never heard together
    completion = complete(matrix_of(utilities, participants))
    assert completion.heard.tolist() == [0, 1, 2, 4]
    four = np.ones((1, 4), dtype=bool)
    with pytest.raises(UnseenError, match=r"1 of 1 coalitions were never seen, the first \{a, b, c, e\}.*--unseen"):
        completion.game(0).utilities(four)
    assert replace(completion, unseen="zero").game(0).utilities(four).tolist() == [[0.0]]


def test_with_permutations_only_their_prefixes_are_completed():
    utilities, matrix = federation(5)
    permutations = np.array([[0, 1, 2, 3, 4], [4, 3, 2, 1, 0], [0, 1, 2, 4, 3]])
    reduced = matrix_of(utilities, matrix.participants, permutations=permutations)
    completion = with_errors(reduced, complete(reduced))
    assert len(completion.coalitions) == len(reduced.needed_coalitions()) == 1 + 2 + 2 + 2 + 3 + 1  # ∅ to everyone
    game = SummedGame([completion.game(t) for t in range(6)])
    found = value(reduced, "comfedsv").values
    assert permutation_shapley(game, permutations).totals == pytest.approx(found, rel=1e-9)
    covariance = completion.covariance()
    assert covariance is not None
    assert np.linalg.eigvalsh(covariance).min() > -1e-9 * np.trace(covariance)


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10_000), n_blocks=st.integers(2, 320))
def test_blocks_keep_the_round_factors_and_sum_to_the_total(seed, n_blocks):
    matrix = federation(6)[1]
    shares = np.random.default_rng(seed).normal(size=(len(matrix.utilities), n_blocks))
    shares += (1 - shares.sum(axis=1, keepdims=True)) / n_blocks
    whole, split = complete(matrix), complete(replace(matrix, utilities=matrix.utilities * shares))
    assert split.round_factors == pytest.approx(whole.round_factors, rel=1e-9, abs=1e-12)
    found, scale = split.game(1).utilities(EVERYONE), np.abs(cells(whole)).max()
    assert found.shape == (32, n_blocks)
    assert found.sum(axis=1) == pytest.approx(whole.game(1).utilities(EVERYONE)[:, 0], rel=0, abs=1e-9 * scale)


def test_a_blocks_factors_are_not_those_of_its_own_completion():
    matrix = federation(6)[1]
    shares = np.random.default_rng(0).dirichlet([1, 1, 1], len(matrix.utilities))
    found = complete(replace(matrix, utilities=matrix.utilities * shares)).game(1).utilities(EVERYONE)
    first = complete(replace(matrix, utilities=matrix.utilities * shares[:, :1]))  # other factors than the total's
    assert not np.allclose(first.game(1).utilities(EVERYONE)[:, 0], found[:, 0])


def test_what_cannot_be_completed_is_refused():
    matrix = federation(6)[1]
    with pytest.raises(CompletionError, match="nothing to complete from"):
        complete(matrix_of(np.zeros((2, 4)), [[True, True], [True, False]]))
    for too_much in (FactorSettings(relative_penalty=1.0), FactorSettings(penalty=1e9)):
        with pytest.raises(CompletionError, match="λ_collapse"):
            complete(matrix, too_much)


@pytest.mark.parametrize("bad", [{"rank": 0}, {"max_sweeps": 0}])
def test_settings_without_a_rank_or_a_step_are_refused(bad):
    with pytest.raises(CompletionError, match="expected 1 or more"):
        FactorSettings(**bad)
    with pytest.raises(UsageError, match="did you mean 'counts'"):
        FactorSettings(penalty_kind="count")  # type: ignore[arg-type]


def test_too_few_steps_are_reported():
    completion = complete(federation(8)[1], FactorSettings(relative_penalty=1e-4, max_sweeps=1))
    assert completion.status is Status.MAX_SWEEPS
    assert completion.summary()["status"].startswith("stopped at max_sweeps")


def test_a_large_reduced_matrix_is_completed():
    matrix = large_federation(50, 15, 50, 100)
    completion = complete(matrix)
    assert completion.status is Status.CERTIFIED  # the default rank, 5, is enough for these permutations
    assert (completion.places(matrix.needed_coalitions()) >= 0).all()
    assert completion.residual < 0.2


# Errors


@pytest.fixture(scope="module")
def made():
    matrix = federation(0)[1]
    return matrix, with_errors(matrix, complete(matrix))


def test_the_neighbours_differ_in_one_thing_each():
    own = FactorSettings()
    for other in neighbours(own):
        same = [getattr(other, name) == getattr(own, name) for name in ("rank", "relative_penalty", "penalty_kind")]
        assert same.count(False) == 1


def test_the_covariance_follows_from_the_values_of_the_alternatives(made):
    matrix, completion = made
    own, others = cells(completion, completion.coalitions).sum(axis=0), completion.alternatives
    assert len(others) == 10  # settings, then folds
    for settings_, moved in zip(neighbours(FactorSettings()), others, strict=False):
        other = cells(complete(matrix, settings_), completion.coalitions).sum(axis=0)
        np.testing.assert_allclose(moved, np.sqrt(1 / 5) * (other - own), atol=1e-6)
    for hidden, moved in zip(folds_of(matrix, stream(0, "alternatives")), others[5:], strict=True):
        rest = np.delete(np.arange(len(matrix.utilities)), hidden)
        cut = (x[rest] for x in (matrix.round_indices, matrix.coalition_indices, matrix.utilities))
        fewer = UtilityMatrix(matrix.clients, matrix.participants, matrix.coalitions, *cut)
        other = cells(complete(fewer), completion.coalitions).sum(axis=0)
        np.testing.assert_allclose(moved, np.sqrt(4 / 5) * (other - own), atol=1e-6)
    values = shapley_values(others[:, locate(EVERYONE, completion.coalitions)])
    covariance = values.T @ values
    np.testing.assert_allclose(completion.covariance(), covariance, rtol=1e-8, atol=1e-12)
    found = value(matrix, "comfedsv")
    assert found.uncertainty is not None
    np.testing.assert_allclose(found.uncertainty.standard_deviations**2, np.diag(covariance), rtol=1e-8)


def test_a_caveat_says_that_intervals_are_too_narrow_or_that_there_are_none(made, monkeypatch):
    matrix, completion = made
    assert completion.caveats == (Caveat((), TOO_NARROW),)
    bare = complete(matrix)
    assert bare.covariance() is None
    assert bare.caveats == (Caveat((), UNKNOWN),)
    monkeypatch.setattr(module, "MOST_CELLS", 10)
    assert with_errors(matrix, bare) is bare


# Choice of rank and penalty


def seen(rank, seed=0, n_rounds=40):
    random = np.random.default_rng(seed)
    return matrix_of(low_rank(n_rounds, 5, rank, random), participation(n_rounds, 5, 3, random))


def test_held_out_cells_of_a_low_rank_matrix_are_predicted_and_noise_is_not():
    assert held_out_error(seen(1), FactorSettings(rank=1, relative_penalty=1e-3), rng=rng()) < 0.05
    assert held_out_error(seen(2), FactorSettings(rank=2, relative_penalty=1e-3), rng=rng()) < 0.1
    noise = np.random.default_rng(2).normal(size=(40, 32))
    noise[:, 0] = 0
    matrix = matrix_of(noise, participation(40, 5, 3, np.random.default_rng(3)))
    assert held_out_error(matrix, FactorSettings(rank=2), rng=rng()) > 0.8


@pytest.mark.parametrize("rank", [1, 2])
def test_the_rank_chosen_is_at_least_the_true_one_and_predicts(rank):
    ranks, penalties = (1, 2, 4), (0.1, 0.001)
    chosen = choose_factors(seen(rank), ranks=ranks, relative_penalties=penalties, rng=rng())
    assert chosen.rank >= rank
    assert chosen.relative_penalty == 0.001
    candidates = [FactorSettings(rank=r, relative_penalty=part) for r in ranks for part in penalties]
    errors = [held_out_error(seen(rank), settings, rng=rng()) for settings in candidates]
    assert held_out_error(seen(rank), chosen, rng=rng()) == min(errors) < 0.1


def test_an_absolute_penalty_is_held_out_as_it_is():
    relative = held_out_error(seen(1), FactorSettings(rank=1), rng=rng())
    assert held_out_error(seen(1), FactorSettings(rank=1, penalty=1e-6), rng=rng()) < relative
    with pytest.raises(CompletionError, match="positive"):
        held_out_error(seen(1), FactorSettings(rank=1, penalty=0.0), rng=rng())


def test_too_few_cells_to_hold_out_are_refused():
    utilities = np.random.default_rng(0).normal(size=(2, 4))
    utilities[:, 0] = 0
    for participants in ([[True, True]], [[True, False], [False, True]], [[True, True], [True, True]]):
        with pytest.raises(CompletionError, match="too few cells"):
            choose_factors(matrix_of(utilities[: len(participants)], participants), rng=rng())
    zeros = matrix_of(np.array([[0, 1.0, 2.0, 3.0], [0, 0, 0, 0]]), [[True, True], [True, False]])
    with pytest.raises(CompletionError, match="0"):
        held_out_error(zeros, FactorSettings(rank=1), rng=rng())
