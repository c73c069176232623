"""Shapley values from few forward passes: unbiased, with covariances that hold, for any module and weights."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from fedworth.games import ensemble
from fedworth.games.effort import shapley
from fedworth.games.effort import test_covariance as covariance_of_test_set
from fedworth.games.ensemble import DependentSamplesError, ensemble_shapley, has_outputs
from fedworth.games.game import ModelGame
from fedworth.games.rules import to_large_values
from fedworth.games.shapley import all_utilities, shapley_values
from fedworth.oracle.fast import FastOracle
from fedworth.oracle.oracle import LoopOracle
from fedworth.task.task import Task
from tests.support.tasks import task_with
from tests.support.zoo import round_of

N, N_SAMPLES = 6, 160
MODULES = {
    "logistic": lambda: nn.Linear(6, 3),
    "mlp": lambda: nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 3)),
    "batch norm": lambda: nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3)),
}
WEIGHTS = {"uniform": np.ones(N), "samples": np.linspace(1, 4, N), "fixed": np.linspace(1, 4, N) / 15}


def game_of(kind, weighting="uniform", measure="loss", n=N, n_blocks=4, oracle=FastOracle, size=0.5):
    torch.manual_seed(0)
    module = MODULES[kind]().eval()
    blocks = np.arange(N_SAMPLES) % n_blocks
    task = Task(module, torch.randn(N_SAMPLES, 6), torch.randint(0, 3, (N_SAMPLES,)), blocks=blocks)
    weights = WEIGHTS[weighting] if n == N else np.ones(n)
    return ModelGame(oracle(task, measure), round_of(module, n, size=size), np.arange(n), weights, weighting)


def passes(n):
    return lambda found: found.n_passes >= n


def exact(game):
    """(n, n_blocks)."""
    return shapley_values(np.ascontiguousarray(all_utilities(game).T)).T


@pytest.mark.parametrize(
    ("kind", "weighting", "measure"),
    [
        ("mlp", "uniform", "loss"),
        ("mlp", "samples", "loss"),
        ("mlp", "fixed", "loss"),
        ("batch norm", "samples", "loss"),
        ("mlp", "uniform", "accuracy"),
    ],
)
def test_values_are_unbiased_and_their_standard_errors_hold(kind, weighting, measure):
    """The mean of R estimates is nearly normal: off by 5 of its standard errors with chance 6e-7 a client and block."""
    game = game_of(kind, weighting, measure)
    large = to_large_values(np.ascontiguousarray(all_utilities(game).T)).T
    found = [ensemble_shapley(game, np.random.default_rng(seed), passes(3)) for seed in range(80)]
    for true, made in ((exact(game), [each.shapley for each in found]), (large, [each.to_large for each in found])):
        off = np.array([each.values for each in made]) - true
        assert (np.abs(off.mean(axis=0)) < 5 * off.std(axis=0) / np.sqrt(len(off)) + 1e-7).all()
        totals = off.sum(axis=2)  # (80, N)
        squares = [np.diag(each.sampling_covariance) for each in made]
        assert 0.6 < np.mean(totals**2) / np.mean(squares) < 1.5
        assert np.mean(np.abs(totals) <= 1.96 * np.sqrt(squares)) > 0.88


@pytest.mark.parametrize("weighting", WEIGHTS)
def test_models_whose_outputs_mix_as_they_do_are_valued_exactly(weighting):
    """The outputs of a linear module are the ensemble's, so two passes leave nothing to correct."""
    game = game_of("logistic", weighting)
    found = ensemble_shapley(game, np.random.default_rng(0), passes(2)).shapley
    assert found.values == pytest.approx(exact(game), abs=1e-6)
    assert found.standard_errors == pytest.approx(0, abs=1e-6)
    assert found.n_evaluations == N + 2 + 2


def test_blocks_add_up_to_what_everyone_achieves():
    game = game_of("mlp", "samples")
    found = ensemble_shapley(game, np.random.default_rng(0), passes(2)).shapley
    assert found.values.sum(axis=0) == pytest.approx(game.utilities(np.ones((1, N), dtype=bool))[0], abs=1e-9)
    whole = replace(game, oracle=FastOracle(replace(game.oracle.task, blocks=None)))
    total = ensemble_shapley(whole, np.random.default_rng(0), passes(2)).shapley
    assert found.totals == pytest.approx(total.values[:, 0], abs=1e-9)


def test_outputs_that_are_too_large_to_keep_are_valued_part_by_part(monkeypatch):
    game = game_of("mlp")
    monkeypatch.setattr(ensemble, "KEPT_NUMBERS", (N + 2) * 3 * N_SAMPLES // 3)
    found = [ensemble_shapley(game, np.random.default_rng(seed), passes(3)).shapley for seed in range(30)]
    off = np.array([one.totals for one in found]) - exact(game).sum(axis=1)
    assert (np.abs(off.mean(axis=0)) < 5 * off.std(axis=0) / np.sqrt(len(off))).all()
    said = np.mean([np.diag(one.sampling_covariance) for one in found])
    assert 0.5 < np.mean(off**2) / said < 2


def test_more_clients_than_can_be_enumerated_are_valued_too():
    game = game_of("batch norm", n=13, n_blocks=2)
    true = exact(game).sum(axis=1)
    found = [ensemble_shapley(game, np.random.default_rng(seed), passes(4)).shapley for seed in range(12)]
    off = np.array([one.totals for one in found]) - true
    assert np.sqrt(np.mean(off**2)) < 0.3 * true.std()
    assert 0.4 < np.mean(off**2) / np.mean([np.diag(one.sampling_covariance) for one in found]) < 2


def test_more_passes_make_values_more_precise_and_the_caller_decides():
    game, seen = game_of("mlp"), []

    def until_six(found):
        seen.append((found.n_passes, np.trace(found.covariance)))
        return found.n_passes == 6

    found = ensemble_shapley(game, np.random.default_rng(0), until_six).shapley
    assert [n for n, _ in seen] == [2, 3, 4, 5, 6]
    assert seen[-1][1] < seen[0][1]
    assert np.trace(found.sampling_covariance) == pytest.approx(seen[-1][1])
    assert found.n_evaluations == N + 2 + 6


def test_batches_say_how_far_another_test_set_would_move_the_values():
    game = game_of("mlp")
    by_sample = replace(game, oracle=FastOracle(replace(game.oracle.task, blocks=np.arange(N_SAMPLES))))
    true = exact(by_sample).var(axis=1, ddof=1).mean() * N_SAMPLES  # of the sum over samples
    said = []

    def four_passes(found):
        said.append(np.diag(covariance_of_test_set(found.by_batch, found.batch_sizes, found.covariance)).mean())
        return found.n_passes == 4

    ensemble_shapley(game, np.random.default_rng(0), four_passes)
    assert 0.4 < said[-1] / true < 2.5  # 16 batches


def test_single_clients_that_are_known_better_change_their_size_alone():
    game = game_of("mlp")
    lone, utilities = np.random.default_rng(1).normal(size=(N, 4)), all_utilities(game)

    class Known(ModelGame):
        def utilities(self, coalitions):
            found = super().utilities(coalitions)
            alone = coalitions.sum(axis=1) == 1
            found[alone] = lone[np.argmax(coalitions[alone], axis=1)]
            return found

    changed = utilities.copy()
    changed[1 << np.arange(N)] = lone
    known = Known(game.oracle, game.round_, game.clients, game.weights, game.weighting)
    plain, better = (ensemble_shapley(each, np.random.default_rng(2), passes(2)).shapley for each in (game, known))
    expected = shapley_values(np.ascontiguousarray(changed.T)).T - exact(game)
    assert better.values - plain.values == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("oracle", [LoopOracle, FastOracle])
@pytest.mark.parametrize("weighting", WEIGHTS)
def test_outputs_are_those_that_utilities_are_measured_on(oracle, weighting):
    game = game_of("batch norm", weighting, oracle=oracle)
    rows = np.random.default_rng(0).random((6, N)) < 0.5
    rows[0] = False
    found = torch.stack(list(game.outputs(rows, [np.arange(N_SAMPLES)] * 6)))
    losses = [nn.functional.cross_entropy(one, game.oracle.task.labels).item() for one in found]
    assert losses[0] - np.array(losses) == pytest.approx(game.utilities(rows).sum(axis=1), abs=1e-5)
    some = np.array([5, 3, 90])
    (part,) = game.outputs(rows[1:2], [some])
    assert torch.allclose(part, found[1][torch.from_numpy(some)], atol=1e-6)


def test_only_sums_over_samples_have_outputs_to_correct():
    for loss, measure, is_sum in (("binary", "loss", True), ("binary", "auc", False), ("cox", "loss", False)):
        task = task_with(loss)
        game = ModelGame(LoopOracle(task, measure), round_of(task.module, N), np.arange(N), np.ones(N), "uniform")
        assert has_outputs(game) == is_sum


@pytest.mark.parametrize("loss", ["segmentation", "tokens", "squared-error", "dice"])
def test_labels_of_many_numbers_are_valued(loss):
    task = task_with(loss)
    game = ModelGame(LoopOracle(task), round_of(task.module, N), np.arange(N), np.ones(N), "uniform")
    true = exact(game).sum(axis=1)
    found = ensemble_shapley(game, np.random.default_rng(1), passes(8)).shapley
    assert np.linalg.norm(found.totals - true) < 0.3 * np.linalg.norm(true - true.mean()) + 6 * np.sqrt(
        np.trace(found.sampling_covariance)
    )
    assert found.totals.sum() == pytest.approx(true.sum(), abs=1e-6)


def test_samples_that_depend_on_each_other_are_noticed():
    game = game_of("mlp")
    module = nn.Sequential(nn.BatchNorm1d(6, track_running_stats=False), nn.Linear(6, 3)).eval()
    task = replace(game.oracle.task, module=module)
    game = ModelGame(LoopOracle(task), round_of(module, N), np.arange(N), np.ones(N), "uniform")
    with pytest.raises(DependentSamplesError):
        ensemble_shapley(game, np.random.default_rng(0))
    many = ModelGame(LoopOracle(task), round_of(module, 13), np.arange(13), np.ones(13), "uniform")
    found = shapley(many, np.random.default_rng(0))  # by coalitions on all samples
    assert found.totals.sum() == pytest.approx(float(many.utilities(np.ones((1, 13), dtype=bool)).sum()))


def test_the_same_generator_gives_the_same_bytes():
    first, again = (ensemble_shapley(game_of("mlp"), np.random.default_rng(5), passes(2)).shapley for _ in range(2))
    assert first.values.tobytes() == again.values.tobytes()
    assert first.sampling_covariance.tobytes() == again.sampling_covariance.tobytes()
