"""Artefacts are written whole or not at all, owner-only, without pickle, equal bytes for equal content."""

import json
import os
import stat
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


def test_a_partial_file_of_a_killed_run_is_overwritten(tmp_path):
    (tmp_path / f"a{storage.PARTIAL}").write_bytes(b"half of something much longer")
    write_whole(tmp_path / "a", b"new")
    assert (tmp_path / "a").read_bytes() == b"new"
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


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


def test_the_progress_nobody_watches_says_nothing(capsys):
    silent("work", 0, 1)
    assert capsys.readouterr() == ("", "")
