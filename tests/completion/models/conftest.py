"""A small federation in which a client and its copy take part together, and each without the other."""

from dataclasses import replace

import pytest

from fedworth.ledger.ledger import Ledger
from fedworth.simulation.settings import SimulationSettings
from fedworth.simulation.simulate import simulate, task_of
from fedworth.task.task import Task


@pytest.fixture(scope="session")
def settings(tiny_settings: SimulationSettings) -> SimulationSettings:
    """Five clients, 4 a copy of 0; everyone in the first round, then {0, 3}, {1, 4}, {0, 4}."""
    return replace(tiny_settings, seed=0, n_rounds=4)


@pytest.fixture
def ledger(settings: SimulationSettings, tmp_path_factory: pytest.TempPathFactory) -> Ledger:
    """The federation, with its truth, in a folder of the test's own."""
    return simulate(settings, tmp_path_factory.mktemp("copies") / "ledger")


@pytest.fixture
def task(ledger: Ledger) -> Task:
    """The server's test set and module."""
    return task_of(ledger)
