"""Measured utilities that are kept for the next run, in the user's own cache folder.

    $FEDWORTH_CACHE/utilities/<key>.npz      coalitions of a round's participants (packed bits), utilities

The folder is `fedworth` in the user's caches (`~/.cache/fedworth` on Linux) unless FEDWORTH_CACHE names another.
Nothing is read from the folder of a ledger, so whoever sends one cannot decide what is measured on it.

The key covers the bytes of the round, the test set, the module's layers and their settings, the measures, the weighting
with the clients' weights, the server's rule, the blocks of test samples and the versions. Only a task that is known to
be the same is answered: code of the user's own, as a loss, a measure, a rule or a layer, can read anything, so such a
task is measured again. A file that is damaged, or that cannot be written, only costs time.

Where coalitions are sampled, the outputs are kept in the same folder, so that interrupted sampling continues where it
stopped: the draws of a game follow from the seed, so a second run asks for the same outputs in the same order. They are
kept for every task. In place of a hash of the user's own code, some answers are measured again on a few samples, and if
one differs, nothing that was kept is used.
"""

import hashlib
import json
import logging
import os
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from types import BuiltinFunctionType, FunctionType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from fedworth.arrays import Floats, Indices, Memberships
from fedworth.errors import ArtefactError
from fedworth.ledger.ledger import Ledger
from fedworth.ledger.model import tensor_bytes
from fedworth.names import Weighting
from fedworth.oracle.oracle import also_of, n_columns_of
from fedworth.oracle.server import Server
from fedworth.oracle.weighting import round_weights
from fedworth.provenance import SOFTWARE
from fedworth.storage import make_folder, read_npz, write_npz
from fedworth.task.losses import name_of
from fedworth.task.task import Task

FORMAT = 8
FOLDER_VARIABLE = "FEDWORTH_CACHE"
KNOWN_PACKAGES = ("torch", "fedworth")  # their code changes with their versions only
OF_STATE = {"_parameters", "_buffers", "_modules", "training"}  # described by name, or set before every evaluation

MOST_BYTES = 1 << 24
"""Outputs of a round that are kept; a larger round is sampled again from there on."""

SAVED_EVERY = 10.0
"""Seconds after which new outputs are written."""

N_COMPARED, TOLERANCE = 16, 1e-4
"""Samples on which a kept answer is measured again, and how far it may be, as a part of the largest output."""

Kept = tuple[Memberships, Floats]
"""Coalitions of a round's participants, (n, n_participants), and their utilities, (n, n_columns)."""

Outputs = dict[bytes, torch.Tensor]
"""The outputs of each request: a hash of the coalition and the samples."""

MeasureOutputs = Callable[[Memberships, Sequence[Indices]], Iterator[torch.Tensor]]
"""Gives the outputs of each coalition on its own samples."""

log = logging.getLogger("fedworth")


def cache_folder() -> Path:
    """Where utilities are kept."""
    named = os.environ.get(FOLDER_VARIABLE)
    if named:
        return Path(named) / "utilities"
    import pooch

    return Path(pooch.os_cache("fedworth")) / "utilities"


@dataclass
class Session:
    """What one process remembers of a ledger that grows: the rounds it has read, and the utilities it has measured.

    The task must stay as it is meanwhile; another one needs another session.
    """

    task: Task
    utilities: dict[str, Kept] = field(default_factory=dict)
    outputs: dict[str, Outputs] = field(default_factory=dict)
    ledger: Ledger | None = None

    def remember(self, ledger: Ledger) -> Ledger:
        """The ledger as it is now; rounds that were read before are not read again."""
        self.ledger = ledger if self.ledger is None else ledger.with_rounds_of(self.ledger)
        return self.ledger


@dataclass
class LedgerStore:
    """The utilities that are known of a ledger for one task, measure, weighting and server's rule."""

    ledger: Ledger
    server: Server
    weighting: Weighting
    session: Session | None = None
    is_clipped: bool = False  # every update at its round's median length

    def __post_init__(self) -> None:
        self.oracle = self.server.oracle
        self._measures = self.oracle.measure, *also_of(self.oracle)

    def load(self, round_index: int) -> Kept:
        """The known coalitions of a round's participants, and their utilities."""
        n_members, n_columns = len(self.ledger.participants(round_index)), n_columns_of(self.oracle)
        key = self._key(round_index)
        known = None if self.session is None else self.session.utilities.get(key)
        if known is None and self._identity is not None:
            known = _read(cache_folder() / f"{key}.npz", key, n_members, n_columns)
        return known or (np.zeros((0, n_members), dtype=bool), np.zeros((0, n_columns)))

    def save(self, round_index: int, coalitions: Memberships, utilities: Floats) -> None:
        """Keep all that is known of a round."""
        key = self._key(round_index)
        if self.session is not None:
            self.session.utilities[key] = coalitions, utilities
        if self._identity is None:
            return
        _write(key, {"key": np.array(key), "coalitions": np.packbits(coalitions, axis=1), "utilities": utilities})

    def outputs(self, round_index: int, *, is_predicted: bool = False) -> "KeptOutputs":
        """The outputs that are kept of a round; with predicted models these depend on all rounds."""
        state = [(name, list(tensor.shape)) for name, tensor in self.oracle.task.state.items()]
        chain = self.ledger.chain if is_predicted else None
        # No measure decides what a module gives, so values by another measure use the same outputs
        decides = ["outputs", self._of_round(round_index), SOFTWARE, torch.__version__, state, chain]
        return KeptOutputs(_hash(decides), self.session)

    @cached_property
    def _identity(self) -> str | None:
        known = all(_is_known_class(kind) for kind in self._oracles)
        return known_identity(self.oracle.task, self._measures) if known else None

    @cached_property
    def _oracles(self) -> list[type]:
        """The classes of the oracle and of those that it asks."""
        found: list[type] = []
        oracle: Any = self.oracle
        while oracle is not None:
            found.append(type(oracle))
            oracle = getattr(oracle, "inner", None) or getattr(oracle, "oracle", None)
        return found

    def _key(self, round_index: int) -> str:
        return _hash([self._of_round(round_index), self._measures])

    def _of_round(self, round_index: int) -> list[Any]:
        """What decides the models of a round's coalitions, and what a module makes of them."""
        weights = round_weights(self.ledger, round_index, self.weighting)
        return [
            FORMAT,
            self.ledger.entries[round_index].sha256,
            self._of_test_set,
            self._identity,
            str(self.oracle.task.device),
            [kind.__name__ for kind in self._oracles],
            self.weighting,
            [(client, float(weights[client])) for client in self.ledger.participants(round_index)],
            self.server.identity(self.ledger, round_index),
            self.is_clipped,
        ]

    @cached_property
    def _of_test_set(self) -> list[str | None]:
        task = self.oracle.task
        blocks = None if task.blocks is None else hashlib.sha256(np.asarray(task.blocks).tobytes()).hexdigest()
        return [task.fingerprint, blocks]


class ChangedModuleError(Exception):
    """Kept outputs that the module does not give any more."""


@dataclass
class KeptOutputs:
    """The outputs that are known of one round's coalitions."""

    key: str
    session: Session | None
    _n_answered: int = field(default=0, repr=False)
    _n_bytes: int = field(default=0, repr=False)
    _saved: tuple[int, float] = field(default=(0, 0.0), repr=False)  # how many, and when

    @cached_property
    def known(self) -> Outputs:
        """What was kept so far; read with the first request."""
        found = self._load()
        self._n_bytes, self._saved = sum(each.nbytes for each in found.values()), (len(found), time.monotonic())
        return found

    def outputs(
        self, coalitions: Memberships, which: Sequence[Indices], measure: MeasureOutputs
    ) -> Iterator[torch.Tensor]:
        """The outputs of each coalition on its own samples; those that are not known are measured."""
        keys = [_request(row, samples) for row, samples in zip(coalitions, which, strict=True)]
        missing = [place for place, key in enumerate(keys) if key not in self.known]
        fresh = measure(coalitions[missing], [which[place] for place in missing])
        is_missing = set(missing)
        for place, key in enumerate(keys):
            if place in is_missing:
                found = next(fresh)
                self._add(key, found)
            else:
                found = self.known[key]
                self._compare(found, coalitions[place : place + 1], which[place], measure)
            yield found

    def _add(self, key: bytes, found: torch.Tensor) -> None:
        if self._n_bytes + found.nbytes > MOST_BYTES or found.dtype not in (torch.float32, torch.float64):
            return
        self.known[key] = found
        self._n_bytes += found.nbytes
        if time.monotonic() - self._saved[1] > SAVED_EVERY:
            self.save()

    def _compare(self, found: torch.Tensor, row: Memberships, samples: Indices, measure: MeasureOutputs) -> None:
        """Measure the 1st, 2nd, 4th, 8th … answer again, on a few samples."""
        self._n_answered += 1
        if self._n_answered & (self._n_answered - 1):
            return
        some = samples[:N_COMPARED]
        (again,) = measure(row, [some])
        scale = float(again.abs().max()) if again.numel() else 0.0
        if not torch.allclose(found[: len(some)], again, rtol=0, atol=TOLERANCE * scale, equal_nan=True):
            raise ChangedModuleError

    def forget(self) -> None:
        """Discard what was kept."""
        self.known, self._n_answered, self._n_bytes, self._saved = {}, 0, 0, (0, time.monotonic())

    def _load(self) -> Outputs:
        if self.session is not None and self.key in self.session.outputs:
            return dict(self.session.outputs[self.key])
        try:
            arrays = read_npz(cache_folder() / f"{self.key}.npz")
            requests, outputs, ends = arrays["requests"], arrays["outputs"], np.cumsum(arrays["lengths"])
            if str(arrays["key"]) != self.key or ends[-1] != len(outputs):
                return {}
            parts = np.split(outputs, ends[:-1])
            return {row.tobytes(): torch.from_numpy(part) for row, part in zip(requests, parts, strict=True)}
        except (ArtefactError, KeyError, ValueError, TypeError, IndexError):
            return {}

    def save(self) -> None:
        """Write what is known, if there is more of it than before."""
        if len(self.known) == self._saved[0]:
            return
        self._saved = len(self.known), time.monotonic()
        if self.session is not None:
            self.session.outputs[self.key] = dict(self.known)
        arrays = {
            "key": np.array(self.key),
            "requests": np.frombuffer(b"".join(self.known), np.uint8).reshape(len(self.known), -1),
            "lengths": np.array([len(found) for found in self.known.values()]),
            "outputs": torch.cat(list(self.known.values())).numpy(),
        }
        _write(self.key, arrays)


def _request(row: NDArray[np.bool_], samples: Indices) -> bytes:
    return hashlib.sha256(np.packbits(row).tobytes() + np.asarray(samples, np.int64).tobytes()).digest()[:16]


def _write(key: str, arrays: Mapping[str, NDArray[Any]]) -> None:
    try:
        make_folder(cache_folder())
        write_npz(cache_folder() / f"{key}.npz", arrays)
    except OSError as error:
        log.info("fedworth: measurements are not kept for the next run (%s)", error)


def _read(path: Path, key: str, n_members: int, n_columns: int) -> Kept | None:
    """The utilities in a file, or None if it is absent, damaged or of something else."""
    try:
        arrays = read_npz(path)
        coalitions = np.unpackbits(arrays["coalitions"], axis=1, count=n_members).astype(bool)
        utilities = arrays["utilities"]
        shape = len(coalitions), n_columns
        if str(arrays["key"]) != key or utilities.dtype != np.float64 or utilities.shape != shape:
            return None
    except (ArtefactError, KeyError, ValueError, TypeError):
        return None
    return (coalitions, utilities) if np.isfinite(utilities).all() else None


def known_identity(task: Task, measures: Collection[str]) -> str | None:
    """What a task computes beside its test set, as a hash; None if code of the user's own takes part in it."""
    is_own = not isinstance(task.loss, str) or (task.measure is not None and name_of(task.measure) in measures)
    try:
        if is_own or (task.rule is not None and not _is_known_class(type(task.rule))):
            return None
        described = [SOFTWARE, torch.__version__, _layers(task.module), _tensors(task)]
        return _hash(described)
    except TypeError:  # a part whose effect on the outputs cannot be described
        return None


def _hash(described: Any) -> str:
    return hashlib.sha256(json.dumps(described, default=_described).encode()).hexdigest()


def _layers(module: nn.Module) -> list[Any]:
    """Name, class and settings of every part of a module."""
    found = []
    for name, part in module.named_modules(remove_duplicate=False):
        settings = {key: value for key, value in vars(part).items() if key not in OF_STATE}
        found.append([name, _described(type(part)), settings])
    return found


def _tensors(task: Task) -> list[Any]:
    """Every tensor of a module: its first name, dtype, shape, and its numbers if models do not set them."""
    first: dict[int, str] = {}
    exchanged, found = task.state.keys(), []
    named = [*task.module.named_parameters(remove_duplicate=False), *task.module.named_buffers(remove_duplicate=False)]
    for name, tensor in named:
        same = first.setdefault(id(tensor), name)
        numbers = None if name in exchanged else tensor
        found.append([name, same, str(tensor.dtype), list(tensor.shape), numbers])
    return found


def _is_known_class(kind: type) -> bool:
    return kind.__module__.partition(".")[0] in KNOWN_PACKAGES and _named(kind.__module__, kind.__qualname__) is kind


def _named(module: str, name: str) -> Any:
    """What a module has under a name that may contain dots."""
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    return found


def _described(value: Any) -> Any:
    """A setting of a layer that is no plain data; a TypeError if its effect is not known."""
    if isinstance(value, type) and _is_known_class(value):
        return f"{value.__module__}.{value.__qualname__}"
    if isinstance(value, torch.dtype | torch.device):
        return str(value)
    if type(value) is torch.Tensor or type(value) is nn.Parameter:
        return [str(value.dtype), list(value.shape), hashlib.sha256(tensor_bytes(value)).hexdigest()]
    if isinstance(value, FunctionType | BuiltinFunctionType):
        module = value.__module__ or ""
        if module.partition(".")[0] == "torch" and _named(module, value.__qualname__) is value:
            return f"{module}.{value.__qualname__}"
    if isinstance(value, set | frozenset) and all(isinstance(one, str) for one in value):
        return sorted(value)
    raise TypeError(f"{type(value).__name__} is not known")
