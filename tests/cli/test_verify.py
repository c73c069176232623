"""fedworth verify: what it says of a ledger."""

import json

import pytest

from fedworth.cli.main import main
from fedworth.ledger.writer import Answer, create_ledger
from tests.support.ledgers import CLIENTS, content, model

SAME = "Clients 'a' and 'b' sent the same model, in the only round they share (0)."


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
