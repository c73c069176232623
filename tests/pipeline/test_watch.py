"""Watching a federation that still trains: a new round costs its own cells, and the end is what anyone computes."""

import json
import os
import shutil
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from fedworth.completion.completion_file import load_completion
from fedworth.completion.models import complete_by_models
from fedworth.games.planning.plan import plan_exact
from fedworth.pipeline.folder import claim_for
from fedworth.pipeline.stages import ValuingSettings
from fedworth.pipeline.watch import update
from fedworth.valuation.value import value

import fedworth
from fedworth.cli import watch as cli_watch
from fedworth.cli.main import main
from fedworth.coalitions import coalitions_of
from fedworth.completion.factors import complete
from fedworth.errors import ArtefactError
from fedworth.games.observe import observe
from fedworth.ledger.ledger import open_ledger
from fedworth.oracle.oracle import LoopOracle
from fedworth.oracle.weighting import participation
from fedworth.pipeline.report_on import report_on
from fedworth.recording.recorder import LiveRecorder, record_into
from fedworth.simulation.simulate import simulate

EVERYONE = coalitions_of(np.arange(5), 5)


def first_rounds(ledger, folder: Path, n_rounds: int) -> Path:
    """The ledger as it was after some of its rounds."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(ledger.folder, folder, ignore=shutil.ignore_patterns("utilities"))
    lines = (folder / "manifest.jsonl").read_bytes().splitlines(keepends=True)
    (folder / "manifest.jsonl").write_bytes(b"".join(lines[:n_rounds]))
    (folder / "final.safetensors").unlink()
    for t in range(n_rounds, ledger.n_rounds):
        for kind in ("rounds", "apart"):
            (folder / kind / f"{t:06d}.safetensors").unlink(missing_ok=True)
    return folder


@pytest.fixture
def counted(monkeypatch):
    """How many utilities were asked of the oracle."""
    counts: list[int] = []
    measured = LoopOracle.utilities

    def count(self, round_, mixtures):
        counts.append(len(mixtures.of_global))
        return measured(self, round_, mixtures)

    monkeypatch.setattr(LoopOracle, "utilities", count)
    return counts


def test_each_round_costs_its_own_cells_only(tiny_ledger, tiny_task, tmp_path, counted):
    settings, place = ValuingSettings(oracle="loop", completion="factors"), tmp_path / "w"
    claim_for(place, settings, tiny_task)
    kept = tmp_path / "l" / "utilities"
    costs = []
    for n_rounds in (1, 2, 3):
        if kept.exists():
            kept.rename(tmp_path / "kept")
        first_rounds(tiny_ledger, tmp_path / "l", n_rounds)
        if (tmp_path / "kept").exists():
            (tmp_path / "kept").rename(kept)
        counted.clear()
        report = update(open_ledger(tmp_path / "l"), tiny_task, settings, place)
        costs.append(sum(counted))
        assert report.valuation("fedsv") is not None
    assert costs == [2**5 - 1, 3, 3]


def test_each_round_is_completed_when_it_comes_and_all_are_once_more_at_the_end(tiny_ledger, tiny_task, tmp_path):
    settings, place = ValuingSettings(oracle="loop"), _made(tmp_path / "w")
    cells = []
    for n_rounds in (2, 3):
        ledger = open_ledger(first_rounds(tiny_ledger, tmp_path / "l", n_rounds))
        report = update(ledger, tiny_task, settings, place)
        assert any("the federation still trains" in note for note in report.notes)
        cells.append(load_completion(place / "completion.npz").estimates(EVERYONE))
    assert np.array_equal(cells[1][:2], cells[0])
    report = update(tiny_ledger, tiny_task, settings, place)
    assert any("every round was completed once more" in note for note in report.notes)
    last = load_completion(place / "completion.npz").estimates(EVERYONE)
    assert not np.array_equal(last[:2], cells[0])
    update(tiny_ledger, tiny_task, settings, _made(tmp_path / "fresh"))
    names = ("completion.npz", "factors.npz", "report.json")
    assert [(place / n).read_bytes() == (tmp_path / "fresh" / n).read_bytes() for n in names] == [True] * 3


def test_the_end_of_watching_is_what_the_stages_give(tiny_ledger, tiny_task, tmp_path):
    settings = ValuingSettings(oracle="loop")
    for n_rounds in (2, 3):
        ledger = open_ledger(first_rounds(tiny_ledger, tmp_path / "l", n_rounds))
        update(ledger, tiny_task, settings, _made(tmp_path / "w"))
    shutil.rmtree(tmp_path / "l")
    shutil.copytree(tiny_ledger.folder, tmp_path / "l")
    ledger = open_ledger(tmp_path / "l")
    report = update(ledger, tiny_task, settings, tmp_path / "w")
    found = report.valuation("comfedsv")
    matrix = observe(ledger, LoopOracle(tiny_task), plan_exact(participation(ledger)))
    assert found is not None
    completion = complete_by_models(ledger, LoopOracle(tiny_task), matrix)
    assert (found.values == value(matrix, "comfedsv", completion=completion).values).all()
    beside = report.valuation("comfedsv-factors")
    assert beside is not None
    assert (beside.values == value(matrix, "comfedsv").values).all()


def _made(folder: Path) -> Path:
    folder.mkdir(exist_ok=True)
    return folder


def test_a_warm_start_reaches_the_same_optimum(tiny_ledger, tiny_task):
    matrix = observe(tiny_ledger, LoopOracle(tiny_task), plan_exact(participation(tiny_ledger)))
    cold = complete(matrix)
    start = cold.round_factors.copy()
    start[-1] = 0
    warm = complete(matrix, start=start)
    assert warm.status == cold.status
    np.testing.assert_allclose(warm.objective, cold.objective, rtol=1e-9)
    np.testing.assert_allclose(warm.estimates(matrix.coalitions), cold.estimates(matrix.coalitions), atol=1e-7)


def test_a_folder_of_another_task_or_settings_is_refused(tiny_task, tmp_path):
    claim_for(tmp_path / "w", ValuingSettings(), tiny_task)
    claim_for(tmp_path / "w", ValuingSettings(), tiny_task)
    with pytest.raises(ArtefactError, match="another task or other settings"):
        claim_for(tmp_path / "w", ValuingSettings(measure="accuracy"), tiny_task)
    with pytest.raises(ArtefactError, match="another task or other settings"):
        claim_for(tmp_path / "w", ValuingSettings(), replace(tiny_task, labels=(tiny_task.labels + 1) % 10))


def test_a_report_by_other_settings_into_the_same_folder_is_refused(tiny_ledger, tiny_task, tmp_path):
    first = report_on(tiny_ledger, tiny_task, ValuingSettings(), tmp_path / "r")
    for other in (ValuingSettings(measure="accuracy"), ValuingSettings(weighting="fixed"), ValuingSettings(seed=1)):
        with pytest.raises(ArtefactError, match="another task or other settings"):
            report_on(tiny_ledger, tiny_task, other, tmp_path / "r")
    assert report_on(tiny_ledger, tiny_task, ValuingSettings(), tmp_path / "r") == first


def test_numbers_of_unknown_settings_are_not_taken_for_ours(tiny_ledger, tiny_task, tmp_path):
    report_on(tiny_ledger, tiny_task, ValuingSettings(), tmp_path / "r")
    (tmp_path / "r" / "valuing.json").unlink()
    with pytest.raises(ArtefactError, match="another task or other settings"):
        report_on(tiny_ledger, tiny_task, ValuingSettings(), tmp_path / "r")


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
    out = ["--out", str(tmp_path / "w"), "--once"]
    assert main(["watch", str(tiny_ledger.folder), *out, "--permutations", "20", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["clients"] == ["0", "1", "2", "3", "4"]
    assert main(["watch", str(tiny_ledger.folder), *out]) == 12
    assert main(["watch", str(tmp_path / "nowhere"), "--once"]) == 4
    assert main(["watch", str(tiny_ledger.folder), "--rank", "auto"]) == 2


def test_what_cannot_be_valued_yet_is_said_and_watching_goes_on(tiny_settings, tiny_task, tmp_path):
    settings = replace(tiny_settings, everyone_heard=False, with_truth=False)
    ledger = simulate(settings, tmp_path / "l")
    report = update(ledger, tiny_task, ValuingSettings(), _made(tmp_path / "w"))
    assert report.valuation("fedsv") is not None
    assert [method for method, _ in report.refusals] == ["comfedsv-factors", "heard-round"]


def test_verify_says_what_is_there_and_names_the_first_bad_round(tiny_ledger, tmp_path, capsys):
    assert main(["verify", str(tiny_ledger.folder)]) == 0
    assert "3 rounds of 5 clients, closed; every byte as written" in capsys.readouterr().out
    assert main(["verify", str(tiny_ledger.folder), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["head"] == tiny_ledger.chain
    folder = shutil.copytree(tiny_ledger.folder, tmp_path / "bad")
    path = folder / "rounds" / "000001.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    assert main(["verify", str(folder)]) == 4
    assert "round 1" in capsys.readouterr().err


RECORDER = """
import os, sys, torch
from fedworth.recording.recorder import record_into
recorder = record_into(sys.argv[1])
model = {"w": torch.zeros(3)}
recorder.start_round(model, asked=["a"])
recorder.client_model("a", model, 1)
recorder.end_round()
os.kill(os.getpid(), 9)
"""


class Enough(Exception):
    """Watched for long enough."""


def test_the_command_says_that_the_recorder_was_killed_and_that_another_goes_on(tmp_path, monkeypatch, capsys):
    environment = {**os.environ, "PYTHONPATH": str(Path(fedworth.__file__).parents[1])}
    subprocess.run([sys.executable, "-c", RECORDER, str(tmp_path / "l")], check=False, env=environment)
    kept: list[LiveRecorder] = []

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

    told: list[str] = []
    monkeypatch.setattr(time, "sleep", while_waiting)
    looks = cli_watch._growing(tmp_path / "l", 1.0, once=False)
    assert next(looks).n_rounds == 1
    with pytest.raises(Enough):
        next(looks)
    assert "not closed, and nobody is writing it: its recorder, process " in told[0]
    assert "has ended; no round will come until one goes on with it" in told[0]
    later = capsys.readouterr().err
    assert "a recorder writes it again" in later
    assert "its recorder has let go of it" in later
