"""Whose answer is whose, with real messages: a name belongs to one node, known by its key."""

import pytest
from flwr.app import ArrayRecord, ConfigRecord, Error, Message, RecordDict
from handwriting import client_app
from handwriting.task import build

import fedworth.flower
from fedworth.findings import CONTESTED_NAME, SHARED_NODE, look
from fedworth.ledger.ledger import Ledger
from tests.recording.flower.in_process import InProcessGrid

CONFIG = {"n-clients": 4, "learning-rate": 0.2}
NAMES = {0: "clinic-a", 1: "clinic-b", 2: "clinic-c"}
KEYS = {k: f"key {k}".encode() for k in range(4)}


def grid_of(names, *, keys=KEYS):
    return InProcessGrid(client_app.app, len(names), CONFIG, clients=names, keys=keys)


def train(recording, number, nodes=None):
    content = RecordDict(
        {"arrays": ArrayRecord(build().state_dict()), "config": ConfigRecord({"server-round": number})}
    )
    asked = recording.get_node_ids() if nodes is None else nodes
    return recording.send_and_receive([Message(content=content, message_type="train", dst_node_id=n) for n in asked])


def kinds(ledger):
    return {finding.kind: finding for finding in look(ledger)[0]}


def answered(ledger, round_index):
    return [ledger.clients[k] for k in ledger.entries[round_index].answered]


def test_a_name_claimed_by_two_nodes_at_once_is_nobodys(tmp_path):
    recording = fedworth.flower.record(grid_of({**NAMES, 3: "clinic-a"}), ledger=tmp_path / "l")
    train(recording, 1)
    ledger = Ledger.verify(tmp_path / "l")
    assert answered(ledger, 0) == ["clinic-b", "clinic-c"]
    assert [ledger.clients[k] for k in ledger.entries[0].quarantined] == ["clinic-a"]
    assert "claimed by key-" in ledger.entries[0].quarantine_reasons[0]
    assert kinds(ledger)[CONTESTED_NAME].clients == ("clinic-a",)


@pytest.mark.parametrize("lookalike", ["clinic-a", "Clinic-A", "clinic-a ", "сlinic-а", "clinic\u200b-a"])
def test_who_had_the_name_first_keeps_it_and_only_its_own_answer_is_valued(tmp_path, lookalike):
    grid = grid_of({**NAMES, 3: lookalike})
    recording = fedworth.flower.record(grid, ledger=tmp_path / "l")
    train(recording, 1, [1000, 1001, 1002])
    train(recording, 2)
    ledger = Ledger.verify(tmp_path / "l")
    assert ledger.clients == ("clinic-a", "clinic-b", "clinic-c")
    assert ledger.entries[1].nodes == ledger.entries[0].nodes  # from the same keys as before
    assert answered(ledger, 1) == ["clinic-a", "clinic-b", "clinic-c"]
    assert kinds(ledger)[CONTESTED_NAME].rounds == (2,)
    assert any("it belongs to key-" in note for note in ledger.entries[1].notes)


def test_an_impostor_alone_in_a_round_is_not_valued_under_the_name(tmp_path):
    recording = fedworth.flower.record(grid_of({**NAMES, 3: "clinic-a"}), ledger=tmp_path / "l")
    train(recording, 1, [1000, 1001])
    train(recording, 2, [1001, 1003])
    ledger = Ledger.verify(tmp_path / "l")
    assert answered(ledger, 1) == ["clinic-b"]
    assert [ledger.clients[k] for k in ledger.entries[1].quarantined] == ["clinic-a"]


def test_a_client_that_fails_once_does_not_lose_its_name_to_whoever_claims_it(tmp_path, monkeypatch):
    grid = grid_of({**NAMES, 3: "clinic-a"})
    recording = fedworth.flower.record(grid, ledger=tmp_path / "l")
    train(recording, 1, [1000, 1001])
    honest = grid._reply

    def reply(message, partition):
        return Message(Error(2, "out of memory"), reply_to=message) if partition == 0 else honest(message, partition)

    monkeypatch.setattr(grid, "_reply", reply)
    train(recording, 2, [1000, 1001, 1003])
    monkeypatch.undo()
    train(recording, 3, [1000, 1001])
    ledger = Ledger.verify(tmp_path / "l")
    assert [answered(ledger, t) for t in range(3)] == [["clinic-a", "clinic-b"], ["clinic-b"], ["clinic-a", "clinic-b"]]
    assert kinds(ledger)[CONTESTED_NAME].rounds == (2,)


def test_a_restarted_node_has_its_name_again_and_the_move_is_noted(tmp_path):
    grid = grid_of(NAMES, keys={})
    recording = fedworth.flower.record(grid, ledger=tmp_path / "l")
    train(recording, 1)
    grid.first_id = 2000
    train(recording, 2)
    ledger = Ledger.verify(tmp_path / "l")
    assert answered(ledger, 1) == list(NAMES.values())
    assert "client 'clinic-a': has moved from node-1000 to node-2000" in ledger.entries[1].notes
    assert kinds(ledger) == {}  # the same model was sent twice, so the same answers are no replay


def test_where_keys_last_a_name_stays_with_its_key_even_after_the_server_was_stopped(tmp_path):
    grid = grid_of(NAMES)
    first = fedworth.flower.record(grid, ledger=tmp_path / "l", keys_last=True)
    train(first, 1)
    first.recorder.release()
    grid.first_id = 2000  # all have restarted; clinic-a's name now comes with another key
    grid.keys = {**KEYS, 0: b"another key"}
    train(fedworth.flower.record(grid, ledger=tmp_path / "l", keys_last=True, resume=True), 2)
    ledger = Ledger.verify(tmp_path / "l")
    assert answered(ledger, 1) == ["clinic-b", "clinic-c"]
    assert kinds(ledger)[CONTESTED_NAME].clients == ("clinic-a",)


def test_a_node_that_answers_by_two_names_is_found(tmp_path):
    grid = grid_of(NAMES)
    recording = fedworth.flower.record(grid, ledger=tmp_path / "l")
    train(recording, 1)
    grid.clients = {**NAMES, 2: "clinic-d"}
    train(recording, 2)
    finding = kinds(Ledger.verify(tmp_path / "l"))[SHARED_NODE]
    assert finding.clients == ("clinic-c", "clinic-d")
    assert "more names than nodes" in finding.sentence


def test_a_grid_that_does_not_tell_its_nodes_is_recorded_all_the_same(tmp_path, monkeypatch):
    grid = grid_of(NAMES)
    monkeypatch.setattr(grid, "get_nodes", lambda: 1 / 0)
    train(fedworth.flower.record(grid, ledger=tmp_path / "l"), 1, [1000, 1001])
    assert answered(Ledger.verify(tmp_path / "l"), 0) == ["clinic-a", "clinic-b"]


def test_the_strategy_never_sees_the_names(tmp_path):
    recording = fedworth.flower.record(grid_of({**NAMES, 3: "clinic-a"}), ledger=tmp_path / "l")
    assert all("fedworth.identity" not in reply.content for reply in train(recording, 1))
