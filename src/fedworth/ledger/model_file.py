"""Models on disk: one safetensors file for many models, written as they come, read back by owner.

The format is eight bytes of length, a JSON header padded with spaces, then the tensors' bytes without holes.
The header comes first but is known last, so room for it is kept: enough for as many owners as are announced,
all shaped like the first. Each tensor goes to disk when it arrives; nothing but the header stays in memory.
Between two owners stands a `padding` tensor where needed, since readers want each number at a multiple of its size.

The format has no checksum: a flipped bit loads without complaint. Whoever reads must compare the file's sha256 first.
"""

import contextlib
import fcntl
import hashlib
import io
import json
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from fedworth.errors import LedgerError
from fedworth.ledger.model import Model
from fedworth.storage import PARTIAL, flush_folder, make_folder

DTYPE_NAMES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
ENTRY_BYTES = 160
"""The most an entry of the header takes beside the tensor's name and shape."""

ALIGNMENT = 8

Owner = tuple[str, int]
"""("global", −1), ("client", 3) or ("absent", 3)."""


@dataclass
class ModelFileWriter:
    """A file being written under a partial name; `finish` makes it whole, and only `settle` gives it its name."""

    path: Path
    file: io.BufferedRandom
    room: int  # bytes kept for the header
    header: dict[str, Any] = field(default_factory=dict)
    n_bytes: int = 0

    def add(self, owner: str, model: Model) -> None:
        """Put one model's tensors on disk, the widest numbers first."""
        for name, tensor in sorted(model.items(), key=lambda item: (-item[1].element_size(), item[0])):
            self._add(f"{owner}/{name}", tensor)
        if self.n_bytes % ALIGNMENT:
            self._add(f"padding/{len(self.header)}", torch.zeros(-self.n_bytes % ALIGNMENT, dtype=torch.uint8))

    def finish(self) -> str:
        """Write the header, flush all to the device (the partial name too), and say the sha256."""
        text = json.dumps(self.header, ensure_ascii=False, separators=(",", ":")).encode()
        if len(text) > self.room:
            raise LedgerError(f"{self.path}: more models than were announced, so its header has no room")
        self.file.seek(0)
        self.file.write(self.room.to_bytes(8, "little") + text.ljust(self.room))
        self.file.flush()
        with ThreadPoolExecutor(1) as pool:  # hashing takes about as long as flushing, and can be done meanwhile
            hashing = pool.submit(file_sha256, partial_of(self.path))
            os.fsync(self.file.fileno())
            sha256 = hashing.result()
        self.file.close()
        flush_folder(self.path.parent)
        return sha256

    def abandon(self) -> None:
        """Leave nothing behind."""
        with contextlib.suppress(OSError):
            self.file.close()
        with contextlib.suppress(OSError):
            partial_of(self.path).unlink(missing_ok=True)

    def _add(self, key: str, tensor: torch.Tensor) -> None:
        dense = tensor.detach().to("cpu").contiguous()  # the format stores bytes as they lie: strides must go
        data = dense.reshape(-1).view(torch.uint8).numpy()
        self.file.write(data.data)
        self.header[key] = {
            "dtype": DTYPE_NAMES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [self.n_bytes, self.n_bytes + len(data)],
        }
        self.n_bytes += len(data)


def start_model_file(path: Path, like: Model, n_models: int) -> ModelFileWriter:
    """Begin a file for at most `n_models` models of the tensors of `like`."""
    make_folder(path.parent)
    descriptor = os.open(partial_of(path), os.O_RDWR | os.O_CREAT, 0o600)
    file = open(descriptor, "r+b")  # noqa: SIM115 - closed by finish or abandon
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.ftruncate(descriptor, 0)
        room = _header_room(like, n_models)
        file.seek(8 + room)
    except BlockingIOError:
        file.close()
        raise LedgerError(f"{path}: another recorder is writing it; one ledger, one recorder") from None
    except BaseException:
        file.close()
        raise
    return ModelFileWriter(path, file, room)


def settle(path: Path) -> None:
    """Give a whole and committed file its name; if that fails, readers still find it under the partial one."""
    with contextlib.suppress(OSError):
        partial_of(path).rename(path)


def partial_of(path: Path) -> Path:
    """Where a file is written before it is whole."""
    return path.with_name(path.name + PARTIAL)


def read_models(path: Path, sha256: str) -> dict[Owner, Model]:
    """The models of a file whose bytes are as recorded, memory-mapped."""
    for place in (path, partial_of(path), path):  # it may take its name while we look
        with contextlib.suppress(FileNotFoundError):
            found = file_sha256(place)
            if found != sha256:
                raise LedgerError(f"{path}: sha256 {found}, expected {sha256}; the file was changed or damaged")
            return _models_in(place)
    raise LedgerError(f"{path}: missing, though the manifest lists it; restore it from a copy")


def file_sha256(path: Path) -> str:
    """The sha256 of a file, read a piece at a time."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except FileNotFoundError:
        raise
    except OSError as error:
        raise LedgerError(f"{path}: cannot be read ({error.strerror})") from error


def _models_in(place: Path) -> dict[Owner, Model]:
    models: dict[Owner, Model] = {}
    try:
        with safe_open(place, framework="pt") as file:
            for key in sorted(file.keys()):
                kind, _, rest = key.partition("/")
                if kind != "padding":
                    index, name = (-1, rest) if kind == "global" else _client_key(rest)
                    models.setdefault((kind, index), {})[name] = file.get_tensor(key)
    except FileNotFoundError:
        raise
    except (SafetensorError, ValueError, OSError) as error:
        raise LedgerError(f"{place}: not readable as safetensors ({error})") from error
    return models


def _header_room(like: Model, n_models: int) -> int:
    entries = sum(len(json.dumps(name)) + len(str(list(tensor.shape))) + ENTRY_BYTES for name, tensor in like.items())
    needed = n_models * (entries + ENTRY_BYTES) + 2
    return needed + -needed % ALIGNMENT


def _client_key(rest: str) -> tuple[int, str]:
    index, _, name = rest.partition("/")
    return int(index), name
