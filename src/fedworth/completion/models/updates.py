"""The updates that clients sent, and models made of linear combinations of them.

The update of client i in round t is Δ_i^t = w_i^{t+1} − w^t. A predicted model is a round's global model plus a linear
combination of heard updates:

    ŵ = w^t + Σ_a c_a Δ_a

Recorded models stay memory-mapped, and combinations are computed tensor by tensor and piece by piece, so that memory is
needed for the resulting models and one piece per thread. The result does not depend on the number of threads.
"""

import math
import os
import tempfile
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray

from fedworth.arrays import Floats, Indices
from fedworth.errors import MachineError
from fedworth.ledger.ledger import Model, Round
from fedworth.threads import in_order

KEPT_BYTES = 1 << 30
"""All updates are kept in memory if they take at most this much; otherwise they are read for every combination."""

LARGEST_KEPT = 1 << 24
"""Updates of models with more bytes than this are never kept: memory should stay that of a few models."""

PIECE_BYTES, LARGE_PIECE_BYTES = 1 << 26, 1 << 21
"""Updates are combined in pieces of this size; those of large models, which are read again and again, in pieces that
stay in the processor's cache."""

MOST_IN_MEMORY = 1 << 28
"""Bytes of predicted models that are held in memory; more are held in a temporary file."""

SHARED = 0.2
"""Updates that enter more than this share of the models are multiplied for all models at once."""

Kept = dict[str, NDArray[np.float32]]
"""All updates by tensor name, each (n_updates, n_numbers)."""


@dataclass(frozen=True)
class Updates:
    """Every update that a federation's rounds recorded, ordered by round and client."""

    opened: tuple[Round, ...]  # every round of the federation, memory-mapped
    participants: NDArray[np.bool_]  # (n_rounds, n_clients)
    n_threads: int = 1

    def __len__(self) -> int:
        return len(self.rounds)

    @cached_property
    def rounds(self) -> Indices:
        """(n_updates,): the round of each update."""
        return np.nonzero(self.participants)[0]

    @cached_property
    def clients(self) -> Indices:
        """(n_updates,): the client of each update."""
        return np.nonzero(self.participants)[1]

    def model(self, update: int) -> Model:
        """The model that a client sent."""
        return self.opened[int(self.rounds[update])].client_models[int(self.clients[update])]

    def combine(self, round_index: int, coefficients: Floats) -> list[Model]:
        """The models w^t + Σ_a c_a Δ_a, one for each row of `coefficients`, (n_models, n_updates)."""
        if len(coefficients) == 0:
            return []
        origin = self.opened[round_index].global_model
        used = np.flatnonzero(coefficients.any(axis=0))
        factors = coefficients[:, used].astype(np.float32)
        shared = (factors != 0).sum(axis=0) > SHARED * len(factors)  # (n_used,)
        own = {row: np.flatnonzero(factors[row] * ~shared) for row in range(len(factors))}
        own = {row: columns for row, columns in own.items() if len(columns)}
        kept = self._kept  # computed here, before threads ask for it
        buffer = model_buffer(len(factors), origin)

        def fill(piece: tuple[str, slice]) -> None:
            name, part = piece
            updates = self._piece(kept, name, used, part)  # (n_used, n_numbers)
            moved = factors @ updates if shared.all() else factors[:, shared] @ updates[shared]
            for row, columns in own.items():
                moved[row] += factors[row, columns] @ updates[columns]
            numbers = _added(origin[name].detach().reshape(-1)[part], moved)
            # as bytes and by numpy: torch's own threads would compete with ours
            size = numbers.element_size()
            target = buffer[name].view(torch.uint8).numpy()
            target[:, part.start * size : part.stop * size] = numbers.contiguous().view(torch.uint8).numpy()

        in_order(fill, self._pieces(max(len(used), len(factors))), self.n_threads)
        return [
            {name: buffer[name][row].reshape(like.shape) for name, like in origin.items()}
            for row in range(len(factors))
        ]

    def products(self, some: Indices) -> Floats:
        """(n_some, n_some): inner products of these updates."""
        found = np.zeros((len(some), len(some)))
        for name, part in self._pieces(len(some)):
            piece = self._piece(self._kept, name, some, part)
            found += piece @ piece.T
        return found

    @property
    def _sizes(self) -> dict[str, int]:
        return {name: like.numel() for name, like in self.opened[0].global_model.items()}

    @property
    def _n_bytes(self) -> int:
        return 4 * sum(self._sizes.values())

    @property
    def _is_large(self) -> bool:
        return self._n_bytes > LARGEST_KEPT

    def _pieces(self, n_rows: int) -> list[tuple[str, slice]]:
        """Each tensor's numbers in pieces, of which `n_rows` rows take at most PIECE_BYTES."""
        width = max(1, (LARGE_PIECE_BYTES if self._is_large else PIECE_BYTES) // (4 * max(n_rows, 1)))
        return [
            (name, slice(start, min(start + width, size)))
            for name, size in self._sizes.items()
            for start in range(0, size, width)
        ]

    def _piece(self, kept: Kept | None, name: str, used: Indices, part: slice) -> NDArray[np.float32]:
        """(n_used, n_numbers): some numbers of one tensor's updates."""
        if kept is None:
            return self._read(name, used, part)
        is_all = len(used) == len(self)  # a view then, since a copy would take as much memory again
        return kept[name][:, part] if is_all else kept[name][used, part]

    @cached_property
    def _kept(self) -> Kept | None:
        if self._is_large or len(self) * self._n_bytes > KEPT_BYTES:
            return None
        every = np.arange(len(self))
        return {name: self._read(name, every, slice(0, size)) for name, size in self._sizes.items()}

    def _read(self, name: str, used: Indices, part: slice) -> NDArray[np.float32]:
        rows = np.empty((len(used), part.stop - part.start), dtype=np.float32)
        for row, update in zip(rows, used.tolist(), strict=True):
            before = self.opened[int(self.rounds[update])].global_model[name]
            np.subtract(_flat(self.model(update)[name], part), _flat(before, part), out=row)
        return rows


def model_buffer(n_models: int, like: Model) -> dict[str, torch.Tensor]:
    """Room for some models: by tensor name (n_models, n_numbers), in memory or, if large, in a temporary file.

    A round of a hundred clients with models of 100 MB has up to 7 GB of predicted models. The file has no name, so it
    is gone with the last of its tensors, also after a kill.
    """
    n_bytes = {name: n_models * tensor.numel() * tensor.element_size() for name, tensor in like.items()}
    total = sum(n_bytes.values())
    if total <= MOST_IN_MEMORY:
        return {name: torch.empty((n_models, tensor.numel()), dtype=tensor.dtype) for name, tensor in like.items()}
    with tempfile.TemporaryFile() as file:
        try:
            if hasattr(os, "posix_fallocate"):  # so that a full disk is an error here, and not a crash later
                os.posix_fallocate(file.fileno(), 0, total)
            file.truncate(total)
        except OSError as error:
            raise MachineError(
                f"{tempfile.gettempdir()}: cannot hold {total / 1e6:,.0f} MB of predicted models of one round "
                f"({error.strerror}); let TMPDIR name a folder with more room"
            ) from error
        pages = np.memmap(file, dtype=np.uint8, mode="r+", shape=(total,))
    buffer, start = {}, 0
    for name in sorted(
        like, key=lambda name: -like[name].element_size()
    ):  # the largest numbers first, so all are aligned
        tensor = like[name]
        part = torch.from_numpy(pages[start : start + n_bytes[name]])
        buffer[name] = part.view(tensor.dtype).reshape(n_models, math.prod(tensor.shape))
        start += n_bytes[name]
    return buffer


def _flat(tensor: torch.Tensor, part: slice) -> NDArray[np.float32]:
    return np.asarray(tensor.detach().reshape(-1)[part].to(torch.float32).numpy())


def _added(origin: torch.Tensor, update: NDArray[np.float32]) -> torch.Tensor:
    """(n_models, n): numbers, (n,), plus updates of them, in their own dtype; integers are rounded, as servers do."""
    if origin.dtype in (torch.float32, torch.float64):  # by numpy, for the same reason as above
        return torch.from_numpy(origin.numpy() + update)
    moved = origin.to(torch.float32) + torch.from_numpy(update)
    return moved.to(origin.dtype) if origin.is_floating_point() else moved.round().to(origin.dtype)
