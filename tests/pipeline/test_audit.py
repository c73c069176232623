"""The trail from a ledger to a report: it holds for an honest run, and breaks at the step that was tampered with."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest

from fedworth.cli.main import main
from fedworth.completion.completion_file import load_completion
from fedworth.errors import ArtefactError, ValuationError
from fedworth.games.matrix_file import load_utilities, save_utilities
from fedworth.ledger.ledger import open_ledger
from fedworth.pipeline.audit import audit
from fedworth.pipeline.retold import difference
from fedworth.pipeline.run import RunSettings, run
from fedworth.report.files import read_report
from fedworth.report.report import report_from
from fedworth.simulation.settings import SimulationSettings
from fedworth.simulation.simulate import simulate, task_of
from fedworth.storage import read_json
from fedworth.trail import SOFTWARE, Trail, fingerprint
from fedworth.valuation.value import value
from tests.support.keys import write_keys

SMALL = SimulationSettings(n_clients=4, copies=(), n_participants=2, n_rounds=3, train_limit=120)


FINDING = {
    "kind": "no update",
    "clients": ["0"],
    "rounds": [0],
    "n_rounds": 3,
    "evidence": {},
    "sentence": "",
    "sure": 1.0,
    "rests_on": "",
}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trail") / "run"
    run(RunSettings(simulation=SMALL), folder)
    return folder


@pytest.fixture
def folder(made, tmp_path):
    shutil.copytree(made, tmp_path / "run")
    return tmp_path / "run"


def steps_of(folder, **changes):
    options = {"ledger": folder / "ledger", "folder": folder, **changes}
    return {step.name: step for step in audit(read_json(folder / "report.json"), **options)}


def test_every_artefact_carries_the_ledgers_head_the_task_and_the_software(made):
    utilities, completion = load_utilities(made / "utilities.npz"), load_completion(made / "completion.npz")
    report = read_report(made / "report.json")
    ledger = open_ledger(made / "ledger")
    trail = Trail(ledger.chain, 3, task_of(ledger).fingerprint, SOFTWARE)
    assert utilities.trail == trail == report.trail
    assert completion.trail == replace(trail, utilities=fingerprint(utilities))
    assert report.valuations[0].trail == replace(
        trail, utilities=fingerprint(utilities), completion=fingerprint(completion)
    )
    assert f"Ledger {trail.head} (3 rounds), task {trail.task}" in (made / "report.md").read_text()


def test_the_trail_of_an_honest_run_holds_at_every_step(folder):
    steps = steps_of(folder)
    assert list(steps)[:4] == ["ledger", "task", "utilities", "completion"]
    assert {"comfedsv", "fedsv", "truth"} <= set(steps)
    assert all(step.is_checked for step in steps.values())


def test_a_ledger_of_other_rounds_breaks_the_trail(folder, tmp_path):
    simulate(SimulationSettings(n_clients=4, copies=(), n_rounds=3, train_limit=120, seed=1), tmp_path / "other")
    with pytest.raises(ArtefactError, match=r"the trail breaks at the ledger: .*never had the head"):
        steps_of(folder, ledger=tmp_path / "other")


def test_another_test_set_breaks_the_trail(folder, tmp_path):
    (tmp_path / "mine.py").write_text(
        "import torch\nfrom fedworth.task.task import Task\n"
        "task = Task(torch.nn.Linear(64, 10), torch.zeros(5, 64), torch.zeros(5, dtype=torch.int64))\n"
    )
    with pytest.raises(ArtefactError, match="the trail breaks at the task"):
        steps_of(folder, task=f"{tmp_path / 'mine.py'}:task")


def test_other_utilities_break_the_trail(folder):
    with np.load(folder / "utilities.npz") as file:
        arrays = dict(file)
    arrays["utilities"] = arrays["utilities"] * 2
    np.savez(folder / "utilities.npz", allow_pickle=False, **arrays)
    with pytest.raises(ArtefactError, match=r"the trail breaks at the utilities: .*comfedsv"):
        steps_of(folder)


def test_another_completion_breaks_the_trail(folder):
    with np.load(folder / "completion.npz") as file:
        arrays = dict(file)
    arrays["cells"] = arrays["cells"] * 2
    np.savez(folder / "completion.npz", allow_pickle=False, **arrays)
    with pytest.raises(ArtefactError, match="the trail breaks at the completion"):
        steps_of(folder)


def test_an_edited_value_breaks_the_trail_and_names_the_client(folder):
    document = json.loads((folder / "report.json").read_text())
    document["valuations"][1]["values"][2] += 1e-6
    (folder / "report.json").write_text(json.dumps(document))
    with pytest.raises(ArtefactError, match="the trail breaks at the comfedsv-factors: client '2' has"):
        steps_of(folder)


def test_what_is_not_at_hand_is_said_to_be_unchecked(folder):
    for name in ("utilities.npz", "truth.npz", "completion.npz", "factors.npz"):
        (folder / name).unlink()
    steps = steps_of(folder)
    assert steps["ledger"].is_checked
    assert not any(steps[name].is_checked for name in ("utilities", "completion", "comfedsv", "fedsv"))


def test_a_report_without_a_trail_loads_and_says_so(folder):
    document = json.loads((folder / "report.json").read_text())
    for valuation in document["valuations"]:
        del valuation["trail"]
    del document["trail"]
    assert report_from(document).trail is None
    (folder / "report.json").write_text(json.dumps(document))
    with pytest.raises(ArtefactError, match="has no trail"):
        steps_of(folder)


def test_brought_utilities_have_no_trail_and_are_valued_as_before(made, tmp_path):
    with np.load(made / "utilities.npz") as file:
        np.savez(tmp_path / "old.npz", allow_pickle=False, **{k: v for k, v in file.items() if k != "trail"})
    old = load_utilities(tmp_path / "old.npz")
    assert old.trail is None
    assert value(old, "fedsv").trail is None
    assert (value(old, "fedsv").values == value(load_utilities(made / "utilities.npz"), "fedsv").values).all()


def test_a_completion_of_other_utilities_is_refused(made, tmp_path):
    completion = load_completion(made / "completion.npz")
    run(RunSettings(simulation=SimulationSettings(**{**SMALL.document(), "copies": (), "seed": 1})), tmp_path / "other")
    with pytest.raises(ValuationError, match="the completion is of other utilities"):
        value(load_utilities(tmp_path / "other" / "utilities.npz"), "comfedsv", completion=completion)


def test_the_trail_is_written_and_read_back_byte_for_byte(made, tmp_path):
    save_utilities(load_utilities(made / "utilities.npz"), tmp_path / "again.npz")
    assert (tmp_path / "again.npz").read_bytes() == (made / "utilities.npz").read_bytes()


def test_the_command_says_step_by_step_what_was_found(folder, tmp_path, capsys):
    assert main(["verify", str(folder)]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert shown[0] == "ledger: every byte as written; the report is of its first 3 rounds"
    assert shown[-1] == f"{folder / 'report.json'}: its trail holds"
    shutil.move(folder / "ledger", tmp_path / "elsewhere")
    assert main(["verify", str(folder / "report.json")]) == 2
    capsys.readouterr()
    assert main(["verify", str(folder / "report.json"), "--ledger", str(tmp_path / "elsewhere"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["trail"][0]["step"] == "ledger"


@pytest.mark.parametrize("name", ["report.csv", "report.md", "report.html"])
def test_a_page_that_says_something_else_is_not_taken_for_checked(folder, name):
    assert steps_of(folder)[name].is_checked
    text = (folder / name).read_text()
    (folder / name).write_text(text.replace("0", "1", 1))
    step = steps_of(folder)[name]
    assert not step.is_checked
    assert "report.json is what was checked" in step.found


def test_other_intervals_break_the_trail(folder):
    document = json.loads((folder / "report.json").read_text())
    (comfedsv,) = (each for each in document["valuations"] if each["method"] == "comfedsv")
    errors = comfedsv["uncertainty"]["standard_deviations"]
    errors[0] = errors[0] / 10
    (folder / "report.json").write_text(json.dumps(document))
    with pytest.raises(ArtefactError, match="the trail breaks at the comfedsv: its intervals are not those"):
        steps_of(folder)


@pytest.mark.parametrize(
    "edit",
    [
        lambda said: said["valuations"][0]["shares"].__setitem__(0, 0.9),
        lambda said: said["valuations"][0]["ranks"].reverse(),
        lambda said: said["valuations"][0]["uncertainty"]["intervals_90"][0].__setitem__(0, -9.0),
        lambda said: said["valuations"][0]["uncertainty"]["chances"][0].__setitem__(1, 0.75),
        lambda said: said["valuations"][0]["uncertainty"].__setitem__("trust", "rough order only"),
        lambda said: said["valuations"][0]["completion"].__setitem__("n_answers", 999),
        lambda said: said["agreement"][0].__setitem__("rank_correlation", 0.123),
        lambda said: said["coverage"].__setitem__("share_seen", 1.0),
        lambda said: said["rounds"]["gains"].__setitem__(0, 5.0),
        lambda said: said["rounds"]["values"]["fedsv"][0].__setitem__(0, 5.0),
        lambda said: said["looked_for"].pop(),
        lambda said: said["findings"].append({**FINDING}),
        lambda said: said["trail"].__setitem__("head", "0" * 64),
        lambda said: said["trail"].__setitem__("n_rounds", 4),
    ],
)
def test_whatever_else_is_edited_breaks_the_trail_at_its_place(folder, edit):
    document = read_json(folder / "report.json")
    edit(document)
    with pytest.raises(ArtefactError, match=r"the trail breaks at the report\.json: .* (is|expected)"):
        audit(document, folder / "ledger", folder)


def test_numbers_that_differ_by_rounding_alone_say_the_same():
    assert difference([1.0, 1e-12, None], [1.0, 0.0, None]) == ""
    assert difference({"a": [1, 2]}, {"a": [1, 3]}) == "a[1] is 2, expected 3"
    assert difference({"a": 10**12}, {"a": 10**12 + 1}) == f"a is {10**12}, expected {10**12 + 1}"
    assert difference([True], [1]) != ""
    assert difference({"a": 1}, {"b": 1}) != ""


def test_what_follows_from_what_is_not_at_hand_is_said_not_to_be_looked_at(folder):
    assert steps_of(folder)["report.json"].is_checked
    for name in ("completion.npz", "factors.npz"):
        (folder / name).unlink()
    step = steps_of(folder)["report.json"]
    assert not step.is_checked
    assert "not what follows from utilities that are not at hand" in step.found


def test_a_head_that_is_demanded_is_checked_beside_a_report(folder, tmp_path, capsys):
    head = open_ledger(folder / "ledger").chain
    assert main(["verify", str(folder), "--head", head]) == 0
    assert "the head given is this ledger's" in capsys.readouterr().out
    assert main(["verify", str(folder), "--head", "0" * 64]) == 4
    _, public = write_keys(tmp_path, "us")
    unsigned = ["--signature", str(tmp_path / "none.json"), "--public-key", public]
    assert main(["verify", str(folder), *unsigned]) == 12
    capsys.readouterr()
