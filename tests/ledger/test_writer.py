"""Writing a ledger: rounds are committed completely or not at all, and hostile answers are quarantined."""

import errno
import gc
import logging
import os
import shutil
import stat
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from fedworth.errors import ArtefactError, LedgerError, ModelError, UsageError
from fedworth.ledger.ledger import Ledger
from fedworth.ledger.writer import Answer, LedgerWriter, exposures
from fedworth.recording.recorder import record_into
from tests.support.ledgers import CLIENTS, Killed, Reaper, content, model, record_rest, write_ledger


def assert_same(found, expected):
    assert set(found) == set(expected)
    for name, tensor in expected.items():
        assert found[name].dtype == tensor.dtype
        assert torch.equal(found[name], tensor)


def test_what_is_recorded_is_read_back_to_the_bit(tmp_path):
    write_ledger(tmp_path / "l")
    ledger = Ledger.verify(tmp_path / "l")
    assert ledger.is_closed
    assert_same(ledger.final_model(), model(200))
    second = ledger.open_round(1, with_apart=True)
    assert_same(second.global_model, model(101))
    assert_same(second.client_models[1], model(11))
    assert_same(second.apart_models[2], model(12))
    assert second.entry.sample_counts == (10, 11)


def test_any_reader_of_safetensors_reads_a_round(tmp_path):
    write_ledger(tmp_path / "l")
    tensors = load_file(tmp_path / "l/rounds/000000.safetensors")
    assert torch.equal(tensors["client/2/layer.weight"], model(2)["layer.weight"])


def test_strides_and_views_are_stored_as_the_values_they_show(tmp_path):
    square = torch.arange(12.0).reshape(3, 4)
    writer = LedgerWriter.create(tmp_path / "l", aggregation="uniform")
    writer.record_round({"w": square.T}, {"a": Answer({"w": square.T[:, :]}, 1)})
    assert torch.equal(Ledger.open(tmp_path / "l").open_round(0).client_models[0]["w"], square.T)


def test_equal_rounds_give_equal_bytes(tmp_path):
    write_ledger(tmp_path / "one")
    write_ledger(tmp_path / "two")
    assert content(tmp_path / "one") == content(tmp_path / "two")


@pytest.mark.filterwarnings("ignore::ResourceWarning")  # the dead do not close their files
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_killed_between_any_two_operations_and_resumed_gives_equal_bytes(tmp_path, monkeypatch):
    write_ledger(tmp_path / "whole")
    expected = content(tmp_path / "whole")
    for n_left in range(1000):
        folder = tmp_path / f"killed-{n_left}"
        try:
            with monkeypatch.context() as patched:
                Reaper(patched, n_left)
                write_ledger(folder)
        except Killed:
            n_committed = _check_after_kill(folder)
        else:
            break
        _finish(folder)
        assert content(folder) == expected, f"killed after {n_left} operations with {n_committed} rounds"
    gc.collect()
    assert n_left > 50


def _check_after_kill(folder):
    """Whatever was committed is whole, before any repair."""
    if not (folder / "federation.json").exists():
        return 0
    return Ledger.verify(folder).n_rounds


def _finish(folder):
    is_begun = (folder / "federation.json").exists()
    writer = LedgerWriter.resume(folder) if is_begun else LedgerWriter.create(folder, CLIENTS, aggregation="samples")
    record_rest(writer)


def test_only_the_owner_can_read_a_ledger(tmp_path):
    write_ledger(tmp_path / "l")
    for path in [tmp_path / "l", *(tmp_path / "l").rglob("*")]:
        expected = 0o700 if path.is_dir() else 0o600
        assert stat.S_IMODE(path.stat().st_mode) == expected, path


@pytest.mark.parametrize("operation", ["pwrite", "fsync", "open", "ftruncate"])
def test_a_full_disk_is_a_clear_error_and_leaves_the_ledger_intact(tmp_path, monkeypatch, operation):
    write_ledger(tmp_path / "l", n_rounds=2, is_closed=False)
    before = content(tmp_path / "l")
    writer = LedgerWriter.resume(tmp_path / "l")

    def full(*_args, **_kwargs):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, operation, full)
        with pytest.raises(LedgerError, match=r"No space left on device.*2 rounds before it are intact"):
            writer.record_round(model(1), {"a": Answer(model(2), 3)})
    assert {k: v for k, v in content(tmp_path / "l").items() if not k.endswith(".partial")} == before
    record_rest(writer)
    assert Ledger.verify(tmp_path / "l").n_rounds == 3


def test_half_a_line_on_a_full_disk_is_taken_back(tmp_path, monkeypatch):
    writer = LedgerWriter.create(tmp_path / "l", aggregation="samples")
    whole = os.pwrite
    with monkeypatch.context() as patched:
        patched.setattr(os, "pwrite", lambda fd, data, offset: whole(fd, data[:20], offset))
        with pytest.raises(LedgerError, match="device is full"):
            writer.record_round(model(1), {"a": Answer(model(2), 3)})
    assert (tmp_path / "l/manifest.jsonl").read_bytes() == b""


def test_a_folder_that_cannot_be_written_is_a_clear_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(LedgerError, match="a ledger cannot be made here"):
        LedgerWriter.create(tmp_path / "file" / "l", aggregation="samples")


def test_nothing_is_recorded_after_the_end(tmp_path):
    write_ledger(tmp_path / "l")
    writer = LedgerWriter.resume(tmp_path / "l")
    with pytest.raises(LedgerError, match="closed"):
        writer.record_round(model(1), {"a": Answer(model(2), 3)})
    with pytest.raises(LedgerError, match="closed"):
        writer.close(model(1))


def test_a_ledger_is_never_overwritten(tmp_path):
    write_ledger(tmp_path / "l")
    with pytest.raises(ArtefactError, match="exists already"):
        LedgerWriter.create(tmp_path / "l", aggregation="samples")


def test_an_unknown_aggregation_is_refused(tmp_path):
    with pytest.raises(UsageError, match="did you mean 'samples'"):
        LedgerWriter.create(tmp_path / "l", aggregation="sample")  # type: ignore[arg-type]


def test_asked_answered_failed_quarantined_and_silent_are_told_apart(tmp_path):
    writer = LedgerWriter.create(tmp_path / "l", ["a"], aggregation="samples", quarantine=True)
    writer.start_round(model(1), asked=["a", "b", "c", "d", "e"], number=7)
    writer.client_model("c", model(2), 5)
    writer.client_model("e", {"w": torch.zeros(1)}, 5)
    writer.client_failed("b", "out of\nmemory")
    writer.end_round(notes=["node 12 never said who it is"])
    ledger = Ledger.open(tmp_path / "l")
    entry = ledger.entries[0]
    assert ledger.clients == ("a", "b", "c", "d", "e")
    assert (entry.answered, entry.failed, entry.quarantined, entry.silent) == ((2,), (1,), (4,), (0, 3))
    assert entry.failure_reasons == ("out of memory",)
    assert entry.number == 7
    assert "missing or extra" in entry.quarantine_reasons[0]
    assert any("'e' was quarantined" in text for text in ledger.warnings())
    assert any("node 12" in text for text in ledger.warnings())


def with_value(value, dtype=torch.float32):
    bad = model(2)
    bad["layer.weight"] = bad["layer.weight"].to(dtype)
    bad["layer.weight"][1, 2] = value
    return bad


def without(name):
    return {key: tensor for key, tensor in model(2).items() if key != name}


HOSTILE: dict[str, Any] = {
    "NaN": (with_value(float("nan")), 5),
    "infinity": (with_value(float("inf")), 5),
    "minus infinity": (with_value(float("-inf")), 5),
    "1e30": (with_value(1e30), 5),
    "1e300 in another dtype": (with_value(1e300, torch.float64), 5),
    "wrong shape": ({**model(2), "layer.weight": torch.zeros(4, 3)}, 5),
    "missing tensor": (without("scale"), 5),
    "extra tensor": ({**model(2), "more": torch.zeros(1)}, 5),
    "empty": ({}, 5),
    "complex": ({**model(2), "layer.weight": torch.zeros(3, 4, dtype=torch.complex64)}, 5),
    "sparse": ({**model(2), "layer.weight": torch.zeros(3, 4).to_sparse()}, 5),
    "text": ({**model(2), "layer.weight": np.full((3, 4), "x")}, 5),
    "objects": ({**model(2), "layer.weight": np.full((3, 4), None)}, 5),
    "a list": ({**model(2), "layer.weight": [1.0]}, 5),
    "no model": (None, 5),
    "no samples": (model(2), 0),
    "less than no samples": (model(2), -3),
    "NaN samples": (model(2), float("nan")),
    "more samples than there are": (model(2), 10**400),
    "samples as text": (model(2), "5"),
}


@pytest.mark.parametrize("hostile", HOSTILE)
def test_a_hostile_answer_is_refused_alone_and_the_round_goes_on(tmp_path, hostile):
    recorder = record_into(tmp_path / "l")
    recorder.start_round(model(1), asked=["good", "hostile", "also good"])
    recorder.client_model("good", model(2), 5)
    recorder.client_model("hostile", *HOSTILE[hostile])
    recorder.client_model("also good", model(3), 5)
    recorder.end_round()
    entry = Ledger.verify(tmp_path / "l").entries[0]
    assert (entry.answered, entry.quarantined) == ((0, 2), (1,))
    assert entry.quarantine_reasons[0]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.int64])
def test_other_kinds_of_real_numbers_are_kept_as_sent(tmp_path, dtype):
    sent = {**model(2), "layer.weight": torch.ones(3, 4, dtype=dtype)}
    recorder = record_into(tmp_path / "l")
    recorder.start_round(model(1), asked=["a"])
    recorder.client_model("a", sent, 5)
    recorder.end_round()
    assert Ledger.open(tmp_path / "l").open_round(0).client_models[0]["layer.weight"].dtype == dtype


@pytest.mark.parametrize("name", ["<b>x</b>", "../../etc/passwd", "=1+1", "Zoë's clinic", "a/b\\c", "-rf"])
def test_odd_names_are_kept_and_never_name_a_file(tmp_path, name):
    recorder = record_into(tmp_path / "l")
    recorder.start_round(model(1), asked=[name])
    recorder.client_model(name, model(2), 5)
    recorder.end_round()
    recorder.release()
    assert Ledger.verify(tmp_path / "l").clients == (name,)
    assert {path.name for path in (tmp_path / "l").rglob("*")} == {
        "federation.json",
        "manifest.jsonl",
        "rounds",
        "000000.safetensors",
    }


@pytest.mark.parametrize("name", ["", "  ", "two\nlines", "esc\x1b[2J", "\ud800", "x" * 201, "nul\x00"])
def test_unusable_names_are_refused_and_the_others_go_on(tmp_path, name):
    with pytest.raises(LedgerError, match="client name"):
        LedgerWriter.create(tmp_path / "strict", [name], aggregation="samples")
    recorder = record_into(tmp_path / "l")
    recorder.start_round(model(1), asked=["a", name])
    recorder.client_model(name, model(2), 5)
    recorder.client_model("a", model(2), 5)
    recorder.client_model("a", model(3), 5)
    recorder.end_round()
    ledger = Ledger.verify(tmp_path / "l")
    assert ledger.clients == ("a",)
    assert len(ledger.entries[0].notes) == 3


def test_an_error_in_recording_is_reported_in_the_ledger_and_stops_nothing(tmp_path, monkeypatch, caplog):
    recorder = record_into(tmp_path / "l")

    def one_round(number):
        recorder.start_round(model(1), asked=["a"], number=number)
        recorder.client_model("a", model(2), 5)
        recorder.end_round()

    def full(*_args, **_kwargs):
        raise OSError(errno.ENOSPC, "No space left on device")

    one_round(1)
    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        one_round(2)
    one_round(3)
    recorder.start_round({"w": torch.tensor([float("nan")])}, asked=["a"], number=4)
    recorder.end_round()
    recorder.close(model(9))
    ledger = Ledger.verify(tmp_path / "l")
    assert [entry.number for entry in ledger.entries] == [1, 3]
    assert [gone.number for gone in ledger.missing] == [2, 4]
    assert "No space left" in ledger.missing[0].reason
    assert "NaN" in ledger.missing[1].reason
    assert ledger.is_closed
    assert "round 2 is not recorded" in caplog.text
    assert any("round 2 is missing" in text for text in ledger.warnings())


def test_rounds_lost_with_their_recorder_are_told_by_the_gap_in_the_numbers(tmp_path):
    for number in (1, 4):
        recorder = record_into(tmp_path / "l", resume=True)
        recorder.start_round(model(1), asked=["a"], number=number)
        recorder.end_round()
        recorder.release()
    told = Ledger.open(tmp_path / "l").warnings()
    assert [text.split(";")[0] for text in told] == [
        "rounds 2 to 3 are missing (the recorder was stopped)",
        "nobody answered in 2 rounds (1, 4)",
    ]


def test_a_round_in_which_everyone_failed_is_a_round(tmp_path):
    recorder = record_into(tmp_path / "l")
    recorder.start_round(model(1), asked=["a", "b"])
    recorder.client_failed("a", "died")
    recorder.end_round()
    entry = Ledger.verify(tmp_path / "l").entries[0]
    assert (entry.answered, entry.failed, entry.silent) == ((), (0,), (1,))


def test_strict_recording_refuses_what_a_live_one_quarantines(tmp_path):
    writer = LedgerWriter.create(tmp_path / "l", aggregation="samples")
    with pytest.raises(ModelError, match="NaN or infinite"):
        writer.record_round(model(1), {"a": Answer(with_value(float("nan")), 5)})
    with pytest.raises(LedgerError, match="was not asked"):
        writer.record_round(model(1), {"a": Answer(model(2), 5)}, asked=["b"])
    with pytest.raises(LedgerError, match="not started"):
        writer.end_round()
    with pytest.raises(LedgerError, match="only clients that answered"):
        writer.record_round(model(1), {"a": Answer(model(2), 5)}, asked=["a", "b"], participants=["b"])
    assert content(tmp_path / "l")["manifest.jsonl"] == b""


MEMORY = """
import resource, sys, torch
from fedworth.recording.recorder import record_into
recorder = record_into(sys.argv[1])
big = {f"w{k}": torch.ones(2_000_000) for k in range(14)}
names = [f"c{k}" for k in range(5)]
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
recorder.start_round(big, asked=names)
for name in names:
    recorder.client_model(name, big, 1)
recorder.end_round()
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
"""


def test_a_round_of_models_of_100_MB_takes_little_memory(tmp_path):
    command = [sys.executable, "-c", MEMORY, str(tmp_path / "l")]
    n_megabytes = int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    assert (tmp_path / "l/rounds/000000.safetensors").stat().st_size > 670_000_000
    assert n_megabytes < 100
    shutil.rmtree(tmp_path / "l")


def test_a_folder_that_everybody_can_write_is_refused(tmp_path):
    write_ledger(tmp_path / "l", is_closed=False)
    (tmp_path / "l").chmod(0o777)
    with pytest.raises(LedgerError, match="everybody can write into this folder; close it with chmod go-w"):
        LedgerWriter.resume(tmp_path / "l")
    (tmp_path / "new").mkdir()
    (tmp_path / "new").chmod(0o777)
    with pytest.raises(LedgerError, match="everybody can write"):
        LedgerWriter.create(tmp_path / "new", aggregation="samples")
    assert list((tmp_path / "new").iterdir()) == []


def test_a_group_that_can_write_and_an_open_parent_are_said(tmp_path, caplog):
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    write_ledger(tmp_path / "open/l", is_closed=False)
    assert len(exposures(tmp_path / "open/l")) == 1
    (tmp_path / "open/l").chmod(0o770)
    with caplog.at_level(logging.WARNING, logger="fedworth"):
        LedgerWriter.resume(tmp_path / "open/l")
    assert "others can write into the ledger (mode 770)" in caplog.text
    assert "everybody can rename or replace the ledger" in caplog.text


def test_a_parent_like_tmp_is_no_exposure(tmp_path):
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o1777)
    write_ledger(tmp_path / "open/l")
    assert exposures(tmp_path / "open/l") == ()


def test_a_model_of_integers_alone_cannot_be_averaged(tmp_path):
    writer = LedgerWriter.create(tmp_path / "l", CLIENTS, aggregation="samples")
    quantised = {"weight": torch.arange(6), "scale": torch.ones(2, dtype=torch.int8)}
    with pytest.raises(ModelError, match="only tensors of integers, which have no weighted mean"):
        writer.record_round(quantised, {"a": Answer(quantised, 5)})


@pytest.mark.parametrize("name", ["rounds", "apart", "manifest.jsonl"])
def test_a_ledger_is_not_written_through_links(tmp_path, name):
    """Resuming removes files that no line commits: those of a linked folder are somebody else's."""
    write_ledger(tmp_path / "l")
    outside = tmp_path / "outside"
    (tmp_path / "l" / name).rename(outside)
    (tmp_path / "l" / name).symlink_to(outside)
    if outside.is_dir():
        (outside / "precious").write_text("mine")
    before = content(tmp_path / "outside") if outside.is_dir() else outside.read_bytes()
    with pytest.raises(LedgerError, match=f"{name}: a link"):
        LedgerWriter.resume(tmp_path / "l")
    assert before == (content(tmp_path / "outside") if outside.is_dir() else outside.read_bytes())
