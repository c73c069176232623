"""Predicted models and predicted utilities of single clients."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from fedworth.completion.models import prediction as module
from fedworth.completion.models.gaussian_process import FULL_BATCH, MINI_BATCH, Similarity
from fedworth.completion.models.prediction import predict_models, round_scales, singleton_gp
from fedworth.errors import CompletionError
from fedworth.games.federation import RecordedFederation
from fedworth.ledger.ledger import Ledger
from fedworth.ledger.writer import LedgerWriter
from fedworth.oracle.oracle import LoopOracle
from fedworth.simulation.settings import SimulationSettings
from fedworth.simulation.simulate import simulate, task_of

SMALL = SimulationSettings(
    n_clients=8, n_rounds=20, n_steps=1, rate=0.5, train_limit=300, test_limit=60, with_truth=False
)


def hyperparameters_of(settings, folder):
    ledger = simulate(settings, folder)
    return predict_models(RecordedFederation(ledger, LoopOracle(task_of(ledger)), "uniform")).hyperparameters


def test_heard_models_stay_and_a_copy_answers_as_its_original_did(ledger, task):
    models = predict_models(RecordedFederation(ledger, LoopOracle(task), "uniform"))
    for t in range(ledger.n_rounds):
        opened, recorded = models.open_round(t), ledger.open_round(t)
        assert sorted(opened.client_models) == [0, 1, 2, 3, 4]
        for client, model in recorded.client_models.items():
            assert all(torch.equal(opened.client_models[client][name], model[name]) for name in model)
        original, copy = opened.client_models[0], opened.client_models[4]
        if models.participants[t, [0, 4]].any():  # rounding apart
            assert all(torch.allclose(original[name], copy[name], atol=1e-7) for name in original)
        else:
            assert all(torch.equal(original[name], copy[name]) for name in original)


def test_few_updates_choose_nothing(tmp_path):
    assert hyperparameters_of(SMALL, tmp_path / "l") == MINI_BATCH


@pytest.mark.parametrize(("batch_size", "expected"), [(None, FULL_BATCH), (2, MINI_BATCH)])
def test_many_updates_choose_the_hyperparameters_that_predict_them_best(tmp_path, monkeypatch, batch_size, expected):
    monkeypatch.setattr(module, "FEWEST_CHOOSING", 2)
    assert hyperparameters_of(replace(SMALL, batch_size=batch_size), tmp_path / "l") == expected


def test_a_federation_that_nobody_answered_is_refused(ledger, task, tmp_path):
    writer = LedgerWriter.create(tmp_path / "l", ledger.clients, aggregation="uniform")
    writer.record_round(ledger.open_round(0).global_model, {})
    federation = RecordedFederation(Ledger.open(tmp_path / "l"), LoopOracle(task), "uniform")
    with pytest.raises(CompletionError, match="nobody took part"):
        predict_models(federation)


@pytest.fixture
def scene():
    """Similarities, participants and utilities by block of a made-up federation; client 5 is a copy of client 0."""
    rng = np.random.default_rng(0)
    places = rng.normal(size=(6, 2))
    places[5] = places[0]
    similarity = Similarity(np.exp(-((places[:, None] - places) ** 2).sum(axis=2)), np.ones((8, 8)))
    participants = rng.random((8, 6)) < 0.4
    participants[0], participants[3] = True, False  # everybody, nobody
    participants[4, 0], participants[4, 5] = True, False
    return similarity, participants, rng.normal(size=(int(participants.sum()), 3)) ** 3


def test_predicted_blocks_add_up_to_the_predicted_total(scene):
    similarity, participants, utilities = scene
    by_block = singleton_gp(similarity, participants, utilities)
    whole = singleton_gp(similarity, participants, utilities.sum(axis=1, keepdims=True))
    assert (by_block.noise, by_block.slow_variance) == (whole.noise, whole.slow_variance)
    for t in range(8):
        found = by_block.utilities(np.arange(6), t)
        np.testing.assert_allclose(found.sum(axis=1), whole.utilities(np.arange(6), t)[:, 0], atol=1e-12)


def test_heard_utilities_are_predicted_as_they_are_and_those_of_copies_too(scene):
    similarity, participants, utilities = scene
    made = singleton_gp(similarity, participants, utilities)
    heard = utilities[np.nonzero(participants)[0] == 4]
    np.testing.assert_allclose(made.utilities(np.flatnonzero(participants[4]), 4), heard, rtol=1e-12)
    np.testing.assert_allclose(made.utilities(np.array([5]), 4), heard[:1], rtol=1e-12)


def test_the_noise_is_the_one_with_the_least_left_out_error(scene, monkeypatch):
    similarity, participants, utilities = scene
    monkeypatch.setattr(module, "SLOW_VARIANCES", (1.0,))
    noises, errors = module.NOISES, []
    chosen = singleton_gp(similarity, participants, utilities).noise
    for noise in noises:
        monkeypatch.setattr(module, "NOISES", (noise,))
        made = singleton_gp(similarity, participants, utilities)
        later = np.flatnonzero(made.process.rounds > 0)
        missed = (made.heard.sum(axis=1)[later] - made.leave_out(later)[0].sum(axis=1)) / made.scale[
            made.process.rounds[later]
        ]
        errors.append(np.mean(missed**2))
    assert chosen == noises[int(np.argmin(errors))]


def test_scales_are_smoothed_roots_of_mean_squares_and_0_where_nobody_answered():
    scale = round_scales(np.array([0, 0, 2]), np.array([3.0, 4.0, 1.0]), 4)
    near = np.exp(-0.5 * (2 / 3) ** 2)
    assert scale[0] == pytest.approx(np.sqrt(12.5) ** (1 / (1 + near)))
    assert scale[2] == pytest.approx(np.sqrt(12.5) ** (near / (1 + near)))
    assert scale[[1, 3]].tolist() == [0, 0]
