"""All of it on disk, or none of it: how every stage writes and reads its artefacts.

Bytes go to a partial file, are flushed to the device, and take their name in one step. A killed
run leaves a `.partial` behind, never half an artefact. Files are readable by their owner only:
local models leak private data. No pickle is written or read. Equal content gives equal bytes.
"""

import io
import json
import os
import zipfile
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedworth.errors import ArtefactError

PARTIAL = ".partial"

Progress = Callable[[str, int, int], None]
"""Told (what, how many are done, how many in all) as long work goes on."""


def silent(what: str, n_done: int, n_all: int) -> None:
    """The progress that nobody watches."""


def make_folder(folder: Path) -> None:
    """A folder that only its owner can enter."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)


def write_whole(path: Path, data: bytes) -> None:
    """Put `data` at `path`, whole or not at all."""
    partial = path.with_name(path.name + PARTIAL)
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        with open(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
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


def refuse_existing(path: Path, what: str) -> None:
    """Nothing is overwritten: whoever wants a new artefact names a new place."""
    if path.exists():
        raise ArtefactError(f"{path}: {what} exists already; name another place, or remove it first")


def json_bytes(document: Any) -> bytes:
    """One way to write a document, so that equal documents are equal bytes."""
    text = json.dumps(document, ensure_ascii=False, indent=2, allow_nan=False)
    return (text + "\n").encode()


def write_json(path: Path, document: Any) -> None:
    """Write a JSON document, whole or not at all."""
    write_whole(path, json_bytes(document))


def read_json(path: Path) -> Any:
    """The document at `path`, or an error that names it."""
    try:
        return json.loads(path.read_bytes())
    except FileNotFoundError:
        raise ArtefactError(f"{path}: no such file") from None
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ArtefactError(f"{path}: not readable as JSON ({error})") from error


def write_npz(path: Path, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Write named arrays, whole or not at all."""
    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=False, **arrays)
    write_whole(path, buffer.getvalue())


def read_npz(path: Path) -> dict[str, NDArray[Any]]:
    """All arrays of the file at `path`, or an error that names it."""
    try:
        with path.open("rb") as stream:  # opened here, since numpy leaves a broken archive open
            file = np.load(stream, allow_pickle=False)
            if not isinstance(file, np.lib.npyio.NpzFile):
                raise ValueError("one array without a name, expected an archive of named ones")
            return {name: file[name] for name in file.files}
    except FileNotFoundError:
        raise ArtefactError(f"{path}: no such file") from None
    except (OSError, ValueError, EOFError, RuntimeError, zipfile.BadZipFile, zlib.error) as error:
        raise ArtefactError(f"{path}: not readable as .npz without pickle ({error})") from error
