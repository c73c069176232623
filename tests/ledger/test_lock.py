"""A ledger has one recorder at a time: a second one learns who the first is, and a killed one holds no lock."""

import gc
import json
import logging
import os
import shutil
import signal
import stat
import subprocess
import sys

import pytest

from fedworth.errors import LedgerError
from fedworth.ledger.ledger import Ledger
from fedworth.ledger.lock import LOCK, take_lock
from fedworth.ledger.writer import Answer, LedgerWriter
from fedworth.recording.recorder import record_into
from tests.support.ledgers import model, write_ledger


def snapshot(folder):
    """Every file's name, bytes and time of change."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path): (path.read_bytes(), path.stat().st_mtime_ns) for path in paths}


def one_round(writer):
    writer.record_round(model(1), {"a": Answer(model(2), 3)})


RECORDER = """
import sys
from pathlib import Path
from fedworth.ledger.writer import Answer, LedgerWriter
from tests.support.ledgers import model
writer = LedgerWriter.resume(Path(sys.argv[1]))
writer.record_round(model(1), {"a": Answer(model(2), 3)})
writer.start_round(model(1), asked=["a"])
writer.client_model("a", model(2), 3)
print("recording", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def other(tmp_path):
    """A process that records into the ledger, in the middle of its second round."""
    LedgerWriter.create(tmp_path / "l", aggregation="samples").release()
    command = [sys.executable, "-c", RECORDER, str(tmp_path / "l")]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == "recording\n"
        yield process
        process.kill()


def test_a_second_recorder_is_told_who_the_first_is_and_changes_nothing(tmp_path, other):
    before = snapshot(tmp_path / "l")
    for start in (LedgerWriter.resume, lambda folder: record_into(folder, resume=True)):
        with pytest.raises(LedgerError, match=rf"recorded by process {other.pid} on \S+ since 20\d\d-.*stop that one"):
            start(tmp_path / "l")
    assert snapshot(tmp_path / "l") == before


def test_readers_need_no_lock(tmp_path, other):
    assert Ledger.verify(tmp_path / "l").n_rounds == 1
    assert other.poll() is None


def test_the_lock_of_a_killed_recorder_is_taken_over_and_said(tmp_path, other, caplog):
    os.kill(other.pid, signal.SIGKILL)
    other.wait()
    assert (tmp_path / "l" / LOCK).exists()
    with caplog.at_level(logging.WARNING, logger="fedworth"):
        writer = LedgerWriter.resume(tmp_path / "l")
    assert f"taken over from process {other.pid} on" in caplog.text
    assert json.loads((tmp_path / "l" / LOCK).read_text())["pid"] == os.getpid()
    one_round(writer)
    assert Ledger.verify(tmp_path / "l").n_rounds == 2


def test_a_second_recorder_in_the_same_process_is_told_so(tmp_path):
    first = LedgerWriter.create(tmp_path / "l", aggregation="samples")
    with pytest.raises(LedgerError, match=r"this very process: call release\(\)"):
        LedgerWriter.resume(tmp_path / "l")
    one_round(first)
    assert Ledger.verify(tmp_path / "l").n_rounds == 1


def test_two_that_create_the_same_ledger_at_once_do_not_share_it(tmp_path):
    (tmp_path / "l").mkdir()
    lock = take_lock(tmp_path / "l")
    with pytest.raises(LedgerError, match="is being recorded by"):
        LedgerWriter.create(tmp_path / "l", aggregation="samples")
    assert [path.name for path in (tmp_path / "l").iterdir()] == [LOCK]
    lock.release()


@pytest.mark.parametrize("end", ["close", "release", "forget"])
def test_whoever_is_done_leaves_no_lock(tmp_path, end):
    writer = LedgerWriter.create(tmp_path / "l", aggregation="samples")
    one_round(writer)
    if end == "close":
        writer.close(model(9))
    elif end == "release":
        writer.release()
        writer.release()
        with pytest.raises(LedgerError, match=r"continue with LedgerWriter\.resume"):
            one_round(writer)
    del writer
    gc.collect()
    assert not (tmp_path / "l" / LOCK).exists()
    LedgerWriter.resume(tmp_path / "l")


def test_a_ledger_that_cannot_be_resumed_is_not_kept_locked(tmp_path):
    write_ledger(tmp_path / "l")
    (tmp_path / "l/manifest.jsonl").write_bytes(b"x\n")
    for _ in range(2):
        with pytest.raises(LedgerError, match="its chain does not fit"):
            LedgerWriter.resume(tmp_path / "l")
    assert not (tmp_path / "l" / LOCK).exists()


def test_what_is_no_ledger_is_not_locked(tmp_path):
    with pytest.raises(LedgerError, match="not a ledger"):
        LedgerWriter.resume(tmp_path)
    assert list(tmp_path.iterdir()) == []


def in_a_fork(work):
    """What `work` says, run in a forked child."""
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        try:
            said = work()
        except BaseException as error:
            said = str(error)
        os.write(writer, said.encode())
        os._exit(0)
    os.close(writer)
    with open(reader) as file:
        said = file.read()
    os.waitpid(child, 0)
    return said


def test_a_forked_child_cannot_write_its_parents_ledger_and_the_parent_can(tmp_path):
    writer = LedgerWriter.create(tmp_path / "l", aggregation="samples")
    assert "continue with LedgerWriter.resume" in in_a_fork(lambda: str(one_round(writer)))
    assert "is being recorded by" in in_a_fork(lambda: str(LedgerWriter.resume(tmp_path / "l")))
    one_round(writer)
    assert Ledger.verify(tmp_path / "l").n_rounds == 1


FORKING = """
import os, sys
from pathlib import Path
from fedworth.ledger.writer import LedgerWriter
writer = LedgerWriter.resume(Path(sys.argv[1]))
reader, alive = os.pipe()
if os.fork() == 0:
    os.close(alive)
    print("forked", flush=True)
    os.close(1)
    sys.stdin.read()   # lives until the test ends
    os._exit(0)
os._exit(9)            # the parent dies and lets go of nothing
"""


def test_a_child_that_outlives_its_parent_does_not_keep_the_lock(tmp_path):
    LedgerWriter.create(tmp_path / "l", aggregation="samples").release()
    command = [sys.executable, "-c", FORKING, str(tmp_path / "l")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.read() == "forked\n"
        process.wait()
        one_round(LedgerWriter.resume(tmp_path / "l"))
    assert Ledger.open(tmp_path / "l").n_rounds == 1


def test_a_lock_that_another_host_has_replaced_is_noticed_before_a_commit(tmp_path):
    writer = LedgerWriter.create(tmp_path / "l", aggregation="samples")
    (tmp_path / "l" / LOCK).unlink()
    with pytest.raises(LedgerError, match="another process has taken its lock"):
        one_round(writer)
    assert Ledger.verify(tmp_path / "l").n_rounds == 0


@pytest.mark.parametrize("kind", ["link", "pipe", "folder"])
def test_what_is_no_lock_file_is_refused(tmp_path, kind):
    write_ledger(tmp_path / "l", is_closed=False)
    place = tmp_path / "l" / LOCK
    if kind == "link":
        place.symlink_to(tmp_path / "elsewhere")
    elif kind == "pipe":
        os.mkfifo(place)
    else:
        place.mkdir()
    with pytest.raises(LedgerError, match="cannot be locked"):
        LedgerWriter.resume(tmp_path / "l")
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.parametrize("text", [b"", b"[]", b"{", b'{"pid": "\\u001b[2J", "host": 3}', b"[" * 5000])
def test_a_holder_that_says_nonsense_is_named_without_harm(tmp_path, text):
    writer = LedgerWriter.create(tmp_path / "l", aggregation="samples")
    (tmp_path / "l" / LOCK).write_bytes(text)
    with pytest.raises(LedgerError, match="is being recorded by") as caught:
        LedgerWriter.resume(tmp_path / "l")
    assert str(caught.value).isprintable()
    writer.release()


def test_only_the_owner_can_read_who_records(tmp_path):
    lock = take_lock(tmp_path)
    assert stat.S_IMODE((tmp_path / LOCK).stat().st_mode) == 0o600
    lock.release()
    assert not lock.is_held


def test_an_error_in_naming_a_committed_file_is_said_and_mended_in_the_next_round(tmp_path, monkeypatch, caplog):
    writer = LedgerWriter.create(tmp_path / "l", aggregation="samples")

    def failing(*_args):
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patched:
        patched.setattr(os, "rename", failing)
        one_round(writer)
    assert "000000.safetensors: committed and complete, but still has its partial name (Input/output" in caplog.text
    assert Ledger.verify(tmp_path / "l").unsettled() == ("rounds/000000.safetensors",)
    one_round(writer)
    assert Ledger.verify(tmp_path / "l").unsettled() == ()
    assert (tmp_path / "l/rounds/000000.safetensors").exists()


def test_a_committed_file_that_vanished_is_an_error_at_once(tmp_path, monkeypatch):
    writer = LedgerWriter.create(tmp_path / "l", aggregation="samples")

    def stolen(source, _target):
        os.unlink(source)
        raise FileNotFoundError(2, "No such file or directory")

    with monkeypatch.context() as patched:
        patched.setattr(os, "rename", stolen)
        with pytest.raises(LedgerError, match="was committed and is gone"):
            one_round(writer)


def test_a_file_replaced_while_it_is_written_is_never_committed(tmp_path):
    writer = LedgerWriter.create(tmp_path / "l", aggregation="samples")
    writer.start_round(model(1), asked=["a"])
    partial = tmp_path / "l/rounds/000000.safetensors.partial"
    shutil.copy(partial, tmp_path / "other")
    (tmp_path / "other").rename(partial)
    with pytest.raises(LedgerError, match="removed or replaced while it was written"):
        writer.end_round()
    assert Ledger.verify(tmp_path / "l").n_rounds == 0
