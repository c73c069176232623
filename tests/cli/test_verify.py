"""fedworth verify: what it says of a ledger."""

import json
from pathlib import Path

import pytest

from fedworth.cli.main import main
from fedworth.ledger.ledger import open_ledger
from fedworth.ledger.manifest import LedgerHead
from fedworth.ledger.signature import sign_head
from fedworth.ledger.writer import Answer, create_ledger
from tests.support.keys import write_keys
from tests.support.ledgers import CLIENTS, content, model

SAME = "Clients 'a' and 'b' sent the same model, in the only round they share (0); certain, by equal bytes."


@pytest.fixture
def ledger(tmp_path):
    """One round in which two clients send the same model."""
    writer = create_ledger(tmp_path / "l", CLIENTS, aggregation="samples")
    writer.record_round(model(0), {"a": Answer(model(1), 5), "b": Answer(model(1), 5), "c": Answer(model(2), 5)})
    return tmp_path / "l"


def test_findings_are_shown_in_text_and_in_json_in_the_same_words(ledger, capsys):
    assert main(["verify", str(ledger)]) == 0
    assert f"- {SAME}" in capsys.readouterr().out.splitlines()
    assert main(["verify", str(ledger), "--json"]) == 0
    (finding,) = json.loads(capsys.readouterr().out)["findings"]
    assert finding["sentence"] == SAME
    assert (finding["kind"], finding["clients"], finding["rounds"]) == ("same model", ["a", "b"], [0])


def test_verifying_reads_the_models_and_writes_nothing(ledger):
    before = content(ledger)
    assert main(["verify", str(ledger)]) == 0
    assert content(ledger) == before


def test_the_head_is_printed_and_checked(ledger, capsys):
    head = open_ledger(ledger).chain
    assert main(["verify", str(ledger), "--head", head]) == 0
    shown = capsys.readouterr().out
    assert f"head: {head} " in shown
    assert "the head given is this ledger's: nothing was added or removed since" in shown
    assert main(["verify", str(ledger), "--head", "0" * 64]) == 4
    assert "never had the head" in capsys.readouterr().err
    assert main(["verify", str(ledger), "--head", "zero"]) == 2


def test_a_signed_head_vouches_for_the_rounds_so_far(ledger, tmp_path, capsys):
    private, public = write_keys(tmp_path, "us")
    _, others = write_keys(tmp_path, "them")
    signature = str(tmp_path / "head.json")
    assert main(["verify", str(ledger), "--sign", private, "--signature", signature]) == 0
    check = ["verify", str(ledger), "--signature", signature, "--public-key"]
    assert main([*check, public]) == 0
    assert "the head signed is this ledger's" in capsys.readouterr().out
    assert main([*check, others]) == 4
    assert "not signed by the owner" in capsys.readouterr().err


def test_a_head_signed_with_another_number_of_rounds_is_refused(ledger, tmp_path, capsys):
    private, public = write_keys(tmp_path, "us")
    sign_head(LedgerHead(open_ledger(ledger).chain, 5), Path(private), tmp_path / "head.json")
    assert main(["verify", str(ledger), "--signature", str(tmp_path / "head.json"), "--public-key", public]) == 4
    assert "signed as the head of 5 rounds, and it is that of 1" in capsys.readouterr().err


@pytest.mark.parametrize("options", [["--sign", "k"], ["--signature", "s"], ["--public-key", "p"]])
def test_half_a_signature_is_refused_before_anything_is_read(tmp_path, capsys, options):
    assert main(["verify", str(tmp_path / "nowhere"), *options]) == 2
    assert "expected" in capsys.readouterr().err
