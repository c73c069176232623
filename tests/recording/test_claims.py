"""A name belongs to one node: who gets it, who keeps it, and who is left out."""

from fedworth.ledger.ledger import Ledger
from fedworth.ledger.writer import Answer, LedgerWriter
from fedworth.recording.identity import NodeNames, Owners, owners_of, settle
from tests.support.ledgers import model


def bound(**names):
    """Owners after each of these nodes has said its name alone."""
    return settle(Owners(), names, {*names}).owners


def test_the_first_to_say_a_name_alone_has_it():
    assert settle(Owners(), {"n1": "a", "n2": "b"}, {"n1", "n2"}).names == {"n1": "a", "n2": "b"}


def test_two_who_say_a_new_name_in_one_round_get_nothing():
    settled = settle(Owners(), {"n1": "a", "n2": "a", "n3": "b"}, {"n1", "n2", "n3"})
    assert settled.names == {"n3": "b"}
    assert settled.conflicts == {"a": ("n1", "n2")}
    assert "claimed by n1 and by n2, but nobody can tell whose it is" in settled.reasons()["a"]


def test_who_has_a_name_keeps_it_and_the_other_is_left_out():
    settled = settle(bound(n1="a"), {"n2": "a", "n1": "a"}, {"n1", "n2"})
    assert settled.names == {"n1": "a"}
    assert settled.conflicts == {"a": ("n2",)}
    assert "it belongs to n1" in settled.reasons()["a"]


def test_a_name_is_not_taken_over_while_its_node_is_there():
    settled = settle(bound(n1="a"), {"n2": "a"}, {"n1", "n2"})
    assert (settled.names, settled.conflicts) == ({}, {"a": ("n2",)})
    assert settled.owners.nodes == bound(n1="a").nodes


def test_a_restarted_node_takes_its_name_along_unless_keys_last():
    moved = settle(bound(n1="a"), {"n2": "a"}, {"n2"})
    assert (moved.names, moved.moved) == ({"n2": "a"}, {"a": ("n1", "n2")})
    kept = settle(bound(n1="a"), {"n2": "a"}, {"n2"}, keys_last=True)
    assert (kept.names, kept.conflicts) == ({}, {"a": ("n2",)})


def test_two_cannot_take_over_one_name():
    settled = settle(bound(n1="a"), {"n2": "a", "n3": "a"}, {"n2", "n3"})
    assert (settled.names, settled.conflicts) == ({}, {"a": ("n2", "n3")})


def test_look_alikes_are_one_name_in_the_first_spelling():
    owners = bound(n1="Clinic-A")
    assert settle(owners, {"n1": "clinic-a "}, {"n1"}).names == {"n1": "Clinic-A"}
    assert settle(owners, {"n2": "сlinic-а"}, {"n1", "n2"}).conflicts == {"Clinic-A": ("n2",)}


def test_a_silent_node_keeps_its_name_while_another_claims_it():
    names = NodeNames()
    for number in (1, 2):
        names.meet(number, b"key" * number)
    names.settle({1: "a"}, {1, 2})
    settled = names.settle({2: "a"}, {1, 2})
    assert names.names == {1: "a"}
    assert [*settled.conflicts] == ["a"]


def test_a_resumed_recording_knows_whose_names_they_are(tmp_path):
    writer = LedgerWriter.create(tmp_path / "l", aggregation="uniform")
    writer.start_round(model(0), asked=["a", "b"])
    writer.client_model("a", Answer(model(1), 1).model, 1)
    writer.end_round(nodes={"a": "key-1"})
    assert owners_of(Ledger.open(tmp_path / "l")) == Owners({"a": "a", "b": "b"}, {"a": "key-1"})
