"""Data files are found, fetched and checked; nothing here touches the network."""

import hashlib
import io
import tarfile
from dataclasses import replace
from pathlib import Path

import pooch
import pytest

from fedworth.errors import DataError, UsageError
from fedworth.simulation.download import (
    FOLDER_VARIABLE,
    PUBLISHED,
    check_sha256,
    data_files,
    data_folder,
)

CONTENT = {"one.gz": b"first", "two.gz": b"second"}


def sums(content):
    return {name: hashlib.sha256(data).hexdigest() for name, data in content.items()}


@pytest.fixture(autouse=True)
def offline(monkeypatch):
    """No network: what fetches, fails."""

    def refuse(*_args, **_options):
        raise ConnectionError("no route to host")

    monkeypatch.setattr(pooch, "retrieve", refuse)
    monkeypatch.delenv(FOLDER_VARIABLE, raising=False)


@pytest.fixture
def toy(monkeypatch):
    """A published data set of two tiny files."""
    published = replace(PUBLISHED["mnist"], home="https://example.org/", folder="toy", sha256=sums(CONTENT))
    monkeypatch.setitem(PUBLISHED, "toy", published)
    return published


def lay_out(root, content=CONTENT):
    (root / "toy").mkdir(parents=True)
    for name, data in content.items():
        (root / "toy" / name).write_bytes(data)


def test_the_folder_given_goes_before_the_variable_and_the_variable_before_the_cache(monkeypatch, tmp_path):
    assert data_folder() == Path(pooch.os_cache("fedworth"))
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path / "named"))
    assert data_folder() == tmp_path / "named"
    assert data_folder(tmp_path / "given") == tmp_path / "given"


def test_an_empty_variable_is_no_folder(monkeypatch):
    monkeypatch.setenv(FOLDER_VARIABLE, "")
    assert data_folder() == Path(pooch.os_cache("fedworth"))


@pytest.mark.usefixtures("toy")
def test_files_that_are_there_are_found_in_order(monkeypatch, tmp_path):
    lay_out(tmp_path)
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    assert data_files("toy") == (tmp_path / "toy/one.gz", tmp_path / "toy/two.gz")


@pytest.mark.usefixtures("toy")
def test_missing_files_are_named_with_where_they_were_looked_for_and_what_to_do(tmp_path):
    lay_out(tmp_path, {"one.gz": CONTENT["one.gz"]})
    with pytest.raises(DataError) as caught:
        data_files("toy", tmp_path)
    message = str(caught.value)
    assert f"data set 'toy': toy/two.gz not found in {tmp_path}" in message
    assert "https://example.org/ failed (ConnectionError: no route to host)" in message
    assert "set FEDWORTH_DATA to a folder that holds toy/one.gz, toy/two.gz" in message


@pytest.mark.parametrize("name", ["mnist", "fashion-mnist", "cifar10"])
def test_a_published_data_set_that_is_nowhere_is_a_data_error(tmp_path, name):
    with pytest.raises(DataError, match=f"data set '{name}': .* not found in .*{FOLDER_VARIABLE}"):
        data_files(name, tmp_path)


def test_an_unknown_published_data_set_is_refused(tmp_path):
    with pytest.raises(UsageError, match="unknown published data set 'cifar'"):
        data_files("cifar", tmp_path)


@pytest.mark.parametrize("broken", [b"secon", b"Second", b""])
@pytest.mark.usefixtures("toy")
def test_a_file_cut_short_or_altered_is_named_with_both_sums(tmp_path, broken):
    lay_out(tmp_path, {**CONTENT, "two.gz": broken})
    with pytest.raises(DataError) as caught:
        data_files("toy", tmp_path)
    message = str(caught.value)
    assert str(tmp_path / "toy/two.gz") in message
    assert f"sha256 is {hashlib.sha256(broken).hexdigest()}" in message
    assert f"expected {hashlib.sha256(b'second').hexdigest()}" in message


def test_a_file_with_the_right_sum_passes(tmp_path):
    file = tmp_path / "file"
    file.write_bytes(b"first")
    check_sha256(file, hashlib.sha256(b"first").hexdigest())


@pytest.mark.usefixtures("toy")
def test_only_absent_files_are_fetched_into_the_folder_and_in_silence(monkeypatch, tmp_path, capfd):
    lay_out(tmp_path, {"one.gz": CONTENT["one.gz"]})
    asked = []

    def retrieve(url, known_hash, fname, path):
        asked.append((url, known_hash))
        pooch.get_logger().info("Downloading data")
        (path / fname).write_bytes(CONTENT[fname])
        return str(path / fname)

    monkeypatch.setattr(pooch, "retrieve", retrieve)
    assert [path.read_bytes() for path in data_files("toy", tmp_path)] == [b"first", b"second"]
    assert asked == [("https://example.org/two.gz", f"sha256:{sums(CONTENT)['two.gz']}")]
    assert capfd.readouterr() == ("", "")


@pytest.mark.usefixtures("toy")
def test_a_fetched_file_with_another_sum_is_a_data_error(monkeypatch, tmp_path):
    def retrieve(*_args, **_options):
        raise ValueError("hash of downloaded file does not match")

    monkeypatch.setattr(pooch, "retrieve", retrieve)
    with pytest.raises(DataError, match="ValueError: hash of downloaded file"):
        data_files("toy", tmp_path)


def write_tar(path, content):
    with tarfile.open(path, "w:gz") as tar:
        for name, data in content.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return path


def test_an_archive_is_fetched_unpacked_and_not_kept(monkeypatch, tmp_path, toy):
    monkeypatch.setitem(PUBLISHED, "toy", replace(toy, archive_hash="md5:0"))

    def retrieve(url, known_hash, fname, path):
        assert (url, known_hash) == ("https://example.org/", "md5:0")
        return str(write_tar(Path(path) / fname, {f"toy/{name}": data for name, data in CONTENT.items()}))

    monkeypatch.setattr(pooch, "retrieve", retrieve)
    assert [path.read_bytes() for path in data_files("toy", tmp_path / "new")] == [b"first", b"second"]
    assert sorted(path.name for path in (tmp_path / "new").rglob("*")) == ["one.gz", "toy", "two.gz"]


def test_an_archive_without_the_file_is_refused(monkeypatch, tmp_path, toy):
    monkeypatch.setitem(PUBLISHED, "toy", replace(toy, archive_hash="md5:0"))
    monkeypatch.setattr(pooch, "retrieve", lambda *_, path, **__: str(write_tar(Path(path) / "x.gz", {"a/b": b""})))
    with pytest.raises(DataError, match=r"data set 'toy': .*filename 'toy/one\.gz' not found"):
        data_files("toy", tmp_path)


def test_every_sum_is_a_sha256_and_every_data_set_lies_in_its_own_folder():
    for published in PUBLISHED.values():
        assert all(len(bytes.fromhex(sha256)) == 32 for sha256 in published.files.values())
    assert len({published.folder for published in PUBLISHED.values()}) == len(PUBLISHED)
