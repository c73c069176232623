"""All stages in one go: same settings, same bytes, also when killed anywhere and resumed."""

import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from fedworth.errors import ArtefactError
from fedworth.ledger.lock import LOCK
from fedworth.pipeline.run import RunSettings, run
from fedworth.simulation.settings import SimulationSettings
from fedworth.valuation.settings import ValuationSettings

SMALL = SimulationSettings(n_clients=4, copies=((3, 0),), n_participants=2, n_rounds=3, train_limit=100, test_limit=40)
SETTINGS = RunSettings(simulation=SMALL)

CHILD = """
import os, signal, sys
from pathlib import Path
from fedworth.pipeline.run import run
from tests.pipeline.test_run import SETTINGS
left, plain = int(sys.argv[2]), os.fsync
def fsync(descriptor):
    global left
    left -= 1
    if left == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    plain(descriptor)
os.fsync = fsync
run(SETTINGS, Path(sys.argv[1]), resume=True)
"""


class Killed(BaseException):
    """Stands for a kill: nothing catches it."""


def content(folder: Path) -> dict[str, bytes]:
    """All files but the lock of who is recording."""
    files = [path for path in sorted(folder.rglob("*")) if path.is_file() and path.name != LOCK]
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    folder = tmp_path_factory.mktemp("whole") / "run"
    run(SETTINGS, folder)
    return content(folder)


def test_two_runs_give_equal_bytes(whole, tmp_path):
    run(SETTINGS, tmp_path / "again")
    assert content(tmp_path / "again") == whole


def test_a_simulation_is_valued_as_its_server_averaged(tmp_path):
    unequal = replace(SMALL, partition="quantity", aggregation="samples")
    made, said, other = (
        run(
            RunSettings(simulation=unequal, valuation=ValuationSettings(weighting=weighting)), tmp_path / str(weighting)
        )
        for weighting in (None, "samples", "uniform")
    )
    assert made.chosen == said.chosen != other.chosen


def test_another_seed_gives_other_values(whole, tmp_path):
    run(replace(SETTINGS, simulation=replace(SMALL, seed=1)), tmp_path / "other")
    assert content(tmp_path / "other")["report.csv"] != whole["report.csv"]


def n_flushes(monkeypatch: pytest.MonkeyPatch, folder: Path) -> int:
    """How often a whole run flushes to disk: the instants at which it can be killed."""
    count = 0
    plain = os.fsync

    def counting(descriptor: int) -> None:
        nonlocal count
        count += 1
        plain(descriptor)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", counting)
        run(SETTINGS, folder)
    return count


def test_killed_at_any_flush_and_resumed_gives_equal_bytes(whole, tmp_path, monkeypatch):
    for instant in range(2, n_flushes(monkeypatch, tmp_path / "counted") + 1, 5):
        folder, left, plain = tmp_path / str(instant), instant, os.fsync

        def killing(descriptor: int, plain=plain) -> None:
            nonlocal left
            left -= 1
            if left == 0:
                raise Killed
            plain(descriptor)

        monkeypatch.setenv("FEDWORTH_CACHE", str(tmp_path / f"cache-{instant}"))
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", killing)
            with pytest.raises(Killed):
                run(SETTINGS, folder, resume=True)
        run(SETTINGS, folder, resume=True)
        found = {name: data for name, data in content(folder).items() if not name.endswith(".partial")}
        assert found == whole, f"killed at flush {instant}"


def test_a_process_killed_for_real_leaves_a_run_that_resumes_to_equal_bytes(whole, tmp_path):
    folder = tmp_path / "killed"
    done = subprocess.run([sys.executable, "-c", CHILD, str(folder), "17"], check=False, timeout=120)
    assert done.returncode == -signal.SIGKILL
    run(SETTINGS, folder, resume=True)
    found = {name: data for name, data in content(folder).items() if not name.endswith(".partial")}
    assert found == whole


def test_a_finished_run_resumes_without_touching_its_artefacts(tmp_path):
    folder = tmp_path / "run"
    run(SETTINGS, folder)
    before = {
        path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file() and "report" not in path.name
    }
    run(SETTINGS, folder, resume=True)
    assert {path: path.stat().st_mtime_ns for path in before} == before


def test_a_folder_of_something_else_is_refused(tmp_path):
    (tmp_path / "precious.txt").write_text("mine")
    with pytest.raises(ArtefactError, match="exists already"):
        run(SETTINGS, tmp_path)
    with pytest.raises(ArtefactError, match="not a run"):
        run(SETTINGS, tmp_path, resume=True)
    assert (tmp_path / "precious.txt").read_text() == "mine"


def test_copies_are_valued_alike_by_the_truth_and_the_all_clients_round(tmp_path):
    report = run(SETTINGS, tmp_path / "run")
    for method in ("truth", "all-clients-round"):
        valuation = report.valuation(method)
        assert valuation is not None
        assert valuation.values[0] == pytest.approx(valuation.values[3], abs=1e-12)


def test_permutations_give_the_papers_values_standard_errors(tmp_path):
    report = run(RunSettings(SMALL, ValuationSettings(permutations=6)), tmp_path / "run")
    assert not report.refusals
    valuation = report.valuation("comfedsv")
    assert valuation is not None
    assert valuation.standard_errors is not None
