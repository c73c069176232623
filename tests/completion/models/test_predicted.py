"""Which numbers the update process takes: those that predict left-out answers best, where there are enough to tell."""

from dataclasses import replace

import numpy as np
import pytest

from fedworth.completion.models import complete_by_models, predict_absent, predicted
from fedworth.completion.models.update_process import DRAWING, STEADY, Numbers
from fedworth.games.observe import observe
from fedworth.ledger.ledger import Ledger
from fedworth.oracle.fast import FastOracle
from fedworth.simulation.settings import SimulationSettings
from fedworth.simulation.simulate import simulate, task_of

SMALL = SimulationSettings(
    n_clients=8, n_rounds=20, n_steps=1, rate=0.5, train_limit=300, test_limit=60, with_truth=False
)


@pytest.fixture
def noisy(tmp_path):
    """Every client draws two samples a round."""
    return simulate(replace(SMALL, batch_size=2), tmp_path / "ledger")


@pytest.fixture
def steady(tmp_path):
    """Every client takes one step on all of its samples."""
    return simulate(SMALL, tmp_path / "ledger")


def numbers_of(ledger: Ledger) -> Numbers:
    return predict_absent(ledger, task_of(ledger)).process.numbers


def test_few_answers_choose_nothing(steady):
    assert numbers_of(steady) == DRAWING


def test_clients_that_take_all_samples_are_steady(steady, monkeypatch):
    monkeypatch.setattr(predicted, "FEWEST_CHOOSING", 2)
    assert numbers_of(steady) == STEADY


def test_clients_that_draw_few_samples_are_not(noisy, monkeypatch):
    monkeypatch.setattr(predicted, "FEWEST_CHOOSING", 2)
    assert numbers_of(noisy) == DRAWING


def test_errors_of_steady_clients_are_taken_to_last(steady, monkeypatch):
    monkeypatch.setattr(predicted, "FEWEST_CHOOSING", 2)
    found = {}
    for lasting in (1.0, 2.0):
        monkeypatch.setattr(predicted, "STEADY", replace(STEADY, lasting=lasting))
        oracle = FastOracle(task_of(steady))
        found[lasting] = complete_by_models(steady, oracle, observe(steady, oracle)).member_covariance
    np.testing.assert_allclose(found[2.0], 4 * found[1.0], rtol=1e-9)
