"""What all tests share: reproducible property tests, one torch thread, and one small federation."""

import shutil
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import settings

from fedworth.ledger.ledger import Ledger
from fedworth.simulation.settings import SimulationSettings
from fedworth.simulation.simulate import simulate, task_of
from fedworth.task.task import Task

GOLDEN = Path(__file__).parent / "golden"

settings.register_profile("fedworth", derandomize=True, deadline=None, database=None)
settings.load_profile("fedworth")
torch.set_num_threads(1)


@pytest.fixture(scope="session", autouse=True)
def no_cache_of_the_user(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """No test reads or writes the user's own cache."""
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("cache")
        patch.setenv("FEDWORTH_CACHE", str(folder / "shared"))
        yield folder


@pytest.fixture(autouse=True)
def cache(no_cache_of_the_user: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where this test keeps utilities, which is empty at first."""
    folder = no_cache_of_the_user / uuid.uuid4().hex
    monkeypatch.setenv("FEDWORTH_CACHE", str(folder))
    return folder


@pytest.fixture(scope="session")
def tiny_settings() -> SimulationSettings:
    """Five clients of scanned digits, the last a copy of the first; three rounds, two of five participating."""
    return SimulationSettings(
        n_clients=5,
        copies=((4, 0),),
        n_participants=2,
        n_rounds=3,
        train_limit=150,
        test_limit=60,
        model="mlp",
        hidden=(8,),
        n_steps=1,
        rate=0.1,
        seed=3,
    )


@pytest.fixture(scope="session")
def simulated_once(tiny_settings: SimulationSettings, tmp_path_factory: pytest.TempPathFactory) -> Ledger:
    """The small federation, simulated with its truth: what tests get copies of."""
    return simulate(tiny_settings, tmp_path_factory.mktemp("tiny") / "ledger")


@pytest.fixture
def tiny_ledger(simulated_once: Ledger, tmp_path_factory: pytest.TempPathFactory) -> Ledger:
    """The small federation in a folder of the test's own."""
    return Ledger.open(shutil.copytree(simulated_once.folder, tmp_path_factory.mktemp("tiny") / "ledger"))


@pytest.fixture(scope="session")
def tiny_task(simulated_once: Ledger) -> Task:
    """The task of the small federation."""
    return task_of(simulated_once)


@pytest.fixture(scope="session")
def golden() -> Callable[[str], dict[str, np.ndarray]]:
    """Reads the arrays of a golden file by its name."""

    def read(name: str) -> dict[str, np.ndarray]:
        with np.load(GOLDEN / f"{name}.npz", allow_pickle=False) as file:
            return {key: file[key] for key in file.files}

    return read


@pytest.fixture(scope="session")
def bytes_of() -> Callable[[Path], dict[str, bytes]]:
    """Reads every file under a folder, by its path in it."""

    def read(folder: Path) -> dict[str, bytes]:
        files = sorted(path for path in folder.rglob("*") if path.is_file())
        return {str(path.relative_to(folder)): path.read_bytes() for path in files}

    return read
