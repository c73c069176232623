"""A shelf: where predicted models lie while a round is measured, in memory, or in a mapped file where they are large.

In: how many models, and a model like them; then their numbers, tensor by tensor and piece by piece. Out: the models.

A round of a hundred clients with models of 100 MB has up to 7 GB of predicted ones. Those lie in a file without a name
in the folder for temporary files ($TMPDIR), whose pages are the kernel's to take back: it costs disk, not memory. The
file is gone with the models, also after a kill.
"""

import math
import mmap
import tempfile
from contextlib import ExitStack
from typing import IO

import torch

from fedworth.errors import MachineError
from fedworth.ledger.ledger import Model
from fedworth.storage import write_at

MOST_IN_MEMORY = 1 << 28
"""Bytes of models that lie in memory."""

ALIGNMENT = 64


class Shelf:
    """Room for some models, whose tensors have the shapes and dtypes of `like`; a context that closes its file."""

    def __init__(self, n_models: int, like: Model) -> None:
        self._n_models, self._like = n_models, like
        self._offsets, self._n_bytes = dict[str, int](), 0
        for name, tensor in like.items():
            self._offsets[name] = self._n_bytes
            self._n_bytes += n_models * tensor.numel() * tensor.element_size()
            self._n_bytes += -self._n_bytes % ALIGNMENT
        self._open = ExitStack()
        self._file: IO[bytes] | None = None
        self._tensors: dict[str, torch.Tensor] = {}  # (n_models, n_numbers), where there is no file

    def __enter__(self) -> "Shelf":
        if self._n_bytes > MOST_IN_MEMORY:
            self._file = self._open.enter_context(tempfile.TemporaryFile(buffering=0))
        else:
            sizes = {name: (self._n_models, tensor.numel()) for name, tensor in self._like.items()}
            self._tensors = {name: torch.empty(size, dtype=self._like[name].dtype) for name, size in sizes.items()}
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def put(self, name: str, start: int, numbers: torch.Tensor) -> None:
        """Some numbers of one tensor of all models, (n_models, n), from number `start` on."""
        like, rows = self._like[name], numbers.contiguous().view(torch.uint8).numpy()
        if self._file is None:  # as bytes, by numpy: several threads may put, and torch's own would spin beside them
            first = start * like.element_size()
            self._tensors[name].view(torch.uint8).numpy()[:, first : first + rows.shape[1]] = rows
            return
        for place, row in enumerate(rows):
            offset = self._offsets[name] + (place * like.numel() + start) * like.element_size()
            try:
                write_at(self._file.fileno(), row.data, offset)
            except OSError as error:
                needed = f"{self._n_bytes / 1e6:,.0f} MB of predicted models of one round"
                raise MachineError(
                    f"{tempfile.gettempdir()}: cannot hold {needed} ({error.strerror}); "
                    "let TMPDIR name a folder with more room"
                ) from error

    def models(self) -> list[Model]:
        """The models; those of a file stay mapped as long as one of them is held."""
        tensors = self._tensors if self._file is None else self._mapped(self._file)
        return [
            {name: tensors[name][place].reshape(like.shape) for name, like in self._like.items()}
            for place in range(self._n_models)
        ]

    def _mapped(self, file: IO[bytes]) -> dict[str, torch.Tensor]:
        file.truncate(self._n_bytes)  # the last tensors may be empty ones
        pages = mmap.mmap(file.fileno(), self._n_bytes, access=mmap.ACCESS_COPY)
        found = {}
        for name, like in self._like.items():
            shape, start = (self._n_models, like.numel()), self._offsets[name]
            found[name] = torch.empty((self._n_models, 0), dtype=like.dtype)
            if like.numel():
                found[name] = torch.frombuffer(pages, dtype=like.dtype, count=math.prod(shape), offset=start).reshape(
                    shape
                )
        return found
