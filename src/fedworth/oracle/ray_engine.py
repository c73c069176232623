"""The Ray engine: batches are measured by the workers of a Ray cluster, on this machine or on many.

The oracle and each round's models go to Ray's object store once; workers need fedworth installed and nothing else: no
ledger, no data set, no shared file system. A batch whose worker is lost is given to another. Batches are the local
engine's and so is the oracle, so the bits are too, as long as the machines' processors are of one kind.

Ray serves on the network without asking who is there. A cluster of this engine's own stays on the loopback address,
which takes a setting that Ray has for desktops: without it, Ray listens on every address whatever it is told. A cluster
at an address must be kept where only its owner can reach it, since models leak private data.
"""

import os
import socket
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from fedworth.errors import UsageError, UtilityError
from fedworth.ledger.ledger import Model, Round, RoundEntry
from fedworth.oracle.batches import Batch, Measured, RoundOpener
from fedworth.oracle.fast import FastOracle, n_processors
from fedworth.oracle.oracle import Oracle
from fedworth.oracle.recheck import measured

LOOPBACK = "127.0.0.1"
LOOPBACK_ONLY = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
QUIET = {"RAY_USAGE_STATS_ENABLED": "0"}
RETRIES = 20
SECONDS_TO_ANSWER = 5.0
WAITING_PER_WORKER = 2
"""Batches under way for each processor: enough to keep it busy, few enough to bound what the object store holds."""

Stored = dict[str, tuple[str, tuple[int, ...], Any]]
"""A model as arrays: each tensor's type, shape and bytes."""

StoredRound = tuple[RoundEntry, dict[tuple[str, int], Stored]]


@dataclass(frozen=True)
class RayEngine:
    """A cluster at `address`, or one of `n_workers` processes on this machine (default: one a processor)."""

    address: str | None = None
    n_workers: int | None = None

    def measure(
        self, oracle: Oracle, open_round: RoundOpener, batches: Iterable[Batch]
    ) -> Iterator[tuple[Batch, Measured]]:
        """Each batch with its utilities, as workers finish them."""
        with Cluster(self) as ray:
            work = _Work(ray, ray.put(_for_workers(oracle)), open_round)
            most = max(1, int(ray.cluster_resources().get("CPU", 1))) * WAITING_PER_WORKER
            for batch in batches:
                while len(work.waiting) >= most:
                    yield work.finished()
                work.give(batch)
            while work.waiting:
                yield work.finished()


def load_ray(address: str | None) -> Any:
    """Ray, told to be quiet and (for a cluster of our own) to keep to itself; it reads this when first imported."""
    for name, setting in {**QUIET, **(LOOPBACK_ONLY if address is None else {})}.items():
        os.environ.setdefault(name, setting)
    try:
        import ray
    except ImportError as error:
        raise UsageError("the ray engine needs ray: pip install 'fedworth[ray]'") from error
    return ray


@dataclass
class Cluster:
    """A connection to Ray, closed when the work is over if it was opened for it."""

    engine: RayEngine
    ray: Any = None
    is_ours: bool = False

    def __enter__(self) -> Any:
        self.ray = load_ray(self.engine.address)
        if self.engine.address is not None:
            _refuse_silent(self.engine.address)
        if not self.ray.is_initialized():
            self._connect()
            self.is_ours = True
        return self.ray

    def _connect(self) -> None:
        try:
            self.ray.init(**self._settings())
        except (OSError, RuntimeError, ValueError, self.ray.exceptions.RayError) as error:
            raise _unreachable(self.engine.address or "this machine", str(error)) from error

    def __exit__(self, *_: object) -> None:
        if self.is_ours:
            self.ray.shutdown()

    def _settings(self) -> dict[str, Any]:
        quiet = {"include_dashboard": False, "log_to_driver": False, "logging_level": "ERROR"}
        if self.engine.address is not None:
            return {"address": self.engine.address, **{k: v for k, v in quiet.items() if k != "include_dashboard"}}
        n_workers = self.engine.n_workers or n_processors()
        return {"address": "local", "num_cpus": n_workers, "_node_ip_address": LOOPBACK, **quiet}


def _refuse_silent(address: str) -> None:
    """Try the address first: Ray itself waits minutes for a host that does not answer. `auto` and the like are left to
    Ray."""
    host, _, port = address.rpartition("://")[2].rpartition(":")
    if not host or not port.isdigit():
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), SECONDS_TO_ANSWER).close()
    except (OSError, OverflowError) as error:
        raise _unreachable(address, str(error)) from error


def _unreachable(where: str, reason: str) -> UsageError:
    first = reason.strip().partition("\n")[0]
    return UsageError(
        f"Ray cluster at {where}: cannot be reached ({first}); start one there (ray start --head), name another with "
        "--address HOST:PORT, or leave --engine ray out"
    )


def _for_workers(oracle: Oracle) -> Oracle:
    """The same oracle on one thread, whoever made it: there are as many workers as processors."""
    return FastOracle(oracle.task, oracle.measure, n_threads=1) if isinstance(oracle, FastOracle) else oracle


@dataclass
class _Work:
    """Batches given to workers, and the one round whose models are being handed out."""

    ray: Any
    oracle: Any  # a reference into the object store
    open_round: RoundOpener
    waiting: dict[Any, Batch] = field(default_factory=dict)
    round_index: int = -1
    models: Any = None  # a reference into the object store

    def give(self, batch: Batch) -> None:
        """Hand a batch to whichever worker is free first; its round's models are stored when first needed."""
        if batch.round_index != self.round_index:
            self.models = self.ray.put(_stored(self.open_round(batch.round_index)))
            self.round_index = batch.round_index
        remote = self.ray.remote(_measure).options(num_cpus=1, max_retries=RETRIES)
        task = remote.remote([self.oracle], self.models, batch)
        self.waiting[task] = batch

    def finished(self) -> tuple[Batch, Measured]:
        """The next batch that is done, and its utilities."""
        (done,), _ = self.ray.wait(list(self.waiting), num_returns=1)
        batch = self.waiting.pop(done)
        try:
            found: Measured = self.ray.get(done)
        except self.ray.exceptions.RayTaskError as error:
            raise error.cause from None
        except self.ray.exceptions.RayError as error:
            raise _lost(batch, error) from error
        return batch, found


def _lost(batch: Batch, error: Exception) -> UtilityError:
    reason = str(error).strip().partition("\n")[0]
    return UtilityError(
        f"round {batch.round_index}: the Ray workers that measured {len(batch.cells):,} of its coalitions were lost, "
        f"after {RETRIES} retries ({type(error).__name__}: {reason}); give workers more memory, or use --engine local"
    )


_ORACLES: dict[str, Oracle] = {}
"""The oracle of this worker, kept from batch to batch: it remembers how it goes about its module."""


def _measure(oracle: list[Any], models: StoredRound, batch: Batch) -> Measured:
    """One batch, in a worker; what arrives in a list is a reference, and is fetched once a worker."""
    import ray

    (reference,) = oracle
    if reference.hex() not in _ORACLES:
        _ORACLES.clear()
        _ORACLES[reference.hex()] = ray.get(reference)
    torch.set_num_threads(1)  # as many workers as processors
    return measured(_ORACLES[reference.hex()], _restored(*models), batch)


def _stored(round_: Round) -> StoredRound:
    """A round as arrays, which workers on one machine share without a copy."""
    owners = {"global": {-1: round_.global_model}, "client": round_.client_models, "apart": round_.apart_models}
    arrays = {(kind, k): _arrays(model) for kind, models in owners.items() for k, model in models.items()}
    return round_.entry, arrays


def _arrays(model: Model) -> Stored:
    """Tensors as bytes, since numpy has no bfloat16, with their types and shapes."""
    return {
        name: (
            str(t.dtype).removeprefix("torch."),
            tuple(t.shape),
            t.contiguous().reshape(-1).view(torch.uint8).numpy(),
        )
        for name, t in model.items()
    }


def _restored(entry: RoundEntry, arrays: dict[tuple[str, int], Stored]) -> Round:
    models = {owner: _tensors(stored) for owner, stored in arrays.items()}
    clients = {k: model for (kind, k), model in models.items() if kind == "client"}
    apart = {k: model for (kind, k), model in models.items() if kind == "apart"}
    return Round(entry, models["global", -1], clients, apart)


def _tensors(stored: Stored) -> Model:
    with warnings.catch_warnings(action="ignore"):  # the store is read-only, and nothing here writes
        return {
            name: torch.from_numpy(data).view(getattr(torch, dtype)).reshape(shape)
            for name, (dtype, shape, data) in stored.items()
        }
