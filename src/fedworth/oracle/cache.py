"""What was measured once is not measured again: utilities on disk, beside the ledger.

    utilities/<round>-<key>/<batch>.npz      coalitions (packed), utilities, witness, the key, a sha256 over all of it

The key covers all that decides a utility: the bytes of the round, the test set, the module's layers, source and
settings, the measure, the weighting with the clients' actual weights, and which oracle measured, on which kind of
device (their last bits differ). No key says for sure what a module computes. So a batch carries a witness, the losses
of the round's global model on the whole test set in a few numbers, and is used only if the task of today gives the
same; and of every round that is used, two cells are measured again by the plain loop. What does not agree is measured
anew.

A batch is written whole or not at all, so a killed run loses at most the batch it was at. A damaged file is an error.
"""

import fcntl
import hashlib
import inspect
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import CodeType, FunctionType
from weakref import WeakKeyDictionary

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from fedworth.arrays import Indices, Memberships, Utilities
from fedworth.coalitions import locate
from fedworth.errors import ArtefactError
from fedworth.games.cells import RoundCells
from fedworth.ledger.ledger import Ledger, Model, RoundEntry
from fedworth.names import Weighting
from fedworth.oracle.batches import Batch, Measured, RoundOpener, Witness
from fedworth.oracle.oracle import Oracle, TaskOracle
from fedworth.oracle.recheck import PlainRound, ends, plain_round
from fedworth.storage import make_folder, read_npz, write_npz
from fedworth.task.task import Task

FORMAT = 3  # 1: the fast oracle's last bits depended on what was measured together; 2: without witnesses
FOLDER = "utilities"
N_PROBED, N_DIGITS = 64, 4
SHORT = 24

_SEEN: WeakKeyDictionary[nn.Module, dict[str, Witness]] = WeakKeyDictionary()
"""The witness of every key that this process has measured or checked, for those who look at a growing ledger."""


@dataclass(frozen=True)
class _Kept:
    """A batch as it lies on disk."""

    coalitions: Memberships  # (n_coalitions, n_clients)
    utilities: Utilities  # (n_coalitions,)
    projections: NDArray[np.float64]  # of its witness


@dataclass(frozen=True)
class UtilityCache:
    """The utilities that one oracle has measured on the rounds of one ledger."""

    folder: Path
    identity: str  # sha256 of what measured them
    oracle: TaskOracle = field(repr=False)
    servers: tuple[str | None, ...] = ()  # by round: sha256 of the server's rule and state, None for a mean

    def under(self, servers: Sequence[str | None], oracle: Oracle) -> "UtilityCache":
        """The same cache for coalitions that a server aggregates by a rule of its own, which this oracle measures."""
        return replace(self, servers=tuple(servers), oracle=oracle if isinstance(oracle, TaskOracle) else self.oracle)

    def fill(self, entry: RoundEntry, cells: RoundCells, open_round: RoundOpener, *, is_checked: bool) -> bool:
        """Put what is known of a round's cells in its place, if the round's witness and one cell agree; whether the
        round was opened for it, which is not done if it `is_checked` already by this process."""
        key = self._key(entry, cells.weights, cells.weighting)
        kept = [_read(path, key, len(cells.weights)) for path in sorted(self._place(entry, key).glob("*.npz"))]
        witness = self._seen.get(key) if is_checked else None
        plain = None
        if kept and witness is None:
            plain = plain_round(self.oracle, open_round(entry.round_index))
            witness = plain.witness
        known = [batch for batch in kept if witness is not None and witness.agrees(batch.projections)]
        places, utilities = _located(cells, known)
        if len(places) and witness is not None and (plain is None or _agrees(plain, cells, places, utilities)):
            cells.utilities[places] = utilities
            self._seen[key] = witness
        return plain is not None

    @property
    def _seen(self) -> dict[str, Witness]:
        return _SEEN.setdefault(self.oracle.task.module, {})

    def write(self, entry: RoundEntry, batch: Batch, measured: Measured) -> None:
        """Keep what was measured, whole or not at all."""
        key, packed = self._key(entry, batch.weights, batch.weighting), np.packbits(batch.coalitions, axis=1)
        n_clients = np.array(batch.coalitions.shape[1])
        place = self._place(entry, key)
        witness = self._seen[key] = measured.checked_witness
        arrays = {"coalitions": packed, "n_clients": n_clients, "utilities": measured.utilities}
        arrays |= {"witness": witness.projections}
        name = hashlib.sha256(packed.tobytes() + witness.projections.tobytes()).hexdigest()[:SHORT]
        try:
            make_folder(place)
            with _alone(place):
                write_npz(place / f"{name}.npz", {**arrays, "key": np.array(key), "sha256": _seal(key, arrays)})
        except OSError as error:
            raise ArtefactError(
                f"{place}: utilities cannot be kept there ({error.strerror}); make room, or use --no-cache"
            ) from error

    def _key(self, entry: RoundEntry, weights: NDArray[np.float64], weighting: Weighting) -> str:
        heard = sorted({*entry.answered, *entry.apart})
        counted = [(client, float(weights[client])) for client in heard]
        server = [name for name in self.servers[entry.round_index : entry.round_index + 1] if name is not None]
        return _sha256([FORMAT, entry.sha256, entry.apart_sha256, self.identity, weighting, counted, *server])

    def _place(self, entry: RoundEntry, key: str) -> Path:
        return self.folder / f"{entry.round_index:06d}-{key[:SHORT]}"


def utility_cache(ledger: Ledger, oracle: TaskOracle) -> UtilityCache:
    """The cache beside this ledger of what this oracle measures.

    Args:
        ledger: Where the cache lies beside.
        oracle: What measures.

    Returns:
        What this oracle has measured of this ledger; give it to `observe`.

    Example:
        oracle = fedworth.FastOracle(task)
        utilities = fedworth.observe(ledger, oracle, cache=fedworth.utility_cache(ledger, oracle))
    """
    identity = [type(oracle).__name__, oracle.measure, oracle.task.fingerprint, architecture(oracle.task)]
    device = oracle.task.device.type
    elsewhere = [] if device == "cpu" else [device]
    return UtilityCache(ledger.folder / FOLDER, _sha256(identity + elsewhere), oracle)


def architecture(task: Task) -> str:
    """The sha256 of what the module is, whatever weights it holds at the moment: its layers, tensors, source and
    settings, and its outputs of some test samples under weights drawn from a fixed seed, of both signs."""
    module, state = task.module, task.state
    with torch.inference_mode():
        outputs = task.outputs(_drawn(module, state), slice(0, N_PROBED)).to("cpu", torch.float64)
    numbers = outputs.reshape(-1).numpy()
    signs = np.random.default_rng(0).integers(0, 2, (4, len(numbers))) * 2.0 - 1.0
    tensors = [(name, str(tensor.dtype), list(tensor.shape)) for name, tensor in state.items()]
    probed = [f"{number:.{N_DIGITS}g}" for number in (signs @ numbers).tolist()]
    return _sha256([repr(module), tensors, _sources(module), _settings(module), probed])


def _drawn(module: nn.Module, state: Model) -> Model:
    """Parameters of both signs, so that a ReLU lets some through and not others; buffers, some of them variances,
    positive."""
    generator, drawn = torch.Generator().manual_seed(0), {}
    parameters = {name for name, _ in module.named_parameters(remove_duplicate=False)}
    for name, tensor in state.items():
        uniform = torch.rand(tensor.shape, generator=generator, dtype=torch.float64)
        numbers = uniform - 0.5 if name in parameters else 0.05 + 0.1 * uniform
        drawn[name] = numbers.to(tensor) if tensor.is_floating_point() else tensor
    return drawn


def _sources(module: nn.Module) -> list[str]:
    """The source of every class of module that is not torch's own, where it can be had."""
    found = []
    for kind in sorted({type(part) for part in module.modules()}, key=lambda kind: kind.__qualname__):
        if not kind.__module__.startswith("torch."):
            try:
                found.append(inspect.getsource(kind))
            except (OSError, TypeError):
                continue  # typed in by hand; its witness tells it from another
    return found


def _settings(module: nn.Module) -> list[object]:
    """What is set on a module and its parts beside tensors: a threshold that only some models reach, a function."""
    return [
        [name, key, _said(value)]
        for name, part in module.named_modules()
        for key, value in sorted(vars(part).items())
        if not key.startswith("_") and key != "training"
    ]


def _said(value: object) -> object:
    """A setting in words that are the same in every process; of what has none, its type."""
    if value is None or isinstance(value, bool | int | float | str | torch.dtype):
        return repr(value)
    if isinstance(value, list | tuple):
        return [_said(item) for item in value]
    if isinstance(value, dict):
        return [[str(key), _said(item)] for key, item in value.items()]
    if isinstance(value, FunctionType):
        held = [cell.cell_contents for cell in value.__closure__ or ()]
        return [value.__qualname__, _said(value.__code__), _said(value.__defaults__), _said(held)]
    if isinstance(value, CodeType):
        return [value.co_code.hex(), list(value.co_names), _said(value.co_consts)]
    return [type(value).__qualname__, getattr(value, "__name__", "")]


def _located(cells: RoundCells, known: Sequence[_Kept]) -> tuple[Indices, Utilities]:
    """Which of a round's cells are known, and their utilities."""
    if not known:
        return np.zeros(0, dtype=np.int64), np.zeros(0)
    rows = locate(cells.coalitions, np.concatenate([batch.coalitions for batch in known]))
    places = np.flatnonzero(rows >= 0)
    return places, np.concatenate([batch.utilities for batch in known])[rows[places]]


def _agrees(plain: PlainRound, cells: RoundCells, places: Indices, utilities: Utilities) -> bool:
    """Whether the plain loop gives the same for the known cells at either end."""
    mixtures = cells.batch(places).mixtures()
    return not any(plain.disagreement(mixtures, row, float(utilities[row])) for row in ends(mixtures))


def _read(path: Path, key: str, n_clients: int) -> _Kept:
    arrays = read_npz(path)
    seal = arrays.pop("sha256", None)
    found = arrays.pop("key", None)
    if seal is None or str(found) != key or str(seal) != str(_seal(key, arrays)):
        raise ArtefactError(
            f"{path}: utilities kept from an earlier run are damaged; remove the file, and they are measured again"
        )
    members = np.unpackbits(arrays["coalitions"], axis=1, count=int(arrays["n_clients"])).astype(bool)
    members = np.pad(members, ((0, 0), (0, n_clients - members.shape[1])))
    return _Kept(members, arrays["utilities"], arrays["witness"])


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
