"""fedworth verify: of a ledger, every byte; of a report, every number."""

import copy
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedworth.cli.main import main
from fedworth.ledger.ledger import open_ledger
from fedworth.ledger.manifest import LedgerHead
from fedworth.ledger.signature import sign_head
from fedworth.ledger.writer import Answer, create_ledger
from fedworth.simulation.simulate import task_of
from fedworth.valuation.federation import Federation
from tests.support.keys import write_keys
from tests.support.ledgers import CLIENTS, content, model


@pytest.fixture
def ledger(tmp_path):
    """One round in which two clients send the same model."""
    writer = create_ledger(tmp_path / "l", CLIENTS, aggregation="samples")
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
    assert found["head"] == open_ledger(folder).chain
    path = folder / "rounds" / "000001.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    assert "round 1" in refused(4, "verify", folder)
    refused(4, "verify", tmp_path / "nothing")


def test_the_head_is_printed_and_checked(ledger, capsys, refused):
    head = open_ledger(ledger).chain
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
    sign_head(LedgerHead(open_ledger(ledger).chain, 5), Path(private), tmp_path / "five.json")
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
    from fedworth.report.report import Report

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
    told("verify", run)


def test_kept_utilities_are_not_believed(run, refused):
    """A report made from forged utilities beside the ledger is refused, since verify measures again."""
    ledger = open_ledger(run / "ledger")
    recorded = Federation(ledger, task_of(ledger)).recorded
    assert recorded.store is not None
    kept = [recorded.store.load(recorded.round(t)) for t in range(ledger.n_rounds)]
    shutil.rmtree(ledger.folder / "utilities")
    for t, (coalitions, utilities) in enumerate(kept):
        is_forged = coalitions[:, 0] & (coalitions.sum(axis=1) == 1)  # client 0 alone
        recorded.store.save(t, coalitions, utilities + 0.5 * is_forged[:, None])
    for path in run.glob("report.*"):
        path.unlink()
    settings = json.loads((run / "settings.json").read_text())["simulation"]
    assert settings["n_clients"] == 4
    assert main(["report", str(run / "ledger"), "--out", str(run)]) == 0
    refused(12, "verify", run)


def test_kept_traces_of_findings_are_not_believed(run, refused):
    """A report made from a forged trace beside the ledger is refused, since verify reads the models again."""
    path = run / "ledger" / "traces" / "000000.npz"
    arrays = dict(np.load(path))
    arrays["of"][4] = arrays["of"][3]  # the first two clients seem to have sent the same model
    np.savez(path, **arrays)
    for written in run.glob("report.*"):
        written.unlink()
    assert main(["report", str(run / "ledger"), "--out", str(run)]) == 0
    assert "findings" in refused(12, "verify", run)


def test_an_edited_table_is_found_and_a_page_of_other_words_is_said(run, told, refused):
    told("report", run, "--noun", "hospital")
    checks = {check["check"]: check["is_checked"] for check in told("verify", run)["checks"]}
    assert (checks["report.csv"], checks["report.html"]) == (True, False)
    path = run / "report.csv"
    path.write_text(path.read_text().replace("0", "1", 1))
    assert "report.csv" in refused(12, "verify", run)


def test_a_report_on_the_first_rounds_holds_after_more_were_recorded(small_run, tmp_path, told):
    source = open_ledger(small_run / "ledger")
    folder = tmp_path / "l"
    writer = create_ledger(folder, source.clients, aggregation="uniform", settings=source.settings)
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
    assert "utilities were brought" in said
