"""Reading a ledger needs no lock, and writes nothing into it."""

import errno
import fcntl
import os
import shutil
from pathlib import Path

import pytest

from fedworth.cli.main import main

WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


@pytest.fixture
def ledger(small_run, tmp_path) -> Path:
    """A ledger with links where earlier versions kept utilities and traces."""
    folder = Path(shutil.copytree(small_run / "ledger", tmp_path / "l"))
    (tmp_path / "outside").mkdir()
    for name in ("utilities", "traces"):
        (folder / name).symlink_to(tmp_path / "outside")
    return folder


@pytest.fixture
def read_only(ledger: Path, monkeypatch) -> Path:
    """The ledger on a file system that takes neither bytes nor locks; the rest of the disk is as it was."""

    def guarded(name: str) -> None:
        real = getattr(os, name)

        def call(path, *args, **kwargs):
            is_inside = isinstance(path, str | os.PathLike) and Path(path).absolute().is_relative_to(ledger)
            if is_inside and (name != "open" or (args[0] if args else kwargs["flags"]) & WRITING):
                raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))
            return real(path, *args, **kwargs)

        monkeypatch.setattr(os, name, call)

    def no_locks(*_):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    for name in ("open", "mkdir", "unlink", "rename", "replace", "truncate"):
        guarded(name)
    monkeypatch.setattr(fcntl, "flock", no_locks)
    return ledger


COMMANDS = (
    ["report", "LEDGER", "--out", "OUT"],
    ["watch", "LEDGER", "--once", "--out", "OUT"],
    ["value", "LEDGER", "--method", "fedsv,comfedsv", "--out", "OUT"],
    ["observe", "LEDGER", "--out", "OUT.npz"],
    ["complete", "LEDGER", "--out", "OUT.npz"],
    ["interactions", "LEDGER"],
    ["compare", "LEDGER", "--methods", "fedsv"],
    ["verify", "LEDGER"],
)


@pytest.mark.parametrize("words", COMMANDS, ids=lambda words: words[0])
def test_a_read_only_ledger_on_a_file_system_without_locks_is_read(read_only, tmp_path, words, capsys):
    names = {"LEDGER": str(read_only), "OUT": str(tmp_path / "out"), "OUT.npz": str(tmp_path / "out.npz")}
    assert main([names.get(word, word) for word in words]) == 0, capsys.readouterr().err
    assert list((tmp_path / "outside").iterdir()) == []


def test_a_report_on_it_is_verified(read_only, tmp_path):
    assert main(["report", str(read_only), "--out", str(tmp_path / "out")]) == 0
    assert main(["verify", str(tmp_path / "out"), "--ledger", str(read_only)]) == 0


@pytest.mark.parametrize("command", ["report", "watch"])
def test_the_folder_beside_a_read_only_ledger_is_refused_before_anything_is_measured(
    ledger, monkeypatch, capsys, command
):
    real = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != ledger.parent and real(path, mode))
    monkeypatch.setattr("fedworth.pipeline.report_on.Federation", lambda *_, **__: pytest.fail("measured in vain"))
    assert main([command, str(ledger)]) == 14
    assert "--out" in capsys.readouterr().err
