"""Measured utilities on disk, beside the ledger, so that nothing is measured twice.

    utilities/<round>-<key>/<name>.npz      coalitions (packed bits), utilities

The key covers the bytes of the round, the test set, the module's layers and tensors, the measure, the weighting with
the clients' weights, the server's rule, and the blocks of test samples. No key says for sure what a module computes, so
one kept coalition of every round is measured again before the others are believed; if it differs, the round is measured
anew. `fedworth verify REPORT` reads nothing of this.
"""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedworth.arrays import Floats, Memberships
from fedworth.errors import ArtefactError
from fedworth.ledger.ledger import Ledger
from fedworth.names import Weighting
from fedworth.oracle.oracle import TaskOracle
from fedworth.oracle.server import Server
from fedworth.oracle.weighting import mixtures, round_weights
from fedworth.storage import make_folder, read_npz, write_npz

FORMAT = 4
FOLDER = "utilities"
KEY_LENGTH = 24
TOLERANCE = 1e-5
"""Part of the largest kept utility of a round by which the one that is measured again may differ."""


@dataclass
class LedgerStore:
    """The utilities kept beside a ledger for one task, measure, weighting and server's rule."""

    ledger: Ledger
    server: Server
    weighting: Weighting

    @property
    def oracle(self) -> TaskOracle:
        return self.server.oracle

    def load(self, round_index: int) -> tuple[Memberships, Floats]:
        """The kept coalitions of a round, (n, n_clients), and their utilities, (n, n_blocks)."""
        n_clients, n_blocks = len(self.ledger.clients), self.oracle.n_blocks
        rows, utilities = np.zeros((0, n_clients), dtype=bool), np.zeros((0, n_blocks))
        for path in sorted(self._folder(round_index).glob("*.npz")):
            arrays = read_npz(path)
            if not {"coalitions", "n_clients", "utilities"} <= arrays.keys():
                raise ArtefactError(f"{path}: not utilities; remove the file, and they are measured again")
            members = np.unpackbits(arrays["coalitions"], axis=1, count=int(arrays["n_clients"])).astype(bool)
            members = np.pad(members, ((0, 0), (0, n_clients - members.shape[1])))
            if arrays["utilities"].shape != (len(members), n_blocks):
                raise ArtefactError(f"{path}: damaged; remove the file, and its utilities are measured again")
            rows, utilities = np.concatenate([rows, members]), np.concatenate([utilities, arrays["utilities"]])
        if len(rows) and not self._agrees(round_index, rows, utilities):
            return rows[:0], utilities[:0]
        return rows, utilities

    def save(self, round_index: int, coalitions: Memberships, utilities: Floats) -> None:
        """Keep utilities that were measured, whole or not at all."""
        folder, packed = self._folder(round_index), np.packbits(coalitions, axis=1)
        name = hashlib.sha256(packed.tobytes()).hexdigest()[:KEY_LENGTH]
        arrays = {"coalitions": packed, "n_clients": np.array(coalitions.shape[1]), "utilities": utilities}
        try:
            make_folder(folder)
            write_npz(folder / f"{name}.npz", arrays)
        except OSError as error:
            raise ArtefactError(
                f"{folder}: utilities cannot be kept there ({error.strerror}); make room, or use --no-cache"
            ) from error

    def _agrees(self, round_index: int, rows: Memberships, utilities: Floats) -> bool:
        """Whether the largest kept coalition has the same utility today."""
        largest = int(np.argmax(rows.sum(axis=1)))
        weights = round_weights(self.ledger, round_index, self.weighting)
        again = self.oracle.utilities(
            self.ledger.open_round(round_index), mixtures(rows[[largest]], weights, self.weighting)
        )
        scale = np.abs(utilities).sum(axis=1).max()
        return bool(np.abs(again[0] - utilities[largest]).sum() <= TOLERANCE * scale)

    def _folder(self, round_index: int) -> Path:
        entry, task = self.ledger.entries[round_index], self.oracle.task
        weights = round_weights(self.ledger, round_index, self.weighting)
        blocks = None if task.blocks is None else hashlib.sha256(np.asarray(task.blocks).tobytes()).hexdigest()
        tensors = [(name, str(tensor.dtype), list(tensor.shape)) for name, tensor in task.state.items()]
        decides = [
            FORMAT,
            entry.sha256,
            task.fingerprint,
            repr(task.module),
            tensors,
            type(self.oracle).__name__,
            self.oracle.measure,
            self.weighting,
            [(client, float(weights[client])) for client in sorted(entry.answered)],
            self.server.identity(self.ledger, round_index),
            blocks,
        ]
        key = hashlib.sha256(json.dumps(decides, allow_nan=False).encode()).hexdigest()
        return self.ledger.folder / FOLDER / f"{round_index:06d}-{key[:KEY_LENGTH]}"
