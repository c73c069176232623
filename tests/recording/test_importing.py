"""Importing a folder of state dicts: rounds in order, clients by their file's name, odd answers quarantined."""

import json

import pytest
import torch
from safetensors.torch import save_file

from fedworth.cli.main import main
from fedworth.errors import DataError, LedgerError
from fedworth.ledger.ledger import Ledger
from fedworth.recording.importing import import_folder
from tests.support.ledgers import model


@pytest.fixture
def folder(tmp_path):
    place = tmp_path / "models"
    for t, name in enumerate(["round-1", "round-2", "round-10"]):
        (place / name).mkdir(parents=True)
        save_file(model(100 + t), place / name / "global.safetensors")
        for k, client in enumerate(["a", "b"]):
            save_file(model(10 * t + k), place / name / f"{client}.safetensors")
    save_file(model(200), place / "final.safetensors")
    (place / "samples.json").write_text(json.dumps({"a": 3, "b": 4}))
    return place


def test_a_folder_becomes_a_ledger(folder, tmp_path):
    import_folder(folder, tmp_path / "l")
    ledger = Ledger.verify(tmp_path / "l")
    assert (ledger.n_rounds, ledger.clients, ledger.is_closed) == (3, ("a", "b"), True)
    assert ledger.sample_counts() == {0: 3, 1: 4}
    assert torch.equal(ledger.open_round(2).client_models[1]["layer.weight"], model(21)["layer.weight"])


def test_an_answer_that_cannot_be_used_is_refused_alone(folder, tmp_path):
    save_file({"w": torch.zeros(1)}, folder / "round-2" / "a.safetensors")
    (folder / "round-10" / "a.safetensors").write_bytes(b"garbage")
    ledger = import_folder(folder, tmp_path / "l")
    assert [entry.quarantined for entry in ledger.entries] == [(), (0,), (0,)]


def test_without_counts_the_server_must_have_averaged_uniformly(folder, tmp_path):
    (folder / "samples.json").write_text('{"a": 3}')
    with pytest.raises(DataError, match="no number of samples for client 'b'"):
        import_folder(folder, tmp_path / "partly")
    (folder / "samples.json").unlink()
    with pytest.raises(DataError, match=r"samples\.json: missing"):
        import_folder(folder, tmp_path / "l")
    assert import_folder(folder, tmp_path / "l", aggregation="uniform").n_rounds == 3


@pytest.mark.parametrize("counts", ["[]", "3", '{"a": "x"}', '{"a": 0}', '{"a": true}', "{"])
def test_odd_counts_are_refused(folder, tmp_path, counts):
    (folder / "samples.json").write_text(counts)
    with pytest.raises((DataError, LedgerError), match=r"samples\.json"):
        import_folder(folder, tmp_path / "l")


def test_what_is_no_folder_of_rounds_is_refused(folder, tmp_path):
    with pytest.raises(DataError, match="no such folder"):
        import_folder(tmp_path / "nowhere", tmp_path / "l")
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="no subfolders"):
        import_folder(tmp_path / "empty", tmp_path / "l")
    (folder / "round-2" / "global.safetensors").unlink()
    with pytest.raises(DataError, match=r"no global\.safetensors"):
        import_folder(folder, tmp_path / "l")


def test_the_command_imports_and_names_the_next_step(folder, tmp_path, capsys):
    assert main(["import", str(folder), "--out", str(tmp_path / "l")]) == 0
    assert "next: fedworth report" in capsys.readouterr().out
    assert main(["import", str(folder), "--out", str(tmp_path / "m"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["clients"] == ["a", "b"]
