"""fedworth verify STATEMENT: a client learns whether the models that were valued are those that it sent."""

import json
from dataclasses import asdict, replace

import pytest

import fedworth
from fedworth.cli.main import main
from fedworth.ledger.receipts import read_receipts
from fedworth.report.page.statement import read_statement
from tests.pipeline.test_forms import LABELS, MODULE, data
from tests.support.ledgers import content

TASK = """
import torch
from tests.pipeline.test_forms import LABELS, MODULE, data
import fedworth
task = fedworth.Task(MODULE, data(), LABELS)
"""


@pytest.fixture
def federation(tmp_path, monkeypatch):
    """Three clients in four rounds; client b sends NaN in round 2 and says nothing in round 3. Its receipts, and
    statements of the first four rounds."""
    recorder = fedworth.record_into(tmp_path / "my.ledger", aggregation="samples")
    model = {name: tensor.clone() for name, tensor in MODULE.state_dict().items()}
    for number in range(4):
        recorder.start_round(model, asked=["a", "b", "c"])
        answers = {name: {key: t + 0.1 * (k + number) for key, t in model.items()} for k, name in enumerate("abc")}
        if number == 2:
            answers["b"]["base.bias"] = answers["b"]["base.bias"] * float("nan")
        for name in "abc" if number != 3 else "ac":
            fedworth.receipt(answers[name], round_number=number, n_samples=10, file=tmp_path / f"{name}.jsonl")
            recorder.client_model(name, answers[name], n_samples=10)
        recorder.end_round()
        good = [answers[name] for name in ("ac" if number > 1 else "abc")]
        model = {key: sum(answer[key].double() for answer in good).div(len(good)).float() for key in model}
    recorder.close(model)
    (tmp_path / "mytask.py").write_text(TASK)
    assert main(["report", str(tmp_path / "my.ledger"), "--task", f"{tmp_path / 'mytask.py'}:task"]) == 0
    assert main(["statement", str(tmp_path / "my.ledger.report"), "--all"]) == 0
    monkeypatch.chdir(tmp_path)
    return tmp_path


def statement_of(folder, client="b"):
    (path,) = (folder / "my.ledger.report" / "statements").glob(f"*-{client}.html")
    return path


def rewrite(path, receipts):
    path.write_text("".join(json.dumps(asdict(receipt)) + "\n" for receipt in receipts))


def test_a_statement_says_what_its_value_rests_on(federation):
    said = read_statement(statement_of(federation))
    ledger = fedworth.Ledger.open(federation / "my.ledger")
    report = fedworth.Report.read(federation / "my.ledger.report" / "report.json")
    assert (said.client, said.value, said.method) == ("b", report["b"].value, "comfedsv-models")
    assert (said.measure, said.judged_by, said.n_test_samples) == ("loss", "cross-entropy", len(LABELS))
    assert (said.ledger_head, said.n_rounds) == (ledger.chain, 4)
    assert (said.report, said.task) == (report.fingerprint, fedworth.Task(MODULE, data(), LABELS).fingerprint)
    assert said.models is not None
    assert [(model.round, model.n_samples) for model in said.models] == [(0, 10), (1, 10)]
    assert said.unused == ((2, "rejected"),)
    html = statement_of(federation).read_text()
    for told in (
        ledger.chain,
        "loss (cross-entropy), in nats per test sample, on 24 test samples",
        *(model.sha256 for model in said.models),
    ):
        assert told in html.split("<script")[0]


def test_what_was_sent_is_what_was_valued(federation, told, capsys):
    found = told("verify", statement_of(federation, "a"), "--receipts", federation / "a.jsonl")["checks"]
    names = [("statement", False), *((f"round {n}", True) for n in range(4))]
    assert [(check["name"], check["is_checked"]) for check in found] == names
    assert main(["verify", str(statement_of(federation)), "--receipts", "b.jsonl"]) == 0
    shown = capsys.readouterr().out
    assert "round 1: what you sent, 10 samples" in shown
    assert "round 2: not checked: what you sent was not used (rejected); ask for the reason" in shown
    assert "2 of 3 rounds compared; all agree" in shown


def test_what_the_statement_says_to_programs_is_printed_since_its_page_may_show_something_else(federation, told):
    page = statement_of(federation, "a")
    head = fedworth.Ledger.open(federation / "my.ledger").chain
    shown, _, block = page.read_text().partition("<script type")
    page.write_text(shown.replace(head, "0" * 64) + "<script type" + block)
    said, *_ = told("verify", page, "--receipts", federation / "a.jsonl")["checks"]
    assert f"cross-entropy on 24 test samples, from the ledger with the head {head}" in said["found"]


def test_the_statement_can_be_compared_with_the_ledger_too(federation, told, refused):
    before = content(federation / "my.ledger")
    found = told("verify", statement_of(federation), "--receipts", "b.jsonl", "--ledger", "my.ledger")["checks"]
    assert found[-1]["name"] == "ledger"
    assert content(federation / "my.ledger") == before
    page = statement_of(federation)
    said = read_statement(page)
    assert said.models is not None
    page.write_text(page.read_text().replace(said.models[0].sha256, "0" * 64))
    assert "not those that the statement lists" in refused(12, "verify", page, "--ledger", "my.ledger")
    assert "round 0: what was valued is not" in refused(12, "verify", page, "--receipts", "b.jsonl")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda r: [replace(r[0], sha256="0" * 64), *r[1:]], "round 0: what was valued is not what you sent"),
        (lambda r: [replace(r[0], n_samples=50), *r[1:]], "credited with 10 samples, and you reported 50"),
        (lambda r: [*r, replace(r[0], round=3)], "round 3: you have a receipt, and the statement says that nothing"),
        (lambda r: [*r, replace(r[0], round=4)], "after round 3, the last that was valued"),
        (lambda r: [replace(r[1], round=0), *r[1:]], "round 0: what was valued is not what you sent"),
    ],
    ids=[
        "another model",
        "other samples",
        "an answer that did not arrive",
        "a later round",
        "the model of another round",
    ],
)
def test_differences_are_found(federation, capsys, change, said):
    rewrite(federation / "b.jsonl", change(read_receipts(federation / "b.jsonl")))
    code = main(["verify", str(statement_of(federation)), "--receipts", "b.jsonl"])
    shown = capsys.readouterr()
    assert code == (0 if "after" in said else 12)
    assert said in shown.out + shown.err


def test_of_a_model_that_was_sent_again_one_of_the_two_is_enough(federation):
    receipts = read_receipts(federation / "b.jsonl")
    rewrite(federation / "b.jsonl", [*(replace(r, sha256="0" * 64) for r in receipts), *receipts])
    assert main(["verify", str(statement_of(federation)), "--receipts", "b.jsonl"]) == 0


def test_receipts_without_names_compare_the_numbers_only(federation, told):
    receipts = [replace(r, sha256="0" * 64, is_named=False) for r in read_receipts(federation / "a.jsonl")]
    rewrite(federation / "a.jsonl", receipts)
    found = told("verify", statement_of(federation, "a"), "--receipts", "a.jsonl")["checks"]
    assert not any(check["is_checked"] for check in found)
    assert all("no names" in check["found"] for check in found[1:])
    rewrite(federation / "a.jsonl", [])
    found = told("verify", statement_of(federation, "a"), "--receipts", "a.jsonl")["checks"]
    assert {check["found"] for check in found[1:]} == {"you have no receipt"}


def test_a_statement_made_without_its_ledger_says_so(federation, refused, capsys):
    report = federation / "my.ledger.report"
    (federation / "my.ledger").rename(federation / "elsewhere")
    assert main(["statement", str(report), "b"]) == 0
    assert "--ledger LEDGER" in capsys.readouterr().err
    assert "names no models" in refused(12, "verify", statement_of(federation), "--receipts", "b.jsonl")
    assert main(["statement", str(report), "b", "--ledger", "elsewhere"]) == 0
    assert main(["verify", str(statement_of(federation)), "--receipts", "b.jsonl"]) == 0
    fedworth.LedgerWriter.create("other", ["b"], aggregation="samples")
    assert "not of this ledger" in refused(12, "statement", report, "b", "--ledger", "other")
    assert "--receipts FILE" in refused(2, "verify", statement_of(federation))
    assert "no statement" in refused(12, "verify", report / "report.html", "--receipts", "b.jsonl")
