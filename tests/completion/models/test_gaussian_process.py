"""The Gaussian process: closed forms against refitting and the dense posterior; the local one against the exact one."""

from dataclasses import replace

import numpy as np
import pytest

from fedworth.completion.models import gaussian_process as module
from fedworth.completion.models.gaussian_process import (
    FULL_BATCH,
    GaussianProcess,
    LocalGaussianProcess,
    Similarity,
    excess_correlation,
    left_out_error,
    update_process,
)


def process_of(seed: int, n_clients: int = 5, n_rounds: int = 6) -> GaussianProcess:
    rng = np.random.default_rng(seed)
    places, times = rng.normal(size=(n_clients, 2)), rng.normal(size=(n_rounds, 2))
    of_clients, of_rounds = (np.exp(-((x[:, None] - x) ** 2).sum(axis=2)) for x in (places, times))
    heard = rng.random((n_rounds, n_clients)) < 0.5
    heard[0] = True
    rounds, clients = np.nonzero(heard)
    constants = FULL_BATCH if seed == 2 else module.MINI_BATCH
    return update_process(Similarity(of_clients, of_rounds), rounds, clients, constants)


def local(process: GaussianProcess) -> LocalGaussianProcess:
    return LocalGaussianProcess(process.terms, process.duplicates, process.rounds, process.clients)


def among(process: GaussianProcess, points) -> GaussianProcess:
    return replace(process, rounds=process.rounds[points], clients=process.clients[points])


@pytest.mark.parametrize("seed", range(3))
def test_leaving_a_point_out_is_refitting_without_it(seed):
    process = process_of(seed)
    every = np.arange(len(process.rounds))
    weights, variances = process.leave_out(every)
    for point in every:
        others = np.delete(every, point)
        expected, variance = among(process, others).predict(process.clients[[point]], int(process.rounds[point]))
        np.testing.assert_allclose(weights[point, others], expected[0], atol=1e-8)
        assert weights[point, point] == 0
        assert variances[point] == pytest.approx(variance[0])


@pytest.mark.parametrize("seed", range(3))
def test_the_left_out_error_is_what_left_out_predictions_miss(seed):
    process = process_of(seed)
    updates = np.random.default_rng(seed).normal(size=(len(process.rounds), 7))
    guesses = process.leave_out(np.arange(len(updates)))[0] @ updates
    expected = ((updates - guesses) ** 2).sum() / (updates**2).sum()
    assert left_out_error(process, updates @ updates.T) == pytest.approx(expected)


@pytest.mark.parametrize("seed", range(3))
def test_the_summed_covariance_is_that_of_the_dense_posterior(seed):
    process = process_of(seed)
    n_rounds, n_clients = 6, 5
    rounds, clients = (x.ravel() for x in np.indices((n_rounds, n_clients)))
    prior = replace(process, rounds=rounds, clients=clients).covariance(clients, rounds)
    near = process.covariance(clients, rounds)
    posterior = prior - near @ process.inverse @ near.T
    weights = np.random.default_rng(seed).random((n_rounds, n_clients))
    spread = np.zeros((n_clients, len(rounds)))
    spread[clients, np.arange(len(rounds))] = weights.ravel()
    np.testing.assert_allclose(process.summed_covariance(weights), spread @ posterior @ spread.T, atol=1e-8)


def test_a_client_whose_duplicate_was_heard_is_predicted_exactly():
    similarity = Similarity(np.array([[1.0, 1.0, 0.1], [1.0, 1.0, 0.1], [0.1, 0.1, 1.0]]), np.ones((2, 2)))
    rounds, clients = np.array([0, 0, 0, 1, 1]), np.array([0, 1, 2, 1, 2])
    points = similarity.merge_duplicates(rounds, clients)
    assert points.tolist() == [0, 2, 3, 4]
    weights, variances = update_process(similarity, rounds[points], clients[points]).predict(np.array([0, 1]), 1)
    np.testing.assert_array_equal(weights, [[0, 0, 1, 0], [0, 0, 1, 0]])
    np.testing.assert_array_equal(variances, [0, 0])


def test_updates_as_the_process_expects_them_have_no_excess_correlation():
    process = process_of(0)
    every = np.arange(len(process.rounds))
    products = process.between(every, every)  # what many such updates have on average
    assert excess_correlation(process, every, products) == pytest.approx(0, abs=1e-12)


def test_errors_that_persist_have_excess_correlation():
    process = process_of(0)
    every = np.arange(len(process.rounds))
    covariance = process.between(every, every)
    own = (process.clients[:, None] == process.clients).astype(float)
    products = covariance @ (process.inverse + 0.5 * own) @ covariance  # left-out errors get a constant part by client
    assert excess_correlation(process, every, products) > 0.1
    assert excess_correlation(process, every[:2], products) == 0  # two clients, heard once each


def test_a_local_process_with_room_for_all_points_is_the_exact_one():
    exact = process_of(0, n_clients=6, n_rounds=8)
    cut, everyone, every = local(exact), np.arange(6), np.arange(len(exact.rounds))
    for t in range(8):
        for found, expected in zip(cut.predict(everyone, t), exact.predict(everyone, t), strict=True):
            np.testing.assert_allclose(found, expected, atol=1e-9)
    for found, expected in zip(cut.leave_out(every), exact.leave_out(every), strict=True):
        np.testing.assert_allclose(found, expected, atol=1e-9)
    weights = np.random.default_rng(1).random((8, 6))
    np.testing.assert_allclose(cut.summed_covariance(weights), exact.summed_covariance(weights), atol=1e-9)


def test_a_local_prediction_rests_on_its_round_the_fullest_round_and_the_clients_own_points(monkeypatch):
    monkeypatch.setattr(module, "MOST_SHARED", 1)
    exact, client, t = process_of(0, n_clients=6, n_rounds=8), 2, 4
    used = np.flatnonzero(np.isin(exact.rounds, [0, t]) | (exact.clients == client))
    expected, variance = among(exact, used).predict(np.array([client]), t)
    weights, variances = local(exact).predict(np.array([client]), t)
    np.testing.assert_allclose(weights[0, used], expected[0], atol=1e-9)
    assert np.count_nonzero(weights) <= len(used)
    assert variances == pytest.approx(variance)


def test_fewer_points_leave_more_variance(monkeypatch):
    monkeypatch.setattr(module, "MOST_SHARED", 10)
    exact, weights = process_of(0, n_clients=6, n_rounds=8), np.random.default_rng(1).random((8, 6))
    cut = local(exact)
    assert (np.diag(cut.summed_covariance(weights)) >= np.diag(exact.summed_covariance(weights)) - 1e-12).all()
    points = np.arange(len(exact.rounds))
    assert (cut.leave_out(points)[1] >= exact.leave_out(points)[1] - 1e-12).all()
