"""Held-out participants and the covariance of the values' errors, against the formulas written out."""

from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from fedworth.completion.models import complete_by_models
from fedworth.completion.models import prediction as prediction_module
from fedworth.completion.models.gaussian_process import FULL_BATCH
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


@pytest.mark.parametrize("weighting", ["uniform", "samples", "fixed"])
def test_members_errors_are_posteriors_scaled_by_held_out_errors(ledger, task, weighting):
    made = complete_by_models(RecordedFederation(ledger, LoopOracle(task), weighting))
    models, singletons, held = made.models, made.singletons, made.held
    points, rounds, clients = held.points, models.process.rounds[held.points], models.process.clients[held.points]
    shares = held.size_shares[1]

    def mass(t, i, among):  # how much client i counts in coalitions of k, relative to 1/k
        n, weights = len(among), models.federation.weights(t)
        if weighting == "fixed":
            return weights[i] * 5
        others = sum(weights[j] for j in among if j != i) / (n - 1)
        sizes = [min(k, n) for k in range(1, 6)]
        return sum(
            share * k * weights[i] / (weights[i] + (k - 1) * others) for share, k in zip(shares, sizes, strict=True)
        )

    g = singletons.scale[rounds]
    m = np.array([mass(t, i, np.flatnonzero(models.participants[t])) for t, i in zip(rounds, clients, strict=True)])
    scale = np.where(models.known, 0.0, singletons.scale[:, None])
    heavy = scale * [[mass(t, i, range(5)) for i in range(5)] for t in range(4)]
    first = int(weighting != "fixed")
    alone, together = held.errors[:, :first].sum(axis=1), held.errors[:, first:].sum(axis=1)
    variances = singletons.process.leave_out(points)[1], held.variances
    counts = g**2 / (g**2).sum(), (g * m) ** 2 / ((g * m) ** 2).sum()
    degrees = [max(1 / (c**2).sum() - 1, 3) for c in counts]
    wider = float(np.max(stats.t.ppf(0.95, degrees))) / stats.norm.ppf(0.95)

    def own(errors, c, v):  # (5,): how far each client's own errors exceed all
        squares = errors**2 / np.maximum(v, 0.1 * (c @ v))
        squares = squares / max(c @ squares, 1e-300)
        found = []
        for i in range(5):
            mine = (c / c.max())[models.similarity.duplicates[i, clients]]
            found.append((mine @ squares[models.similarity.duplicates[i, clients]] + 2) / (mine.sum() + 2))
        return np.sqrt(np.maximum(found, 1))

    widen = np.concatenate([own(alone, counts[0], variances[0]), own(together / m, counts[1], variances[1])]) * wider
    found = held.member_covariance() / np.outer(widen, widen)
    expected = singletons.process.summed_covariance(scale) * (g**2 @ alone**2) / (g**2 @ variances[0])
    np.testing.assert_allclose(found[:5, :5], expected, rtol=1e-9, atol=1e-15)
    across = (scale.T @ heavy) * models.similarity.duplicates * (g**2 @ (alone * together))
    across /= np.sqrt((g**2).sum() * ((g * m) ** 2).sum())
    np.testing.assert_allclose(found[:5, 5:], across, rtol=1e-9, atol=1e-15)
    square = (g**2 @ together**2) / ((g * m) ** 2).sum()
    expected = models.process.summed_covariance(heavy) * square / (counts[1] @ held.variances)
    expected += (
        models.excess_correlation(points)
        * square
        * np.outer(heavy.sum(axis=0), heavy.sum(axis=0))
        * models.similarity.duplicates
    )
    np.testing.assert_allclose(found[5:, 5:], expected, rtol=1e-9, atol=1e-15)


def test_the_values_covariance_is_the_members_through_the_shapley_map(made):
    members = made.held.member_covariance()
    shares, n = made.held.size_shares, 5
    coalitions = (np.arange(2**n)[:, None] >> np.arange(n)) & 1
    sizes = coalitions.sum(axis=1)
    games = [np.concatenate([[0], row])[sizes][:, None] * coalitions for row in shares]
    moved = shapley_values(np.concatenate(games, axis=1).T.astype(float))  # (2 n, n): values if one error is 1
    expected = moved.T @ members @ moved
    found = made.held.value_covariance()
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
