"""The update process: closed forms against refitting, and against the dense posterior."""

from dataclasses import replace

import numpy as np
import pytest

from fedworth.completion.models.update_process import STEADY, Likeness, UpdateProcess, update_process


def process_of(seed: int, n_clients: int = 5, n_rounds: int = 6) -> UpdateProcess:
    rng = np.random.default_rng(seed)
    places, times = rng.normal(size=(n_clients, 2)), rng.normal(size=(n_rounds, 2))
    alike = [np.exp(-((x[:, None] - x) ** 2).sum(axis=2)) for x in (places, times)]
    heard = rng.random((n_rounds, n_clients)) < 0.5
    heard[0] = True
    return update_process(Likeness(*alike), *np.nonzero(heard))[0]


@pytest.mark.parametrize("seed", range(5))
def test_leaving_a_point_out_is_refitting_without_it(seed):
    process = process_of(seed)
    for point in range(len(process.rounds)):
        others = np.flatnonzero(np.arange(len(process.rounds)) != point)
        refitted = UpdateProcess(process.likeness, process.rounds[others], process.clients[others])
        weights, variance = refitted.coefficients(process.clients[[point]], int(process.rounds[point]))
        np.testing.assert_allclose(process.left_out(point)[others], weights[0], atol=1e-10)
        assert process.left_out_variances(np.array([point]))[0] == pytest.approx(variance[0])


@pytest.mark.parametrize("seed", range(3))
def test_the_left_out_error_is_what_left_out_predictions_miss(seed):
    process = replace(process_of(seed), numbers=STEADY)
    updates = np.random.default_rng(seed).normal(size=(len(process.rounds), 7))
    left_out = [process.left_out(point) @ updates for point in range(len(updates))]
    expected = ((updates - left_out) ** 2).sum() / (updates**2).sum()
    assert process.left_out_error(updates @ updates.T) == pytest.approx(expected)


@pytest.mark.parametrize("seed", range(3))
def test_updates_as_the_process_expects_them_agree_no_more_than_that(seed):
    process = process_of(seed)
    products = process.covariance(process.clients, process.rounds)  # what many such updates have on the average
    assert process.agreement(np.arange(len(products)), products) == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize("seed", range(3))
def test_errors_that_last_agree_by_their_correlation_beyond_the_expected(seed):
    process = process_of(seed)
    expected = process.covariance(process.clients, process.rounds)
    lasting = process.inverse @ expected + 0.5 * (process.clients[:, None] == process.clients)
    products = np.linalg.inv(process.inverse) @ lasting @ np.linalg.inv(process.inverse)  # left-out errors ∝ lasting
    errors = [process.left_out(a) - np.eye(len(expected))[a] for a in range(len(expected))]
    found = np.array(errors) @ products @ np.array(errors).T
    awaited = np.array(errors) @ expected @ np.array(errors).T
    pairs = [(a, b) for a in range(len(found)) for b in range(a) if process.clients[a] == process.clients[b]]
    shown, usual = (np.mean([c[pair] for pair in pairs]) / np.trace(c) * len(c) for c in (found, awaited))
    assert shown > usual
    assert process.agreement(np.arange(len(found)), products) == pytest.approx(shown - usual)


def test_a_client_heard_once_agrees_with_nobody():
    process = process_of(0)
    assert process.agreement(np.array([0, 1]), np.eye(len(process.rounds))) == 0


@pytest.mark.parametrize("seed", range(5))
def test_the_summed_covariance_is_that_of_the_dense_posterior(seed):
    process = process_of(seed)
    n_clients, n_rounds = len(process.likeness.of_clients), len(process.likeness.of_rounds)
    rounds, clients = (x.ravel() for x in np.indices((n_rounds, n_clients)))
    prior = UpdateProcess(process.likeness, rounds, clients).covariance(clients, rounds)
    near = process.covariance(clients, rounds)
    posterior = prior - near @ process.inverse @ near.T
    weights = np.random.default_rng(seed).random((n_rounds, n_clients))
    spread = np.zeros((n_clients, len(rounds)))
    spread[clients, np.arange(len(rounds))] = weights.ravel()
    np.testing.assert_allclose(process.summed_covariance(weights), spread @ posterior @ spread.T, atol=1e-10)


def test_a_point_is_predicted_as_it_is_but_for_noise_and_answers_of_one_kind_are_one_point():
    likeness = Likeness(np.array([[1.0, 1.0, 0.1], [1.0, 1.0, 0.1], [0.1, 0.1, 1.0]]), np.ones((2, 2)))
    process, points = update_process(likeness, np.array([0, 0, 0, 1, 1]), np.array([0, 1, 2, 1, 2]))
    assert points.tolist() == [0, 2, 3, 4]
    assert likeness.kinds.tolist() == [0, 0, 2]
    weights, variances = process.coefficients(np.array([0, 1]), 1)
    np.testing.assert_allclose(weights, [[0, 0, 1, 0], [0, 0, 1, 0]], atol=1e-12)
    np.testing.assert_allclose(variances, [0, 0], atol=1e-12)
