"""What was measured once is not measured again: utilities on disk, beside the ledger.

    utilities/<round>-<key>/<batch>.npz      coalitions (packed), utilities, the key, and a sha256 over all of it

The key covers all that decides a utility: the bytes of the round, the test set, what the module computes, the measure,
the weighting with the clients' actual weights, and which oracle measured, on which kind of device (their last bits
differ). A batch is written whole or not at all, so a killed run loses at most the batch it was at. A damaged file is an
error.
"""

import fcntl
import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch.func import functional_call

from fedworth.arrays import Memberships, Utilities
from fedworth.errors import ArtefactError
from fedworth.federation.simulation.models import state_of
from fedworth.federation.task import Task
from fedworth.ledger.ledger import Ledger, RoundEntry
from fedworth.storage import make_folder, read_npz, write_npz
from fedworth.utility.engines import Batch
from fedworth.utility.oracle import Oracle

FORMAT = 2  # 1: the fast oracle's last bits depended on what was measured together
FOLDER = "utilities"
N_PROBED = 4
SHORT = 24

Known = tuple[Memberships, Utilities]
"""Coalitions of a round, and their utilities."""


class TaskOracle(Oracle, Protocol):
    """An oracle that says what it measures on."""

    @property
    def task(self) -> Task:
        """The module and the test set."""

    @property
    def measure(self) -> str:
        """Loss or accuracy."""


@dataclass(frozen=True)
class UtilityCache:
    """The utilities that one oracle has measured on the rounds of one ledger."""

    folder: Path
    oracle: str  # sha256 of what measured them
    servers: tuple[str | None, ...] = ()  # by round: sha256 of the server's rule and state, None for a mean

    def under(self, servers: Sequence[str | None]) -> "UtilityCache":
        """The same cache for coalitions that a server aggregates by a rule of its own."""
        return replace(self, servers=tuple(servers))

    def read(self, entry: RoundEntry, batch: Batch) -> Known:
        """All known utilities of a round, measured with the weights of `batch`."""
        key, n_clients = self._key(entry, batch), len(batch.weights)
        coalitions, utilities = [np.zeros((0, n_clients), dtype=bool)], [np.zeros(0)]
        for path in sorted(self._place(entry, key).glob("*.npz")):
            members, found = _read(path, key)
            coalitions.append(np.pad(members, ((0, 0), (0, n_clients - members.shape[1]))))
            utilities.append(found)
        return np.concatenate(coalitions), np.concatenate(utilities)

    def write(self, entry: RoundEntry, batch: Batch, utilities: Utilities) -> None:
        """Keep what was measured, whole or not at all."""
        key, packed = self._key(entry, batch), np.packbits(batch.coalitions, axis=1)
        n_clients = np.array(batch.coalitions.shape[1])
        place = self._place(entry, key)
        arrays = {"coalitions": packed, "n_clients": n_clients, "utilities": utilities}
        name = hashlib.sha256(packed.tobytes()).hexdigest()[:SHORT]
        try:
            make_folder(place)
            with _alone(place):
                write_npz(place / f"{name}.npz", {**arrays, "key": np.array(key), "sha256": _seal(key, arrays)})
        except OSError as error:
            raise ArtefactError(
                f"{place}: utilities cannot be kept there ({error.strerror}); make room, or use --no-cache"
            ) from error

    def _key(self, entry: RoundEntry, batch: Batch) -> str:
        heard = sorted({*entry.answered, *entry.apart})
        weights = [(client, float(batch.weights[client])) for client in heard]
        server = [name for name in self.servers[entry.round_index : entry.round_index + 1] if name is not None]
        return _sha256([FORMAT, entry.sha256, entry.apart_sha256, self.oracle, batch.weighting, weights, *server])

    def _place(self, entry: RoundEntry, key: str) -> Path:
        return self.folder / f"{entry.round_index:06d}-{key[:SHORT]}"


def utility_cache(ledger: Ledger, oracle: TaskOracle) -> UtilityCache:
    """The cache beside this ledger of what this oracle measures."""
    identity = [type(oracle).__name__, oracle.measure, oracle.task.fingerprint, architecture(oracle.task)]
    device = oracle.task.inputs.device.type
    elsewhere = [] if device == "cpu" else [device]
    return UtilityCache(ledger.folder / FOLDER, _sha256(identity + elsewhere))


def architecture(task: Task) -> str:
    """The sha256 of what the module computes, whatever weights it holds at the moment: its layers and tensors, and its
    logits of a few test samples under weights drawn from a fixed seed."""
    generator, probe = torch.Generator().manual_seed(0), {}
    module, state = task.module.eval(), state_of(task.module)
    for name, tensor in state.items():
        drawn = 0.05 + 0.1 * torch.rand(tensor.shape, generator=generator, dtype=torch.float64)  # variances are > 0
        probe[name] = drawn.to(tensor) if tensor.is_floating_point() else tensor
    with torch.inference_mode():
        logits = functional_call(module, probe, (task.inputs[:N_PROBED],)).to("cpu", torch.float64)
    tensors = [(name, str(tensor.dtype), list(tensor.shape)) for name, tensor in state.items()]
    return _sha256([repr(module), tensors, [f"{logit:.5g}" for logit in logits.reshape(-1).tolist()]])


def _read(path: Path, key: str) -> Known:
    arrays = read_npz(path)
    seal = arrays.pop("sha256", None)
    found = arrays.pop("key", None)
    if seal is None or str(found) != key or str(seal) != str(_seal(key, arrays)):
        raise ArtefactError(
            f"{path}: utilities kept from an earlier run are damaged; remove the file, and they are measured again"
        )
    members = np.unpackbits(arrays["coalitions"], axis=1, count=int(arrays["n_clients"])).astype(bool)
    return members, arrays["utilities"]


def _seal(key: str, arrays: dict[str, NDArray[np.generic]]) -> NDArray[np.str_]:
    digest = hashlib.sha256(key.encode())
    for name in sorted(arrays):
        digest.update(f"{name} {arrays[name].dtype} {arrays[name].shape}".encode() + arrays[name].tobytes())
    return np.array(digest.hexdigest())


def _sha256(document: object) -> str:
    return hashlib.sha256(json.dumps(document, allow_nan=False).encode()).hexdigest()


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Nobody else writes into the folder meanwhile: two runs may observe one ledger."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
