"""Atomic files: how every stage writes and reads JSON, arrays and bytes.

A file is written under a partial name of its own, flushed to the device and then renamed, so a killed run leaves a
`.partial` file but never half a file, and of two writers the last one wins. Links are never written through. Only the
owner can read the files, because client models reveal private data. No pickle is written or read. Equal content gives
equal bytes. Only regular files are read: a pipe or a device is an error.
"""

import contextlib
import errno
import fcntl
import io
import json
import math
import os
import secrets
import stat
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedworth.errors import ArtefactError

PARTIAL = ".partial"
MAX_JSON_BYTES = 2**28

NPY_HEADERS: dict[tuple[int, int], Callable[[Any], tuple[tuple[int, ...], bool, np.dtype[Any]]]] = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}

Place = str | os.PathLike[str]
"""A path as users give it."""

Progress = Callable[[str, int, int], None]
"""Progress callback: (what is being done, number done, number in total)."""


def silent(what: str, n_done: int, n_all: int) -> None:
    """Progress callback that does nothing."""


def make_folder(folder: Path) -> None:
    """Make a folder and its parents, for the owner only, and flush them to the device."""
    if folder.is_dir():
        return
    make_folder(folder.parent)
    folder.mkdir(mode=0o700, exist_ok=True)
    flush_folder(folder.parent)


def create_file(path: Path) -> int:
    """Replace whatever is at `path` by a new, empty file for the owner only; returns its descriptor."""
    path.unlink(missing_ok=True)
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)


def write_at(descriptor: int, data: memoryview, offset: int) -> None:
    while data:  # the kernel may write less than it was given
        n_written = os.pwrite(descriptor, data, offset)
        if n_written == 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        data, offset = data[n_written:], offset + n_written


def write_whole(path: Path, data: bytes, *, is_locked: bool = False) -> None:
    """Write a file atomically: all of `data`, or the file stays as it was.

    `is_locked`: nobody else writes the file, so the partial file of a killed run is replaced.
    """
    token = "" if is_locked else f".{secrets.token_hex(4)}"
    partial = path.with_name(f"{path.name}{token}{PARTIAL}")
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


def write_together(folder: Path, files: Mapping[str, bytes]) -> list[Path]:
    """Write files that belong together; if two processes write them at once, all are those of the last one."""
    make_folder(folder)
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        is_locked = False
        with contextlib.suppress(OSError):  # a file system without locks: each file is still complete
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            is_locked = True
        for name, data in files.items():
            write_whole(folder / name, data, is_locked=is_locked)
    finally:
        os.close(descriptor)
    return [folder / name for name in files]


def flush_folder(folder: Path) -> None:
    """Flush a folder, so that renamed and new files in it survive a power cut."""
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
    """Open a regular file for reading; a pipe, a device or a folder is an OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # without waiting for a writer of a pipe
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return open(descriptor, "rb")


def read_bytes(path: Path, max_bytes: int) -> bytes:
    """The content of a regular file of at most `max_bytes`."""
    with open_regular(path) as file:
        n_bytes = os.fstat(file.fileno()).st_size
        if n_bytes > max_bytes:
            raise OSError(errno.EFBIG, f"{n_bytes:,} bytes long, expected at most {max_bytes:,}", str(path))
        return file.read()


def refuse_existing(path: Path, what: str) -> None:
    """Refuse to overwrite a file or folder."""
    try:
        found = path.exists() or path.is_symlink()
    except OSError as error:
        raise ArtefactError(f"{path}: {what} cannot be written there ({error.strerror})") from None
    if found:
        raise ArtefactError(f"{path}: {what} exists already; name another place, or remove it first")


def refuse_unwritable(path: Path, what: str) -> None:
    """Refuse a path where no new file can be written; called before long work, so that its result is not lost."""
    refuse_existing(path, what)
    folder = path.parent
    if not folder.is_dir():
        raise ArtefactError(f"{path}: {what} cannot be written there, because {folder} is not a folder; make it first")
    if not path.name or not os.access(folder, os.W_OK | os.X_OK):
        raise ArtefactError(f"{path}: {what} cannot be written there; name a file in a folder that you can write")


def json_bytes(document: Any) -> bytes:
    """A document as JSON; equal documents give equal bytes."""
    text = json.dumps(document, ensure_ascii=False, indent=2, allow_nan=False)
    return (text + "\n").encode(errors="surrogatepass")  # json.loads reads these back


def write_json(path: Path, document: Any) -> None:
    write_whole(path, json_bytes(document))


def read_json(path: Place) -> Any:
    try:
        return json.loads(read_bytes(Path(path), MAX_JSON_BYTES))
    except FileNotFoundError:
        raise ArtefactError(f"{path}: no such file") from None
    except (OSError, ValueError, RecursionError) as error:
        raise ArtefactError(f"{path}: not readable as JSON ({error})") from error


def write_npz(path: Place, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Write named arrays atomically, without pickle."""
    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=False, **arrays)
    write_whole(Path(path), buffer.getvalue())


def read_npz(path: Place) -> dict[str, NDArray[Any]]:
    """All arrays of an .npz file; their sizes are checked before any memory is allocated."""
    try:
        with open_regular(Path(path)) as stream, zipfile.ZipFile(stream) as archive:
            n_bytes = sum(member.file_size for member in archive.infolist())
            most = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
            if n_bytes > most:
                raise ValueError(f"its arrays take {n_bytes:,} bytes, and half of this machine's memory is {most:,}")
            return {member.filename.removesuffix(".npy"): _array(archive, member) for member in archive.infolist()}
    except FileNotFoundError:
        raise ArtefactError(f"{path}: no such file") from None
    except Exception as error:  # zipfile and numpy raise many kinds of errors on a damaged file
        raise ArtefactError(f"{path}: not readable as .npz without pickle ({error})") from error


def _array(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> NDArray[Any]:
    """One array of an archive; an error if its header announces another size than the archive holds."""
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
        stream.read()  # zipfile compares the checksum at the end
    return array
