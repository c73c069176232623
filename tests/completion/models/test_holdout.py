"""Held-out participants and the covariance of the values' errors, against the formulas written out."""

from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from fedworth.completion.models import complete_by_models
from fedworth.completion.models import prediction as prediction_module
from fedworth.completion.models.gaussian_process import FULL_BATCH
from fedworth.completion.models.holdout import member_covariance, value_covariance
from fedworth.games.federation import RecordedFederation
from fedworth.games.shapley import shapley_values
from fedworth.oracle.fast import FastOracle
from fedworth.oracle.oracle import LoopOracle
from fedworth.simulation.simulate import simulate, task_of
from tests.support.by_hand import ByHand


@pytest.fixture
def made(ledger, task):
    return complete_by_models(RecordedFederation(ledger, LoopOracle(task), "uniform"))


def test_held_out_errors_are_what_the_formulas_say(made, ledger, task):
    by_hand, held, process = ByHand(ledger, task), made.held, made.models.process
    places = zip(process.rounds[held.points].tolist(), process.clients[held.points].tolist(), strict=True)
    errors, variances = zip(*(by_hand.held_out(t, i) for t, i in places), strict=True)
    np.testing.assert_allclose(held.variances, variances, rtol=1e-9)
    np.testing.assert_allclose(held.errors, errors, rtol=1e-3, atol=1e-4)
    assert held.size_shares.sum(axis=1) == pytest.approx([1, 1])
    assert held.size_shares[0].tolist() == [1, 0, 0, 0, 0]


def test_members_errors_are_posteriors_scaled_by_held_out_errors(made):
    models, singletons, held = made.models, made.singletons, made.held
    points, rounds = held.points, models.process.rounds[held.points]
    squares = singletons.scale[rounds] ** 2
    weights = squares / squares.sum()
    degrees = max(1 / (weights**2).sum() - 1, 3)
    wider = stats.t.ppf(0.95, degrees) / stats.norm.ppf(0.95)
    scale = np.where(models.known, 0.0, singletons.scale[:, None])
    found = member_covariance(models, singletons, held)
    alone, together = held.errors[:, 0], held.errors[:, 1:].sum(axis=1)
    ratio = (weights @ alone**2) / (weights @ singletons.process.leave_out(points)[1])
    expected = singletons.process.summed_covariance(scale) * ratio * wider**2
    np.testing.assert_allclose(found[:5, :5], expected, rtol=1e-9, atol=1e-15)
    across = (scale.T @ scale) * models.similarity.duplicates * (weights @ (alone * together)) * wider**2
    np.testing.assert_allclose(found[:5, 5:], across, rtol=1e-9, atol=1e-15)
    excess = models.excess_correlation(points) * np.outer(scale.sum(axis=0), scale.sum(axis=0))
    ratio = (weights @ together**2) / (weights @ held.variances)
    expected = models.process.summed_covariance(scale) * ratio
    expected += excess * models.similarity.duplicates * (weights @ together**2)
    np.testing.assert_allclose(found[5:, 5:], expected * wider**2, rtol=1e-9, atol=1e-15)


def test_the_values_covariance_is_the_members_through_the_shapley_map(made):
    members = member_covariance(made.models, made.singletons, made.held)
    shares, n = made.held.size_shares, 5
    coalitions = (np.arange(2**n)[:, None] >> np.arange(n)) & 1
    sizes = coalitions.sum(axis=1)
    games = [np.concatenate([[0], row])[sizes][:, None] * coalitions for row in shares]
    moved = shapley_values(np.concatenate(games, axis=1).T.astype(float))  # (2 n, n): values if one error is 1
    expected = moved.T @ members @ moved
    found = value_covariance(made.models, made.singletons, made.held)
    np.testing.assert_allclose(found, expected, rtol=1e-7, atol=1e-15)


def test_errors_of_clients_that_train_on_all_samples_are_widened(settings, tmp_path, monkeypatch):
    ledger = simulate(replace(settings, n_rounds=8), tmp_path / "l")
    monkeypatch.setattr(prediction_module, "FEWEST_CHOOSING", 2)
    found = []
    for factor in (1.0, 2.0):
        monkeypatch.setattr(prediction_module, "MINI_BATCH", replace(FULL_BATCH, error_factor=factor))
        monkeypatch.setattr(prediction_module, "FULL_BATCH", replace(FULL_BATCH, error_factor=factor))
        found.append(
            complete_by_models(RecordedFederation(ledger, FastOracle(task_of(ledger)), "uniform")).covariance()
        )
    np.testing.assert_allclose(found[1], 4 * found[0], rtol=1e-9)


def test_with_many_participants_some_coalitions_are_tested(settings, tmp_path):
    ledger = simulate(replace(settings, n_clients=10, n_participants=9, n_rounds=3), tmp_path / "l")
    made = complete_by_models(RecordedFederation(ledger, FastOracle(task_of(ledger)), "uniform"))
    assert 0 < made.held.n_evaluations < 18 * 2**8 / 4
    assert np.isfinite(made.held.errors).all()
