"""Which numbers the update process takes: those that predict left-out answers best, where there are enough to tell."""

from dataclasses import replace

import pytest

from fedworth.completion.models import predict_absent, predicted
from fedworth.completion.models.update_process import DRAWING, STEADY
from fedworth.federation.simulation.settings import SimulationSettings
from fedworth.federation.simulation.simulate import simulate, task_of

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


def test_few_answers_choose_nothing(steady):
    assert predict_absent(steady, task_of(steady)).process.numbers == DRAWING


def test_clients_that_take_all_samples_are_steady(steady, monkeypatch):
    monkeypatch.setattr(predicted, "FEWEST_CHOOSING", 2)
    assert predict_absent(steady, task_of(steady)).process.numbers == STEADY


def test_clients_that_draw_few_samples_are_not(noisy, monkeypatch):
    monkeypatch.setattr(predicted, "FEWEST_CHOOSING", 2)
    assert predict_absent(noisy, task_of(noisy)).process.numbers == DRAWING
