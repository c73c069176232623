"""All of it on disk, or none of it: how every stage writes and reads its artefacts.

Bytes go to a partial file, are flushed to the device, and take their name in one step. A killed run leaves a
`.partial` behind, never half an artefact. A partial file is always a new one: whatever lay at its place (the rest of
a killed run, a link that somebody put there) is removed, never written through. Files are readable by their owner
only: local models leak private data. No pickle is written or read. Equal content gives equal bytes.

Only regular files are read: a pipe or a device is refused, not waited for.
"""

import errno
import io
import json
import math
import os
import stat
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedworth.errors import ArtefactError

PARTIAL = ".partial"
MOST_JSON = 2**28  # bytes of a JSON document

NPY_HEADERS: dict[tuple[int, int], Callable[[Any], tuple[tuple[int, ...], bool, np.dtype[Any]]]] = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}

Place = str | os.PathLike[str]
"""A path as users give it."""

Progress = Callable[[str, int, int], None]
"""Told (what, how many are done, how many in all) as long work goes on."""


def silent(what: str, n_done: int, n_all: int) -> None:
    """The progress that nobody watches."""


def make_folder(folder: Path) -> None:
    """A folder that only its owner can enter; it and those made on the way to it survive a power cut."""
    if folder.is_dir():
        return
    make_folder(folder.parent)
    folder.mkdir(mode=0o700, exist_ok=True)
    flush_folder(folder.parent)


def create_file(path: Path) -> int:
    """The descriptor of a new, empty file that only its owner can read, whatever lay at `path` before."""
    path.unlink(missing_ok=True)
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)


def write_at(descriptor: int, data: memoryview, offset: int) -> None:
    """All of `data` at `offset`; the kernel may take it in pieces."""
    while data:
        n_written = os.pwrite(descriptor, data, offset)
        if n_written == 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        data, offset = data[n_written:], offset + n_written


def write_whole(path: Path, data: bytes) -> None:
    """Put `data` at `path`, whole or not at all."""
    partial = path.with_name(path.name + PARTIAL)
    descriptor = create_file(partial)
    try:
        try:
            write_at(descriptor, memoryview(data), 0)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        partial.rename(path)
    except OSError:
        partial.unlink(missing_ok=True)
        raise
    flush_folder(path.parent)


def flush_folder(folder: Path) -> None:
    """Make a rename or a new file in `folder` survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def is_at(path: Path, descriptor: int) -> bool:
    """Whether `path` still names the file that is open as `descriptor`."""
    try:
        return os.path.samestat(path.stat(follow_symlinks=False), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def open_regular(path: Path) -> io.BufferedReader:
    """A file opened for reading; what is none (a pipe, a device, a folder) is an OSError, and is not waited for."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return open(descriptor, "rb")


def read_bytes(path: Path, most: int) -> bytes:
    """All of a regular file of at most so many bytes."""
    with open_regular(path) as file:
        n_bytes = os.fstat(file.fileno()).st_size
        if n_bytes > most:
            raise OSError(errno.EFBIG, f"{n_bytes:,} bytes long, expected at most {most:,}", str(path))
        return file.read()


def refuse_existing(path: Path, what: str) -> None:
    """Nothing is overwritten: whoever wants a new artefact names a new place."""
    try:
        found = path.exists() or path.is_symlink()
    except OSError as error:
        raise ArtefactError(f"{path}: {what} cannot be written there ({error.strerror})") from None
    if found:
        raise ArtefactError(f"{path}: {what} exists already; name another place, or remove it first")


def refuse_no_place(path: Path, what: str) -> None:
    """A new artefact can be written at `path`: said before anything is measured for it, not after."""
    refuse_existing(path, what)
    folder = path.parent
    if not folder.is_dir():
        raise ArtefactError(f"{path}: {what} cannot be written there, since {folder} is no folder; make it first")
    if not path.name or not os.access(folder, os.W_OK | os.X_OK):
        raise ArtefactError(f"{path}: {what} cannot be written there; name a file in a folder that you can write")


def json_bytes(document: Any) -> bytes:
    """One way to write a document, so that equal documents are equal bytes."""
    text = json.dumps(document, ensure_ascii=False, indent=2, allow_nan=False)
    return (text + "\n").encode(errors="surrogatepass")  # as JSON's reader takes them back


def write_json(path: Path, document: Any) -> None:
    """Write a JSON document, whole or not at all."""
    write_whole(path, json_bytes(document))


def read_json(path: Place) -> Any:
    """The document at `path`, or an error that names it."""
    try:
        return json.loads(read_bytes(Path(path), MOST_JSON))
    except FileNotFoundError:
        raise ArtefactError(f"{path}: no such file") from None
    except (OSError, ValueError, RecursionError) as error:
        raise ArtefactError(f"{path}: not readable as JSON ({error})") from error


def write_npz(path: Place, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Write named arrays, whole or not at all."""
    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=False, **arrays)
    write_whole(Path(path), buffer.getvalue())


def read_npz(path: Place) -> dict[str, NDArray[Any]]:
    """All arrays of the file at `path`, or an error that names it; its sizes are checked before memory is taken."""
    try:
        with open_regular(Path(path)) as stream, zipfile.ZipFile(stream) as archive:
            _check_sizes(archive)
            return {member.filename.removesuffix(".npy"): _array(archive, member) for member in archive.infolist()}
    except FileNotFoundError:
        raise ArtefactError(f"{path}: no such file") from None
    except Exception as error:  # zipfile and numpy raise a dozen kinds on a hostile archive
        raise ArtefactError(f"{path}: not readable as .npz without pickle ({error})") from error


def _check_sizes(archive: zipfile.ZipFile) -> None:
    n_bytes = sum(member.file_size for member in archive.infolist())
    most = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    if n_bytes > most:
        raise ValueError(f"its arrays take {n_bytes:,} bytes, and half of this machine's memory is {most:,}")


def _array(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> NDArray[Any]:
    """One array, if its header asks for no more than the member holds."""
    with archive.open(member) as stream:
        version = np.lib.format.read_magic(stream)
        if version not in NPY_HEADERS:
            raise ValueError(f"{member.filename!r}: version {version} of the format is not known")
        shape, _, dtype = NPY_HEADERS[version](stream)
        found, expected = member.file_size - stream.tell(), math.prod(shape) * dtype.itemsize
    if found != expected and not dtype.hasobject:
        raise ValueError(f"{member.filename!r}: holds {found:,} bytes of numbers, and its header asks for {expected:,}")
    with archive.open(member) as stream:
        array: NDArray[Any] = np.lib.format.read_array(stream, allow_pickle=False)
        stream.read()  # to the end, where the checksum is compared
    return array
