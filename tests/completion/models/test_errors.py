"""The errors of predictions: sums over rounds as the dense posterior says, scales as the held-out points say."""

from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from fedworth.completion.models.complete import heard_alone
from fedworth.completion.models.errors import member_errors
from fedworth.completion.models.holdouts import hold_outs
from fedworth.completion.models.lone_process import LoneProcess, lone_utilities
from fedworth.completion.models.predicted import predict_absent
from fedworth.completion.models.update_process import Likeness
from fedworth.games.observe import observe
from fedworth.games.planning.plan import plan_exact
from fedworth.oracle.fast import FastOracle
from fedworth.oracle.weighting import participation


@pytest.fixture
def scene(ledger, task):
    """The predicted ledger, the lone utilities and the hold-outs of a small federation."""
    oracle = FastOracle(task, n_threads=1)
    seen, predicted = observe(ledger, oracle, plan_exact(participation(ledger))), predict_absent(ledger, task)
    lone = heard_alone(predicted, oracle, seen, "uniform")
    return predicted, lone, hold_outs(predicted, oracle, seen, lone, weighting="uniform")


def lone_process(seed, n_clients=5, n_rounds=6, noise=0.1):
    rng = np.random.default_rng(seed)
    places = rng.normal(size=(n_clients, 2))
    alike = np.exp(-((places[:, None] - places) ** 2).sum(axis=2))
    heard = rng.random((n_rounds, n_clients)) < 0.5
    heard[0] = True
    rounds, clients = np.nonzero(heard)
    return LoneProcess(Likeness(alike, np.eye(n_rounds)), rounds, clients, noise), heard


def dense(process, rounds, clients, others):
    """k between answers, term by term."""
    found = np.zeros((len(rounds), len(others[0])))
    for a, (t, i) in enumerate(zip(rounds, clients, strict=True)):
        for b, (s, j) in enumerate(zip(*others, strict=True)):
            near = process.wandering * np.exp(-((t - s) ** 2) / 200)
            parts = ((0.5, 0.1, 0.1), (0.1, 0.5, 0.1), (0.1, 0.3, 0.03), (0.03, 0.1, 0.01))
            found[a, b] = sum(
                process.likeness.of_clients[i, j] ** p * (always + nearby * near + own * (t == s))
                for p, (always, nearby, own) in enumerate(parts)
            ) + process.noise * (t == s and i == j)
    return found


@pytest.mark.parametrize("seed", range(3))
def test_the_lone_sums_vary_as_the_dense_posterior_says(seed):
    process, heard = lone_process(seed)
    rounds, clients = (x.ravel() for x in np.indices(heard.shape))
    points = (process.rounds, process.clients)
    near = dense(process, rounds, clients, points)
    inverse = np.linalg.inv(dense(process, *points, points))
    posterior = dense(process, rounds, clients, (rounds, clients)) - near @ inverse @ near.T
    weights = np.random.default_rng(seed).random(heard.shape)
    spread = np.zeros((heard.shape[1], len(rounds)))
    spread[clients, np.arange(len(rounds))] = weights.ravel()
    np.testing.assert_allclose(process.summed_covariance(weights), spread @ posterior @ spread.T, atol=1e-10)
    every = np.arange(len(process.rounds))
    np.testing.assert_allclose(process.left_out_variances(every), 1 / np.diag(inverse), rtol=1e-9)


def test_the_left_out_utilities_are_those_of_the_process():
    process, heard = lone_process(0)
    utilities = np.where(heard, np.random.default_rng(1).normal(1, 0.3, heard.shape), np.nan)
    made = lone_utilities(utilities, process.likeness, process.rounds, process.clients)
    known = utilities[process.rounds, process.clients] / made.scale[process.rounds]
    every = np.arange(len(known))
    left_out = known - made.process.inverse @ known * made.process.left_out_variances(every)
    np.testing.assert_allclose(made.left_out, left_out * made.scale[process.rounds], rtol=1e-9)


def test_the_scales_are_those_of_the_held_out_points(scene):
    predicted, lone, held = scene
    made, n = member_errors(predicted, lone, held), len(predicted.heard)
    weights = held.scale**2 / (held.scale**2).sum()
    freedom = max(1 / (weights**2).sum() - 1, 3)
    wider = (stats.t.ppf(0.95, freedom) / stats.norm.ppf(0.95)) ** 2
    scale = np.where(predicted.known, 0.0, lone.scale[:, None])
    raw = held.errors * np.sqrt(held.relative)[:, None]
    agreement = predicted.agreement(held.points)
    assert agreement > 0
    lasts = agreement * np.outer(scale.sum(axis=0), scale.sum(axis=0)) * predicted.likeness.same_kind
    for part, process, errors, more in (
        (slice(0, n), lone.process, raw[:, 0], 0.0),
        (slice(n, 2 * n), predicted.process, raw[:, 1:].sum(axis=1), lasts),
    ):
        square = weights @ errors**2
        expected = square / (weights @ process.left_out_variances(held.points)) * process.summed_covariance(scale)
        np.testing.assert_allclose(made.covariance[part, part], wider * (expected + square * more), rtol=1e-9)
    both = weights @ (raw[:, 0] * raw[:, 1:].sum(axis=1))
    expected = wider * both * (scale**2).sum(axis=0)
    np.testing.assert_allclose(np.diag(made.covariance[:n, n:]), expected, rtol=1e-9)


def test_with_fixed_weights_a_lone_client_errs_as_its_predicted_model_does(ledger, task):
    """Alone as in company its model is predicted, so the lone process has no say."""
    oracle = FastOracle(task, n_threads=1)
    seen = observe(ledger, oracle, plan_exact(participation(ledger)), weighting="fixed")
    predicted = predict_absent(ledger, task)
    lone = heard_alone(predicted, oracle, seen, "fixed")
    held = hold_outs(predicted, oracle, seen, lone, weighting="fixed")
    made, n = member_errors(predicted, lone, held), len(predicted.heard)
    assert not made.covariance[:n].any()
    assert not made.covariance[:, :n].any()
    assert not made.size_shares[0].any()
    np.testing.assert_allclose(made.size_shares[1], held.by_size / held.by_size.sum())
    weights, raw = held.scale**2 / (held.scale**2).sum(), held.errors * np.sqrt(held.relative)[:, None]
    square = weights @ raw.sum(axis=1) ** 2
    expected = square / (weights @ predicted.process.left_out_variances(held.points))
    scale = np.where(predicted.known, 0.0, lone.scale[:, None])
    lasts = np.outer(scale.sum(axis=0), scale.sum(axis=0)) * predicted.likeness.same_kind
    freedom = max(1 / (weights**2).sum() - 1, 3)
    wider = (stats.t.ppf(0.95, freedom) / stats.norm.ppf(0.95)) ** 2
    summed = predicted.process.summed_covariance(scale)
    more = predicted.agreement(held.points) * square * lasts
    np.testing.assert_allclose(made.covariance[n:, n:], wider * (expected * summed + more), rtol=1e-9)


def test_copies_err_alike(scene):
    predicted, lone, held = scene
    covariance = member_errors(predicted, lone, held).covariance
    for start in (0, 5):
        copy, source = start + 4, start
        assert covariance[copy, source] == pytest.approx(covariance[source, source])
        assert covariance[copy, copy] == pytest.approx(covariance[source, source])
    assert covariance[4, 5] == pytest.approx(covariance[0, 5])


def test_twice_the_errors_are_twice_the_deviation(scene):
    predicted, lone, held = scene
    once = member_errors(predicted, lone, held).covariance
    twice = member_errors(predicted, lone, replace(held, errors=2 * held.errors)).covariance
    np.testing.assert_allclose(twice, 4 * once)


def test_where_utilities_are_drawn_from_the_process_nine_of_ten_intervals_hold_the_sums():
    """z² of 400 independent draws, one client's sum each, is χ²/n: within 4 standard deviations √(2/n) of 1; and the
    share within 1.645 within 4 √(.09/n) of .9."""
    process, heard = lone_process(2)
    rounds, clients = (x.ravel() for x in np.indices(heard.shape))
    prior = dense(process, rounds, clients, (rounds, clients))
    n, rng = 400, np.random.default_rng(0)
    drawn = rng.multivariate_normal(np.zeros(len(prior)), prior, n).reshape(n, *heard.shape)
    near = dense(process, rounds, clients, (process.rounds, process.clients))
    guess = (drawn[:, heard] @ (near @ process.inverse).T).reshape(n, *heard.shape)
    weights = np.where(heard, 0.0, rng.random(heard.shape))
    off = (weights * (drawn - guess)).sum(axis=1)  # (n, n_clients)
    z = (off / np.sqrt(np.diag(process.summed_covariance(weights))))[:, 1]
    assert np.mean(z**2) == pytest.approx(1, abs=4 * np.sqrt(2 / n))
    assert np.mean(np.abs(z) < 1.645) == pytest.approx(0.9, abs=4 * np.sqrt(0.09 / n))


def test_of_many_points_some_decide_the_sums(monkeypatch):
    """From fewer points sums vary more, and left-out points that are none of them are predicted too."""
    process, heard = lone_process(0, n_clients=6, n_rounds=8)
    weights = np.where(heard, 0.0, 1.0)
    whole = process.summed_covariance(weights)
    monkeypatch.setattr("fedworth.completion.models.lone_process.MOST_POINTS", 10)
    monkeypatch.setattr("fedworth.completion.models.lone_process.MOST_NEAR", 10)
    cut, _ = lone_process(0, n_clients=6, n_rounds=8)
    assert (np.diag(cut.summed_covariance(weights)) >= np.diag(whole) - 1e-12).all()
    every = np.arange(len(process.rounds))
    assert (cut.left_out_variances(every[1:3]) >= process.left_out_variances(every[1:3]) - 1e-12).all()
