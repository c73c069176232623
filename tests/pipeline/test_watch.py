"""Watching a federation that still trains: a new round costs its own coalitions, and the end is what a report says."""

import json
import os
import shutil
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import fedworth
from fedworth.cli.main import main
from fedworth.errors import ArtefactError
from fedworth.ledger import model_file
from fedworth.ledger.ledger import Ledger
from fedworth.oracle.oracle import LoopOracle
from fedworth.pipeline.report_on import report_on
from fedworth.pipeline.run import live_values, update
from fedworth.recording.recorder import LiveRecorder, record_into
from fedworth.simulation.simulate import simulate
from fedworth.task.rules import WeightedMean
from fedworth.valuation.settings import ValuationSettings
from tests.support.servers import federation


def first_rounds(ledger, folder: Path, n_rounds: int) -> Path:
    """The ledger as it was after some of its rounds."""
    shutil.copytree(ledger.folder, folder, dirs_exist_ok=True)
    lines = (folder / "manifest.jsonl").read_bytes().splitlines(keepends=True)
    (folder / "manifest.jsonl").write_bytes(b"".join(lines[:n_rounds]))
    (folder / "final.safetensors").unlink()
    for t in range(n_rounds, ledger.n_rounds):
        for kind in ("rounds", "apart"):
            (folder / kind / f"{t:06d}.safetensors").unlink(missing_ok=True)
    return folder


def own_loss(outputs, labels):
    """A loss of one's own, for which nothing is kept between processes."""
    return torch.nn.functional.cross_entropy(outputs, labels, reduction="none")


@pytest.mark.parametrize("is_own", [False, True])
def test_a_new_round_is_read_and_measured_alone(tiny_ledger, tiny_task, tmp_path, monkeypatch, is_own):
    """The price of watching is in proportion to the rounds, not to their square."""
    counts, hashed = list[int](), list[str]()
    plain, hashing = LoopOracle.utilities, model_file.file_sha256

    def counted(self, round_, mixtures):
        counts.append(len(mixtures))
        return plain(self, round_, mixtures)

    def noted(path):
        hashed.append(path.name.partition(".")[0])
        return hashing(path)

    monkeypatch.setattr(LoopOracle, "utilities", counted)
    monkeypatch.setattr(model_file, "file_sha256", noted)
    task = replace(tiny_task, loss=own_loss) if is_own else tiny_task
    costs = []
    for n_rounds in (1, 2, 3):
        counts.clear()
        first_rounds(tiny_ledger, tmp_path / "l", n_rounds)
        live_values(tmp_path / "l", task, settings=ValuationSettings(oracle="loop"))
        costs.append(sum(counts))
    assert costs == [2**5 - 1, 3, 3]
    assert hashed == ["000000", "000001", "000002"]


def test_another_task_is_never_answered_from_what_was_remembered(tiny_ledger, tiny_task):
    first = live_values(tiny_ledger.folder, replace(tiny_task, loss=own_loss))
    other = live_values(tiny_ledger.folder, replace(tiny_task, loss=lambda *both: 3 * own_loss(*both)))
    assert other == pytest.approx({client: 3 * value for client, value in first.items()}, rel=1e-4)


def test_watching_writes_what_a_report_says(tiny_ledger, tiny_task, tmp_path):
    for n_rounds in (1, 2, 3):
        ledger = Ledger.open(first_rounds(tiny_ledger, tmp_path / "l", n_rounds))
        watched = update(ledger, tiny_task, ValuationSettings(), tmp_path / "w")
        assert any("still training" in note for note in watched.notes)
        plain = report_on(ledger, tiny_task, title=watched.title)
        assert watched.document() == plain.document()
        assert json.loads((tmp_path / "w" / "report.json").read_text())["title"] == watched.title
    closed = update(tiny_ledger, tiny_task, ValuationSettings(), tmp_path / "w")
    assert not any("still training" in note for note in closed.notes)


def test_a_folder_of_another_task_or_other_settings_is_refused(tiny_ledger, tiny_task, tmp_path):
    update(tiny_ledger, tiny_task, ValuationSettings(), tmp_path / "w")
    update(tiny_ledger, tiny_task, ValuationSettings(), tmp_path / "w")
    other = replace(tiny_task, labels=(tiny_task.labels + 1) % 10)
    by_accuracy = (
        tiny_task,
        ValuationSettings(measure="accuracy"),
        r"other settings \(measure loss instead of accuracy\)",
    )
    for task, settings, why in (by_accuracy, (other, ValuationSettings(), "another task")):
        with pytest.raises(ArtefactError, match=why):
            update(tiny_ledger, task, settings, tmp_path / "w")


@pytest.mark.parametrize("is_closed", [False, True])
@pytest.mark.parametrize("method", ["fedsv", "comfedsv-models", "comfedsv"])
def test_values_for_a_server_are_those_of_a_report(tmp_path, is_closed, method):
    rng = torch.Generator().manual_seed(1)
    inputs, labels = torch.randn(20, 3, generator=rng), torch.randint(0, 4, (20,), generator=rng)
    task = fedworth.Task(torch.nn.Linear(3, 4), inputs, labels)
    ledger = federation(tmp_path / "l", WeightedMean(), is_closed=is_closed)
    reported = report_on(ledger, task, methods=[method]).valuations[0]
    expected = dict(zip(reported.clients, reported.values.tolist(), strict=True))
    assert live_values(tmp_path / "l", task, method=method) == pytest.approx(expected, abs=1e-7)
    left = ValuationSettings(without=(ledger.clients[0],))
    assert set(live_values(tmp_path / "l", task, method=method, settings=left)) == set(ledger.clients[1:])


def test_the_command_follows_a_ledger_that_grows_until_it_is_closed(
    tiny_ledger, tiny_settings, tmp_path, monkeypatch, capsys
):
    rounds = iter([1, 2, 3])

    def while_waiting(_seconds: float) -> None:
        """What happens between two looks: nothing yet, then a round more each time, then the end."""
        n_rounds = next(rounds, None)
        if n_rounds is not None:
            first_rounds(tiny_ledger, tmp_path / "l", n_rounds)
        else:
            simulate(tiny_settings, tmp_path / "l", resume=True)

    monkeypatch.setattr(time, "sleep", while_waiting)
    assert main(["watch", str(tmp_path / "l")]) == 0
    shown = capsys.readouterr().out
    assert [f"after {n} rounds" in shown for n in (1, 2, 3)] == [True, True, True]
    assert "after 3 rounds, closed" in shown
    assert (tmp_path / "l.watch" / "report.json").is_file()


def test_the_command_values_what_is_there_once(tiny_ledger, tmp_path, capsys):
    words = ["watch", str(tiny_ledger.folder), "--out", str(tmp_path / "w"), "--once"]
    assert main([*words, "--permutations", "20", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["clients"] == ["0", "1", "2", "3", "4"]
    assert main(words) == 12
    assert main(["watch", str(tmp_path / "nowhere"), "--once"]) == 4


def test_what_cannot_be_valued_yet_is_said_and_watching_goes_on(tiny_settings, tiny_task, tmp_path):
    ledger = simulate(replace(tiny_settings, everyone_heard=False, with_truth=False), tmp_path / "l")
    report = update(ledger, tiny_task, ValuationSettings(), tmp_path / "w")
    assert report.valuation("fedsv") is not None
    assert [method for method, _ in report.refusals] == ["comfedsv", "all-clients-round"]


RECORDER = """
import os, sys, torch
from fedworth.recording.recorder import record_into
recorder = record_into(sys.argv[1])
model = {"weight": torch.zeros(2, 3), "bias": torch.zeros(2)}
recorder.start_round(model, asked=["a"])
recorder.client_model("a", model, 1)
recorder.end_round()
os.kill(os.getpid(), 9)
"""
TASK = """
import torch
from fedworth import Task
task = Task(torch.nn.Linear(3, 2), torch.eye(3), torch.tensor([0, 1, 0]))
"""


class Enough(Exception):
    """Watched for long enough."""


def test_the_command_says_that_the_recorder_was_killed_and_that_another_goes_on(tmp_path, monkeypatch, capsys):
    environment = {**os.environ, "PYTHONPATH": str(Path(fedworth.__file__).parents[1])}
    subprocess.run([sys.executable, "-c", RECORDER, str(tmp_path / "l")], check=False, env=environment)
    (tmp_path / "mytask.py").write_text(TASK)
    kept: list[LiveRecorder] = []
    told: list[str] = []

    def while_waiting(_seconds: float) -> None:
        """First nobody, then a recorder that goes on, then one that has let go."""
        if len(kept) == 2:
            raise Enough
        if kept:
            kept.append(kept[0])
            kept[0].release()
        elif "nobody" in (said := capsys.readouterr().err):
            told.append(said)
            kept.append(record_into(tmp_path / "l", resume=True))

    monkeypatch.setattr(time, "sleep", while_waiting)
    with pytest.raises(Enough):
        main(["watch", str(tmp_path / "l"), "--task", f"{tmp_path / 'mytask.py'}:task"])
    assert "not closed, and nobody is writing it: its recorder, process " in told[0]
    assert "no round comes until a recorder resumes it" in told[0]
    later = capsys.readouterr().err
    assert "a recorder writes it again" in later
    assert "its recorder has released it" in later
