"""The cut process: with room for all points it is the whole one; without, each prediction rests on the right ones."""

import numpy as np
import pytest

from fedworth.completion.models import complete_by_models, cut_process, lone_process, predicted
from fedworth.completion.models.cut_process import CutProcess
from fedworth.completion.models.update_process import Likeness, update_process
from fedworth.games.observe import observe
from fedworth.oracle.fast import FastOracle
from fedworth.simulation.simulate import task_of


@pytest.fixture(scope="module")
def whole():
    rng = np.random.default_rng(0)
    rounds, clients = np.nonzero(np.concatenate([np.ones((1, 6)), rng.random((7, 6)) < 0.4]))
    places, times = rng.normal(size=(6, 2)), rng.normal(size=(8, 2))
    apart = [((x[:, None] - x) ** 2).sum(axis=2) for x in (places, times)]
    return update_process(Likeness(np.exp(-apart[0]), np.exp(-apart[1])), rounds, clients)[0]


def test_with_room_for_all_points_it_is_the_whole_process(whole):
    cut, everyone = CutProcess(whole), np.arange(6)
    for t in range(8):
        for found, expected in zip(cut.coefficients(everyone, t), whole.coefficients(everyone, t), strict=True):
            np.testing.assert_allclose(found, expected, atol=1e-9)
    points = np.arange(len(whole.rounds))
    np.testing.assert_allclose(cut.left_out_variances(points), whole.left_out_variances(points), rtol=1e-9)
    np.testing.assert_allclose(cut.left_out(3), whole.left_out(3), atol=1e-9)
    weights = np.random.default_rng(1).random((8, 6))
    np.testing.assert_allclose(cut.summed_covariance(weights), whole.summed_covariance(weights), atol=1e-9)


def test_a_cut_prediction_is_that_of_the_round_the_fullest_round_and_the_clients_own_answers(whole, monkeypatch):
    monkeypatch.setattr(cut_process, "MOST_SHARED", 1)
    client, t = 2, 4
    used = np.flatnonzero(np.isin(whole.rounds, [0, t]) | (whole.clients == client))
    part = type(whole)(whole.likeness, whole.rounds[used], whole.clients[used])
    expected, variance = part.coefficients(np.array([client]), t)
    cut = CutProcess(whole)
    found, varied = cut.coefficients(np.array([client]), t)
    np.testing.assert_allclose(found[0, used], expected[0], atol=1e-9)
    assert np.count_nonzero(found) <= len(used)
    assert varied == pytest.approx(variance)
    assert cut.coefficients(np.array([client]), t)[1] == pytest.approx(variance)


def test_a_completion_of_too_many_answers_is_cut_and_stays_near(ledger, monkeypatch):
    oracle = FastOracle(task_of(ledger), n_threads=1)
    seen = observe(ledger, oracle)
    before = complete_by_models(ledger, oracle, seen)
    for module, names in ((predicted, ["MOST_POINTS"]), (lone_process, ["MOST_POINTS", "MOST_NEAR"])):
        for name in names:
            monkeypatch.setattr(module, name, 6)
    monkeypatch.setattr(cut_process, "MOST_SHARED", 8)
    after = complete_by_models(ledger, oracle, seen)
    assert not np.array_equal(after.cells, before.cells)
    assert np.abs(after.cells - before.cells).mean() < 0.3 * np.abs(before.cells).mean()
