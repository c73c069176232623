"""Measured utilities on disk, beside the ledger, so that nothing is measured twice.

    utilities/<round>-<key>/<name>.npz      coalitions (packed bits), utilities

The key covers the bytes of the round, the test set, the module's layers, tensors and source code, the measure, the
weighting with the clients' weights, the server's rule, and the blocks of test samples. A module may also call functions
that no key covers. So one coalition of every file is measured again before the others are used, and a file that
disagrees is removed. `fedworth verify REPORT` does not read stored utilities.
"""

import fcntl
import hashlib
import inspect
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

from fedworth.arrays import Floats, Memberships
from fedworth.errors import ArtefactError
from fedworth.ledger.ledger import Ledger, Round
from fedworth.names import Weighting
from fedworth.oracle.oracle import Oracle
from fedworth.oracle.server import Server
from fedworth.oracle.weighting import mixtures, round_weights
from fedworth.storage import make_folder, read_npz, write_npz

FORMAT = 5
FOLDER = "utilities"
KEY_LENGTH = 24
TOLERANCE = 1e-5
"""How far a utility may be off when it is measured again, as a part of the file's largest utility."""


@dataclass
class LedgerStore:
    """The utilities stored beside a ledger for one task, measure, weighting and server's rule."""

    ledger: Ledger
    server: Server
    weighting: Weighting

    @property
    def oracle(self) -> Oracle:
        return self.server.oracle

    def load(self, round_: Round) -> tuple[Memberships, Floats]:
        """The stored coalitions of a round, (n, n_clients), and their utilities, (n, n_blocks).

        The largest coalition of every file is measured again. A file that disagrees is removed.
        """
        round_index = round_.entry.round_index
        files = {path: self._read(path) for path in sorted(self._folder(round_index).glob("*.npz"))}
        rows, utilities = np.zeros((0, len(self.ledger.clients)), dtype=bool), np.zeros((0, self.oracle.n_blocks))
        if not files:
            return rows, utilities
        largest = [int(np.argmax(members.sum(axis=1))) for members, _ in files.values()]
        checked = np.array([members[k] for (members, _), k in zip(files.values(), largest, strict=True)])
        weights = round_weights(self.ledger, round_index, self.weighting)
        again = self.oracle.utilities(round_, mixtures(checked, weights, self.weighting))  # (n_files, n_blocks)
        for (path, (members, kept)), k, now in zip(files.items(), largest, again, strict=True):
            if np.abs(now - kept[k]).sum() <= TOLERANCE * np.abs(kept).sum(axis=1).max():
                rows, utilities = np.concatenate([rows, members]), np.concatenate([utilities, kept])
            else:
                path.unlink(missing_ok=True)
        return rows, utilities

    def _read(self, path: Path) -> tuple[Memberships, Floats]:
        """The coalitions and utilities of a file; its name is a hash of them."""
        arrays, n_clients = read_npz(path), len(self.ledger.clients)
        if not {"coalitions", "n_clients", "utilities"} <= arrays.keys():
            raise ArtefactError(f"{path}: not a file of utilities; remove it, and they are measured again")
        packed, utilities = arrays["coalitions"], arrays["utilities"]
        if path.stem != _name(path.parent, packed, utilities):
            raise ArtefactError(f"{path}: damaged; remove the file, and its utilities are measured again")
        members = np.unpackbits(packed, axis=1, count=int(arrays["n_clients"])).astype(bool)
        return np.pad(members, ((0, 0), (0, n_clients - members.shape[1]))), utilities

    def save(self, round_index: int, coalitions: Memberships, utilities: Floats) -> None:
        """Store utilities that were measured."""
        folder, packed = self._folder(round_index), np.packbits(coalitions, axis=1)
        utilities = np.ascontiguousarray(utilities)
        arrays = {"coalitions": packed, "n_clients": np.array(coalitions.shape[1]), "utilities": utilities}
        try:
            make_folder(folder)
            with _alone(folder):  # somebody else may be watching the same ledger
                write_npz(folder / f"{_name(folder, packed, utilities)}.npz", arrays)
        except OSError as error:
            raise ArtefactError(
                f"{folder}: utilities cannot be kept there ({error.strerror}); make room, or use --no-cache"
            ) from error

    @cached_property
    def _of_task(self) -> list[object]:
        """The part of the key that all rounds share: the test set, the module and the blocks."""
        task = self.oracle.task
        blocks = None if task.blocks is None else hashlib.sha256(np.asarray(task.blocks).tobytes()).hexdigest()
        tensors = [(name, str(tensor.dtype), list(tensor.shape)) for name, tensor in task.state.items()]
        return [task.fingerprint, repr(task.module), _source(task.module), tensors, blocks]

    def _folder(self, round_index: int) -> Path:
        entry = self.ledger.entries[round_index]
        weights = round_weights(self.ledger, round_index, self.weighting)
        decides = [
            FORMAT,
            entry.sha256,
            self._of_task,
            type(self.oracle).__name__,
            self.oracle.measure,
            self.weighting,
            [(client, float(weights[client])) for client in sorted(entry.answered)],
            self.server.identity(self.ledger, round_index),
        ]
        key = hashlib.sha256(json.dumps(decides, allow_nan=False).encode()).hexdigest()
        return self.ledger.folder / FOLDER / f"{round_index:06d}-{key[:KEY_LENGTH]}"


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Let one process at a time write to a folder."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _name(folder: Path, packed: NDArray[Any], utilities: NDArray[Any]) -> str:
    """The name of a file of utilities, which covers its place and content."""
    content = hashlib.sha256(folder.name.encode())
    content.update(packed.tobytes())
    content.update(utilities.tobytes())
    return content.hexdigest()[:KEY_LENGTH]


def _source(module: nn.Module) -> list[str]:
    """The source code of the module's own classes; torch's layers are known by their names."""
    classes = {type(part) for part in module.modules() if not type(part).__module__.startswith("torch.")}
    found = []
    for kind in sorted(classes, key=lambda kind: kind.__qualname__):
        try:
            found.append(inspect.getsource(kind))
        except (OSError, TypeError):  # the class was defined in a console
            found.append(kind.__qualname__)
    return found
