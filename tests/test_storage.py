"""Artefacts are written whole or not at all, owner-only, without pickle, equal bytes for equal content."""

import errno
import fcntl
import json
import os
import secrets
import stat
import subprocess
import sys
import tracemalloc
import zipfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedworth import storage
from fedworth.errors import ArtefactError
from fedworth.storage import (
    json_bytes,
    make_folder,
    read_json,
    read_npz,
    refuse_existing,
    silent,
    write_json,
    write_npz,
    write_whole,
)

documents = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)


def npz_bytes(folder: Path) -> bytes:
    write_npz(folder / "whole.npz", {"a": np.arange(6.0).reshape(2, 3), "b": np.array(["x", "é"])})
    return (folder / "whole.npz").read_bytes()


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_what_is_written_is_read_back_and_nothing_else_is_left(tmp_path):
    write_whole(tmp_path / "a", b"content")
    assert (tmp_path / "a").read_bytes() == b"content"
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_only_the_owner_may_read_what_is_written(tmp_path):
    make_folder(tmp_path / "deep" / "folder")
    write_whole(tmp_path / "deep" / "folder" / "a", b"content")
    assert mode(tmp_path / "deep" / "folder") == 0o700
    assert mode(tmp_path / "deep" / "folder" / "a") == 0o600


def test_a_write_that_fails_leaves_the_old_content_and_no_partial_file(tmp_path, monkeypatch):
    write_whole(tmp_path / "a", b"old")

    def full_disk(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full_disk)
    with pytest.raises(OSError, match="No space left"):
        write_whole(tmp_path / "a", b"new")
    assert (tmp_path / "a").read_bytes() == b"old"
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_a_partial_file_of_a_killed_run_does_no_harm(tmp_path):
    (tmp_path / f"a{storage.PARTIAL}").write_bytes(b"half of something much longer")
    write_whole(tmp_path / "a", b"new")
    assert (tmp_path / "a").read_bytes() == b"new"


WRITER = """
import sys
from pathlib import Path
from fedworth.storage import write_together
for k in range(40):
    write_together(Path(sys.argv[1]), {name: (sys.argv[2] * 20_000).encode() for name in "abc"})
"""


def test_of_two_writers_at_once_the_last_one_wins_whole(tmp_path):
    children = [subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path / "r"), word]) for word in "xy"]
    assert [child.wait(timeout=120) for child in children] == [0, 0]
    assert {path.name for path in (tmp_path / "r").iterdir()} == {"a", "b", "c"}
    assert len({path.read_bytes() for path in (tmp_path / "r").iterdir()}) == 1


def test_a_file_system_without_locks_takes_files_too(tmp_path, monkeypatch):
    def no_locks(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", no_locks)
    assert storage.write_together(tmp_path / "r", {"a": b"1"}) == [tmp_path / "r" / "a"]
    assert (tmp_path / "r" / "a").read_bytes() == b"1"


def test_a_kill_before_the_rename_leaves_no_artefact(tmp_path, monkeypatch):
    def killed(*_: Path) -> Path:
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "rename", killed)
    with pytest.raises(KeyboardInterrupt):
        write_whole(tmp_path / "a", b"new")
    assert not (tmp_path / "a").exists()


def test_an_artefact_that_exists_is_refused_by_name(tmp_path):
    refuse_existing(tmp_path / "new", "a thing")
    (tmp_path / "old").touch()
    with pytest.raises(ArtefactError, match=r"old: a thing exists already; name another place"):
        refuse_existing(tmp_path / "old", "a thing")


@given(documents)
def test_a_document_survives_json(document):
    assert json.loads(json_bytes(document)) == document


def test_equal_documents_are_equal_bytes(tmp_path):
    for name in ("a", "b"):
        write_json(tmp_path / name, {"x": [1, 2.5, None], "é": "ü"})
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    assert read_json(tmp_path / "a") == {"x": [1, 2.5, None], "é": "ü"}


def test_a_document_with_nan_is_not_written(tmp_path):
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_json(tmp_path / "a", {"x": float("nan")})
    assert not (tmp_path / "a").exists()


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", b'{"a": 1} x'])
def test_a_document_that_is_not_json_is_refused_by_name(tmp_path, content):
    (tmp_path / "a.json").write_bytes(content)
    with pytest.raises(ArtefactError, match=r"a\.json: not readable as JSON"):
        read_json(tmp_path / "a.json")


@pytest.mark.parametrize("read", [read_json, read_npz])
def test_a_missing_file_is_refused_by_name(tmp_path, read):
    with pytest.raises(ArtefactError, match=r"nowhere: no such file"):
        read(tmp_path / "nowhere")


def test_arrays_survive_the_disk_with_equal_bytes_on_two_writes(tmp_path):
    first = npz_bytes(tmp_path)
    assert npz_bytes(tmp_path) == first
    arrays = read_npz(tmp_path / "whole.npz")
    assert list(arrays) == ["a", "b"]
    assert np.array_equal(arrays["a"], np.arange(6.0).reshape(2, 3))
    assert arrays["b"].tolist() == ["x", "é"]


def test_an_object_array_is_neither_written_nor_read(tmp_path):
    pickled = np.array([{"run": "me"}], dtype=object)
    with pytest.raises(ValueError, match="allow_pickle"):
        write_npz(tmp_path / "a.npz", {"a": pickled})
    assert not (tmp_path / "a.npz").exists()
    np.savez(tmp_path / "b.npz", a=pickled)
    with pytest.raises(ArtefactError, match=r"b\.npz: not readable as \.npz without pickle"):
        read_npz(tmp_path / "b.npz")


def test_a_bare_pickle_and_a_single_npy_are_refused(tmp_path):
    (tmp_path / "a.npz").write_bytes(b"\x80\x04K\x01.")
    with (tmp_path / "b.npz").open("wb") as file:
        np.save(file, np.zeros(3))
    for name in ("a.npz", "b.npz"):
        with pytest.raises(ArtefactError, match=r"not readable as \.npz without pickle"):
            read_npz(tmp_path / name)


def test_a_truncated_npz_is_refused_wherever_it_ends(tmp_path):
    whole = npz_bytes(tmp_path)
    for length in range(0, len(whole), 7):
        (tmp_path / "cut.npz").write_bytes(whole[:length])
        with pytest.raises(ArtefactError, match=r"cut\.npz"):
            read_npz(tmp_path / "cut.npz")


def test_a_flipped_bit_is_refused_or_changes_no_array(tmp_path):
    """A zip has a checksum of each member, so a flip is found unless it hits a byte that nothing reads."""
    whole = npz_bytes(tmp_path)
    good = read_npz(tmp_path / "whole.npz")
    for position in range(len(whole)):
        damaged = bytearray(whole)
        damaged[position] ^= 1 << (position % 8)
        (tmp_path / "flipped.npz").write_bytes(damaged)
        try:
            found = read_npz(tmp_path / "flipped.npz")
        except ArtefactError:
            continue
        for array, expected in zip(found.values(), good.values(), strict=False):
            assert np.array_equal(array, expected)


def at(path: Path, kind: str) -> Path:
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    else:
        path.mkdir()
    return path


@pytest.mark.parametrize("kind", ["pipe", "device", "folder"])
@pytest.mark.parametrize("read", [read_json, read_npz])
def test_what_is_no_regular_file_is_refused_and_not_waited_for(tmp_path, kind, read):
    with pytest.raises(ArtefactError, match=r"odd: not readable .*not a regular file"):
        read(at(tmp_path / "odd", kind))


def test_a_document_of_terabytes_is_refused_before_it_is_read(tmp_path):
    with (tmp_path / "a.json").open("wb") as file:
        file.truncate(2**40)
    with pytest.raises(ArtefactError, match=r"1,099,511,627,776 bytes long, expected at most"):
        read_json(tmp_path / "a.json")


@pytest.mark.parametrize("content", [b"1" * 5000, b"[" * 100_000])
def test_a_document_that_no_parser_likes_is_refused_by_name(tmp_path, content):
    (tmp_path / "a.json").write_bytes(content)
    with pytest.raises(ArtefactError, match=r"a\.json: not readable as JSON"):
        read_json(tmp_path / "a.json")


def npy(shape: str, data: bytes = b"") -> bytes:
    header = f"{{'descr': '<f8', 'fortran_order': False, 'shape': {shape}}}".ljust(117) + "\n"
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header.encode() + data


@pytest.mark.parametrize("shape", ["(10**12,)", "(1000000000000,)", "(1048576, 1048576)", "(-1,)", "(2,)", "(True,)"])
def test_an_array_whose_header_asks_for_more_than_there_is_takes_no_memory(tmp_path, shape):
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("a\x1b[2J.npy", npy(shape, b"\0" * 24))
    tracemalloc.start()
    with pytest.raises(ArtefactError, match=r"a\.npz: not readable") as caught:
        read_npz(tmp_path / "a.npz")
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < 10_000_000
    assert "\x1b" not in str(caught.value)


def test_a_zip_bomb_is_refused_before_it_is_unpacked(tmp_path, monkeypatch):
    plain = os.sysconf
    monkeypatch.setattr(os, "sysconf", lambda name: 2**12 if name == "SC_PHYS_PAGES" else plain(name))
    with zipfile.ZipFile(tmp_path / "a.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.npy", npy("(4194304,)", bytes(2**25)))
    assert (tmp_path / "a.npz").stat().st_size < 100_000
    with pytest.raises(ArtefactError, match=r"its arrays take 33,554,\d+ bytes, and half of this machine's memory"):
        read_npz(tmp_path / "a.npz")


def test_a_compressed_archive_of_honest_size_is_read(tmp_path):
    np.savez_compressed(tmp_path / "a.npz", a=np.arange(1000.0))
    assert np.array_equal(read_npz(tmp_path / "a.npz")["a"], np.arange(1000.0))


@pytest.mark.parametrize("kind", ["link", "hard link", "pipe", "readable by all"])
def test_whatever_lies_at_the_partial_name_is_replaced_and_never_written_through(tmp_path, monkeypatch, kind):
    monkeypatch.setattr(secrets, "token_hex", lambda _: "guessed")
    other, partial = tmp_path / "other", tmp_path / f"a.guessed{storage.PARTIAL}"
    (tmp_path / "a").symlink_to(other)
    other.write_bytes(b"not yours")
    if kind == "link":
        partial.symlink_to(other)
    elif kind == "hard link":
        partial.hardlink_to(other)
    elif kind == "pipe":
        os.mkfifo(partial)
    else:
        partial.write_bytes(b"")
        partial.chmod(0o666)
    write_whole(tmp_path / "a", b"mine")
    assert other.read_bytes() == b"not yours"
    assert (tmp_path / "a").read_bytes() == b"mine"
    assert mode(tmp_path / "a") == 0o600


def test_a_new_folder_and_its_parents_are_flushed(tmp_path, monkeypatch):
    flushed: list[Path] = []
    monkeypatch.setattr(storage, "flush_folder", flushed.append)
    make_folder(tmp_path / "a" / "b")
    assert flushed == [tmp_path, tmp_path / "a"]


def test_the_progress_nobody_watches_says_nothing(capsys):
    silent("work", 0, 1)
    assert capsys.readouterr() == ("", "")
