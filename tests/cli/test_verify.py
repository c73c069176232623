"""fedworth verify: of a ledger, every byte; of a report, every number."""

import copy
import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedworth.cli.main import main
from fedworth.ledger.ledger import Ledger
from fedworth.ledger.manifest import LedgerHead
from fedworth.ledger.signature import sign_head
from fedworth.ledger.writer import Answer, LedgerWriter
from fedworth.pipeline.report_on import report_on
from fedworth.pipeline.verify import verify_report
from fedworth.report.report import Report
from fedworth.simulation.simulate import task_of
from tests.support.keys import write_keys
from tests.support.ledgers import CLIENTS, content, model


@pytest.fixture
def ledger(tmp_path):
    """One round in which two clients send the same model."""
    writer = LedgerWriter.create(tmp_path / "l", CLIENTS, aggregation="samples")
    writer.record_round(model(0), {"a": Answer(model(1), 5), "b": Answer(model(1), 5), "c": Answer(model(2), 5)})
    return tmp_path / "l"


def test_findings_are_shown_in_text_and_in_json_in_the_same_words(ledger, capsys, told):
    (finding,) = told("verify", ledger)["findings"]
    assert (finding["clients"], finding["rounds"]) == (["a", "b"], [0])
    assert main(["verify", str(ledger)]) == 0
    assert f"- {finding['sentence']}" in capsys.readouterr().out.splitlines()


def test_verifying_reads_the_models_and_writes_nothing(ledger):
    before = content(ledger)
    assert main(["verify", str(ledger)]) == 0
    assert content(ledger) == before


def test_the_first_bad_round_is_named(small_run, tmp_path, told, refused):
    folder = shutil.copytree(small_run / "ledger", tmp_path / "l")
    found = told("verify", folder)
    assert (found["n_rounds"], found["n_clients"], found["is_closed"]) == (3, 4, True)
    assert found["head"] == Ledger.open(folder).chain
    path = folder / "rounds" / "000001.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    assert "round 1" in refused(4, "verify", folder)
    refused(4, "verify", tmp_path / "nothing")


def test_the_head_is_printed_and_checked(ledger, capsys, refused):
    head = Ledger.open(ledger).chain
    assert main(["verify", str(ledger), "--head", head]) == 0
    shown = capsys.readouterr().out
    assert f"head: {head} " in shown
    assert "the head given is this ledger's: nothing was added or removed since" in shown
    assert "never had the head" in refused(4, "verify", ledger, "--head", "0" * 64)
    refused(2, "verify", ledger, "--head", "zero")


def test_a_signed_head_vouches_for_the_rounds_so_far(ledger, tmp_path, capsys, refused):
    private, public = write_keys(tmp_path, "us")
    _, others = write_keys(tmp_path, "them")
    signature = tmp_path / "head.json"
    assert main(["verify", str(ledger), "--sign", private, "--signature", str(signature)]) == 0
    check = ["verify", str(ledger), "--signature", str(signature), "--public-key"]
    assert main([*check, public]) == 0
    assert "the head signed is this ledger's" in capsys.readouterr().out
    assert "not signed by the owner" in refused(4, *check, others)
    sign_head(LedgerHead(Ledger.open(ledger).chain, 5), Path(private), tmp_path / "five.json")
    said = refused(4, "verify", ledger, "--signature", tmp_path / "five.json", "--public-key", public)
    assert "signed as the head of 5 rounds" in said


@pytest.mark.parametrize("options", [["--sign", "k"], ["--signature", "s"], ["--public-key", "p"]])
def test_half_a_signature_is_refused_before_anything_is_read(tmp_path, refused, options):
    assert "expected" in refused(2, "verify", tmp_path / "nowhere", *options)


@pytest.fixture
def run(small_run, tmp_path):
    return shutil.copytree(small_run, tmp_path / "run")


def test_a_report_is_made_again_from_its_ledger_and_says_the_same(run, told, capsys):
    made = told("verify", run)
    assert all(check["is_checked"] for check in made["checks"])
    assert {"ledger", "task", "report.json", "report.csv"} <= {check["check"] for check in made["checks"]}
    shutil.move(run / "ledger", run.parent / "elsewhere")
    words = ["verify", str(run / "report.json")]
    assert main(words) == 2
    assert "--ledger" in capsys.readouterr().err
    assert main([*words, "--ledger", str(run.parent / "elsewhere")]) == 0


def leaves(document: Any, place: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    """The places of all numbers, words and flags in a document."""
    if isinstance(document, dict):
        return [leaf for key, inner in document.items() for leaf in leaves(inner, (*place, key))]
    if isinstance(document, list):
        return [leaf for k, inner in enumerate(document) for leaf in leaves(inner, (*place, k))]
    return [place]


def edited(value: Any) -> Any:
    """Another value of the same kind."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + 1
    if isinstance(value, float):
        return value * 1.01 + 1e-3
    return "other" if value is None or isinstance(value, str) else value


FREE = {"title", "software", "seed", "strict", "unseen", "oracle", "n_sweeps"}
"""A report may have any title and come from any version; these settings change no number of this report; rounding
decides how many sweeps a solver takes."""


def test_any_edited_number_of_a_report_is_found(run, monkeypatch, capsys):
    """One leaf of each kind of place: the same keys, whatever the numbers between them."""
    from fedworth.pipeline import verify

    original = json.loads((run / "report.json").read_text())
    again = Report.read(run / "report.json")
    monkeypatch.setattr(verify, "report_on", lambda *_, **__: again)  # made once: it is the same each time
    kinds: dict[tuple[str, ...], tuple[str | int, ...]] = {}
    for place in leaves(original):
        kinds[tuple(key for key in place if isinstance(key, str))] = place  # the last of each kind
    missed = []
    for kind, place in kinds.items():
        document = copy.deepcopy(original)
        inner = document
        for key in place[:-1]:
            inner = inner[key]
        inner[place[-1]] = edited(inner[place[-1]])
        (run / "report.json").write_text(json.dumps(document))
        code = main(["verify", str(run)])
        if code != 12 and kind[-1] not in FREE:
            missed.append((code, kind, place))
    capsys.readouterr()
    assert len(kinds) > 40
    assert missed == []


@pytest.mark.parametrize(
    "edit",
    [
        lambda report: report["valuations"][0]["values"].__setitem__(1, 0.9),
        lambda report: report["clients"].__setitem__(0, "nobody"),
        lambda report: report["provenance"].__setitem__("head", "0" * 64),
        lambda report: report["provenance"].__setitem__("n_rounds", 2),
        lambda report: report["provenance"].__setitem__("task", "0" * 64),
        lambda report: report["provenance"]["settings"].__setitem__("weighting", "fixed"),
        lambda report: report["findings"].pop(),
    ],
)
def test_an_edited_report_is_refused_without_any_shortcut(run, refused, edit):
    report = json.loads((run / "report.json").read_text())
    edit(report)
    (run / "report.json").write_text(json.dumps(report))
    refused(12, "verify", run)


def test_what_rounding_decides_may_differ(run, told):
    report = json.loads((run / "report.json").read_text())
    (summary,) = [v["completion"] for v in report["valuations"] if v["method"] == "comfedsv"]
    summary.update(stationarity=3 * summary["stationarity"], n_sweeps=summary["n_sweeps"] + 1)
    (run / "report.json").write_text(json.dumps(report))
    told("report", run)  # its page names the fingerprint of report.json
    told("verify", run)


def test_kept_utilities_are_not_believed(run, cache, refused):
    """A report made from forged utilities in the cache is refused, since verify measures again."""
    assert main(["report", str(run / "ledger"), "--out", str(run)]) == 0
    for path in cache.rglob("*.npz"):
        with np.load(path) as file:
            np.savez(path, **{**file, "utilities": file["utilities"] + 0.5 * (file["coalitions"] == 128)})  # one client
    assert main(["report", str(run / "ledger"), "--out", str(run)]) == 0
    assert "report.json" in refused(12, "verify", run)


def test_what_is_printed_beside_a_report_is_compared_too(run, told, refused):
    """Pages in the words that they name, statements, rewards, tables; any edited number in them is found."""
    told("rewards", run, "--pool", "1500", "--rule", "floor", "--floor", "0.3", "--unit", "EUR")
    told("report", run, "--noun", "hospital", "--rewards", "--title", 'a "new" <title>')
    told("statement", run, "--all", "--noun", "clinic", "--rewards")
    checks = {check["check"]: check["is_checked"] for check in told("verify", run)["checks"]}
    assert all(checks.values())
    statements = sorted(path.name for path in (run / "statements").iterdir())
    files = ["report.csv", "report.md", "report.html", "rewards.csv", "rewards.json"]
    files += [f"statements/{name}" for name in statements]
    assert len(statements) == 4
    assert set(files) <= set(checks)
    for name in files:
        path, text = run / name, (run / name).read_text()
        places = [k for k in range(len(text) - 1) if text[k].isdigit() and not text[k + 1].isdigit()]
        place = places[-1] if not name.endswith("html") else text.index("</b>", text.index("<main")) - 1
        path.write_text(text[:place] + ("1" if text[place] != "1" else "2") + text[place + 1 :])
        assert name in refused(12, "verify", run)
        path.write_text(text)


def test_edited_rewards_are_found(run, told, refused):
    told("rewards", run, "--pool", "1500")
    document = json.loads((run / "rewards.json").read_text())
    document["cents"][0] += 1
    document["cents"][1] -= 1
    (run / "rewards.json").write_text(json.dumps(document))
    assert "rewards: the amounts do not follow" in refused(12, "verify", run)


def test_what_was_chosen_and_what_cannot_be_compared_is_said(run, told):
    told("report", run / "ledger", "--out", run / "other", "--without", "2", "--weighting", "fixed")
    shutil.copy(run / "report.html", run / "other" / "report-2.html")
    report = json.loads((run / "other" / "report.json").read_text())
    report = Report.from_document({**report, "copies": [["1", "0"]]})
    report.write(run / "other")
    found = {check["check"]: check for check in told("verify", run / "other", "--ledger", run / "ledger")["checks"]}
    assert "weighting fixed, without ('2',)" in found["settings"]["found"]
    assert [name for name, check in found.items() if not check["is_checked"]] == ["copies", "other files"]
    assert "1 and 0 hold the same data, as the report says" in found["copies"]["found"]
    assert "report-2.html" in found["other files"]["found"]


def test_methods_that_a_report_calls_slow_are_said_to_be_unchecked(run):
    made = Report.read(run)
    assert made.provenance is not None
    ledger = Ledger.open(run / "ledger")
    slow = replace(made.provenance, slow=("leave-one-out",))
    report = report_on(ledger, task_of(ledger), title=made.title, copies=made.copies, like=slow)
    checks = verify_report(report, ledger.folder, task_of(ledger))
    assert [check.name for check in checks if not check.is_checked] == ["methods"]


@pytest.mark.parametrize("limit", [("--seconds", "100"), ("--budget", "1000")])
def test_a_report_that_was_stopped_by_a_limit_cannot_be_made_again_and_is_not_called_wrong(run, told, refused, limit):
    told("report", run / "ledger", "--out", run / "other", *limit)
    said = refused(12, "verify", run / "other", "--ledger", run / "ledger")
    assert "cannot be made again" in said
    assert "not what" not in said


def test_edited_settings_of_a_run_are_found(run, refused):
    settings = (run / "settings.json").read_text()
    (run / "settings.json").write_text(settings.replace('"n_rounds": 3', '"n_rounds": 30'))
    assert "settings.json" in refused(12, "verify", run)


def test_a_report_on_the_first_rounds_holds_after_more_were_recorded(small_run, tmp_path, told):
    source = Ledger.open(small_run / "ledger")
    folder = tmp_path / "l"
    writer = LedgerWriter.create(folder, source.clients, aggregation="uniform", settings=source.settings)
    for t, round_ in enumerate(source.rounds()):
        answers = {source.clients[k]: Answer(m, 30) for k, m in round_.client_models.items()}
        writer.record_round(round_.global_model, answers)
        if t == 1:
            told("report", folder, "--out", tmp_path / "r")
    writer.close(source.final_model())
    (ledger, *_) = told("verify", tmp_path / "r", "--ledger", folder)["checks"]
    assert "1 rounds were recorded since" in ledger["found"]


def test_a_report_on_brought_utilities_cannot_be_verified(small_run, tmp_path, told, refused):
    told("observe", small_run / "ledger", "--out", tmp_path / "u.npz")
    told("value", tmp_path / "u.npz", "--out", tmp_path / "v")
    said = refused(12, "verify", tmp_path / "v", "--ledger", small_run / "ledger")
    assert "made from given utilities" in said
