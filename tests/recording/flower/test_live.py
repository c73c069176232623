"""The example apps for real: Flower's simulation, and processes of its own on loopback, one killed during a round."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
from handwriting.task import task

from fedworth.cli.main import main
from fedworth.ledger.ledger import Ledger
from fedworth.valuation.federation import Federation
from fedworth.valuation.settings import ValuationSettings, WorkSettings

TOOL = Path(__file__).parents[3] / "tools" / "flower_live.py"


def run(how: str, ledger: Path) -> list[dict[str, object]]:
    command = [sys.executable, str(TOOL), how, "--ledger", str(ledger)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1500, check=False)
    assert done.returncode == 0, done.stderr
    rounds: list[dict[str, object]] = json.loads(done.stdout)["rounds"]
    return rounds


def values_of(folder: Path) -> list[float]:
    settings = ValuationSettings(oracle="loop", weighting="samples")
    federation = Federation(Ledger.open(folder), task(), settings, work=WorkSettings(cache=False))
    values: list[float] = federation.value("comfedsv").values.tolist()
    return values


def test_flower_run_leaves_a_ledger_that_can_be_valued(tmp_path):
    rounds = run("simulation", tmp_path / "l")
    assert [round_["asked"] for round_ in rounds] == [3, 2, 2, 2]
    assert all(value == value for value in values_of(tmp_path / "l"))


def test_a_client_killed_during_a_round_and_restarted_is_the_same_client(tmp_path):
    rounds = run("loopback", tmp_path / "l")
    everyone = {f"partition-{k}" for k in range(3)}
    assert set(rounds[0]["answered"]) == everyone  # type: ignore[call-overload]
    assert "partition-1" not in rounds[1]["answered"]  # type: ignore[operator]
    assert set(Ledger.open(tmp_path / "l").clients) == everyone
    assert all(value == value for value in values_of(tmp_path / "l"))


def test_a_vertical_app_of_processes_is_recorded_while_a_client_is_killed(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDWORTH_CACHE", str(tmp_path / "cache"))
    rounds = run("vertical", tmp_path / "l")
    everyone = {f"partition-{k}" for k in range(3)}
    assert [round_["number"] for round_ in rounds] == [1, 2, 3, 4]  # messages that bring gradients are no rounds
    assert set(rounds[0]["answered"]) == everyone  # type: ignore[call-overload]
    away = [t for t, round_ in enumerate(rounds) if "partition-1" not in round_["answered"]]  # type: ignore[operator]
    assert away
    task_file = TOOL.parents[1] / "examples" / "flower_vertical" / "strips" / "task.py"
    assert main(["report", str(tmp_path / "l"), "--task", f"{task_file}:task", "--out", str(tmp_path / "r")]) == 0
    found = json.loads((tmp_path / "r" / "report.json").read_text())["valuations"][1]
    assert found["method"] == "verfedsv"
    by_round = np.array(found["by_round"])
    assert not by_round[0].any()  # where clients start
    assert not by_round[away, 1].any()  # a client that is away adds nothing
    assert sum(found["values"]) > 0
