"""An oracle whose coalitions are measured by the workers of a Ray cluster, on this machine or on many.

A round's models go to Ray's object store once; each worker measures some of the coalitions with the same oracle, so
utilities have the same bits as on this machine, as long as the processors are of one kind. Workers need fedworth
installed and nothing else: no ledger, no data set, no shared file system. Ray repeats the work of a worker that dies.

Ray serves on the network without asking who is there. A cluster of our own stays on the loopback address, which takes a
setting that Ray has for desktops: without it, Ray listens on every address. A cluster at an address must be kept where
only its owner can reach it, since models leak private data.
"""

import os
import socket
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from fedworth.arrays import Floats, Indices
from fedworth.errors import UsageError, UtilityError
from fedworth.ledger.ledger import Model, Round
from fedworth.ledger.manifest import RoundEntry
from fedworth.oracle.oracle import Oracle, OutputOracle, also_of
from fedworth.oracle.weighting import Mixtures

LOOPBACK = "127.0.0.1"
LOOPBACK_ONLY = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
QUIET = {"RAY_USAGE_STATS_ENABLED": "0"}
RETRIES = 20
SECONDS_TO_ANSWER = 5.0
PIECES_PER_WORKER = 4
"""Pieces of the work for each worker, so that a slow one does not hold up the rest."""

StoredModel = dict[str, tuple[str, tuple[int, ...], Any]]
"""Each tensor's type, shape and bytes: numpy has no bfloat16, and workers of a machine share arrays without copying."""

StoredRound = tuple[RoundEntry, StoredModel, dict[int, StoredModel], dict[int, StoredModel]]
"""A round's line, global model, clients' models and models kept apart."""


def connect(address: str | None, n_workers: int | None = None) -> Any:
    """Ray, connected to the cluster at `address`, or to one of our own on this machine."""
    for name, setting in {**QUIET, **(LOOPBACK_ONLY if address is None else {})}.items():
        os.environ.setdefault(name, setting)  # Ray reads these when it is first imported
    try:
        import ray
    except ImportError as error:
        raise UsageError("--engine ray needs ray: pip install 'fedworth[ray]'") from error
    if address is not None:
        _refuse_silent(address)
    if not ray.is_initialized():
        where: dict[str, Any] = {"address": address}
        if address is None:
            n_workers = n_workers or os.cpu_count() or 1
            where = {
                "address": "local",
                "num_cpus": n_workers,
                "_node_ip_address": LOOPBACK,
                "include_dashboard": False,
            }
        try:
            ray.init(**where, log_to_driver=False, logging_level="ERROR")
        except (OSError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
            raise _unreachable(address or "this machine", str(error)) from error
    return ray


@dataclass
class RayOracle:
    """Measures coalitions by the workers of a Ray cluster; `oracle` is what each worker measures with."""

    oracle: Oracle
    address: str | None = None
    _ray: Any = field(init=False, repr=False)
    _stored_oracle: Any = field(init=False, repr=False)
    _stored_round: tuple[Round, Any] | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        self.task, self.measure, self.n_blocks = self.oracle.task, self.oracle.measure, self.oracle.n_blocks
        self.also = also_of(self.oracle)
        self._ray = connect(self.address)
        self._stored_oracle = self._ray.put(self.oracle)

    def utilities(self, round_: Round, mixtures: Mixtures) -> Floats:
        """(n_mixtures, n_columns): utilities in the order given."""
        return np.concatenate(self._in_pieces(round_, mixtures, None))

    def outputs(self, round_: Round, mixtures: Mixtures, which: Sequence[Indices]) -> Iterator[torch.Tensor]:
        for piece in self._in_pieces(round_, mixtures, which):
            yield from (torch.from_numpy(np.array(outputs)) for outputs in piece)  # the store's own are read-only

    def _in_pieces(self, round_: Round, mixtures: Mixtures, which: Sequence[Indices] | None) -> list[Any]:
        """What the workers found, piece by piece: utilities, or outputs on the samples of each mixture."""
        if self._stored_round is None or self._stored_round[0] is not round_:
            models = _each(_to_arrays, round_.client_models), _each(_to_arrays, round_.apart_models)
            self._stored_round = round_, self._ray.put((round_.entry, _to_arrays(round_.global_model), *models))
        n_workers = max(1, int(self._ray.cluster_resources().get("CPU", 1)))
        pieces = np.array_split(np.arange(len(mixtures)), max(1, min(len(mixtures), PIECES_PER_WORKER * n_workers)))
        remote = self._ray.remote(_measure).options(num_cpus=1, max_retries=RETRIES)
        waiting = [
            remote.remote(
                [self._stored_oracle],
                self._stored_round[1],
                mixtures.rows(piece),
                None if which is None else [which[place] for place in piece.tolist()],
            )
            for piece in pieces
        ]
        try:
            return list(self._ray.get(waiting))
        except self._ray.exceptions.RayTaskError as error:
            raise error.cause from None
        except self._ray.exceptions.RayError as error:
            reason = str(error).strip().partition("\n")[0]
            raise UtilityError(
                f"round {round_.entry.number}: the Ray workers that measured its coalitions were lost, after "
                f"{RETRIES} retries ({type(error).__name__}: {reason}); give workers more memory, or use --engine local"
            ) from error


_ORACLES: dict[str, Oracle] = {}
"""The oracle of this worker, kept between pieces: it remembers how to measure its module."""


def _measure(
    oracle: list[Any],
    stored: StoredRound,
    mixtures: Mixtures,
    which: Sequence[Indices] | None,
) -> Any:
    """Measure some coalitions in a worker, or give their outputs; each worker fetches the oracle once."""
    import ray

    (reference,) = oracle
    if reference.hex() not in _ORACLES:
        _ORACLES.clear()
        _ORACLES[reference.hex()] = ray.get(reference)
    torch.set_num_threads(1)  # there are as many workers as processors
    entry, start, clients, apart = stored
    round_ = Round(entry, _to_tensors(start), _each(_to_tensors, clients), _each(_to_tensors, apart))
    here = _ORACLES[reference.hex()]
    if which is None:
        return here.utilities(round_, mixtures)
    assert isinstance(here, OutputOracle)
    return [outputs.numpy() for outputs in here.outputs(round_, mixtures, which)]


def _each(convert: Callable[[Any], Any], models: Mapping[int, Any]) -> dict[int, Any]:
    return {k: convert(model) for k, model in models.items()}


def _to_arrays(model: Model) -> StoredModel:
    return {
        name: (
            str(tensor.dtype).removeprefix("torch."),
            tuple(tensor.shape),
            tensor.contiguous().reshape(-1).view(torch.uint8).numpy(),
        )
        for name, tensor in model.items()
    }


def _to_tensors(stored: StoredModel) -> Model:
    with warnings.catch_warnings(action="ignore"):  # the store is read-only, and nothing here writes
        return {
            name: torch.from_numpy(data).view(getattr(torch, dtype)).reshape(shape)
            for name, (dtype, shape, data) in stored.items()
        }


def _refuse_silent(address: str) -> None:
    """Try the address first: Ray itself waits minutes for a host that does not answer. Names such as `auto` are left
    to Ray."""
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
