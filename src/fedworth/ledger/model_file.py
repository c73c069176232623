"""Models on disk: one safetensors file for many models, written as they come, read back by owner.

The format is eight bytes of length, a JSON header padded with spaces, then the tensors' bytes without holes.
The header comes first but is known last, so room for it is kept: enough for as many owners as are announced,
all shaped like the first. Each tensor goes to disk when it arrives; nothing but the header stays in memory.
Between two owners stands a `padding` tensor where needed, since readers want each number at a multiple of its size.

The format has no checksum: a flipped bit loads without complaint. Whoever reads must compare the file's sha256 first.
"""

import contextlib
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
from fedworth.storage import PARTIAL, create_file, flush_folder, is_at, make_folder, open_regular, write_at

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
LONGEST_HEADER = 100_000_000  # bytes; readers of safetensors take no longer one

UNREAD = ("padding", "quarantined")
"""Tensors that are in a file and belong to no model: filling, and what was quarantined after it was written."""

Owner = tuple[str, int]
"""("global", −1), ("client", 3) or ("apart", 3)."""

OLDER = {"absent": "apart"}
"""What ledgers written before called a kind of model."""


@dataclass
class ModelFileWriter:
    """A file being written under a partial name; `finish` makes it whole, and only `settle` gives it its name."""

    path: Path
    file: io.FileIO
    room: int  # bytes kept for the header
    header: dict[str, Any] = field(default_factory=dict)
    n_bytes: int = 0

    def add(self, owner: str, model: Model) -> None:
        """Put one model's tensors on disk, the widest numbers first; all of them, or none."""
        n_bytes, keys = self.n_bytes, set(self.header)
        try:
            for name, tensor in sorted(model.items(), key=lambda item: (-item[1].element_size(), item[0])):
                self._add(f"{owner}/{name}", tensor)
            if self.n_bytes % ALIGNMENT:
                self._add(f"padding/{len(self.header)}", torch.zeros(-self.n_bytes % ALIGNMENT, dtype=torch.uint8))
        except BaseException:
            self.n_bytes, self.header = n_bytes, {key: self.header[key] for key in self.header if key in keys}
            raise

    def rename(self, owner: str, other: str) -> None:
        """Let the tensors of one owner stand under another's name."""
        entries = self.header.items()
        self.header = {other + key.removeprefix(owner) if key.startswith(owner) else key: at for key, at in entries}

    def finish(self) -> str:
        """Write the header, flush all to the device (the partial name too), and say the sha256."""
        text = json.dumps(self.header, ensure_ascii=False, separators=(",", ":")).encode()
        if len(text) > self.room:
            raise LedgerError(f"{self.path}: more models than were announced, so its header has no room")
        write_at(self.file.fileno(), memoryview(self.room.to_bytes(8, "little") + text.ljust(self.room)), 0)
        os.ftruncate(self.file.fileno(), 8 + self.room + self.n_bytes)
        with ThreadPoolExecutor(1) as pool:  # hashing takes about as long as flushing, and can be done meanwhile
            hashing = pool.submit(hashlib.file_digest, self.file, "sha256")
            os.fsync(self.file.fileno())
            sha256 = hashing.result().hexdigest()
        flush_folder(self.path.parent)
        if not is_at(partial_of(self.path), self.file.fileno()):
            raise LedgerError(
                f"{partial_of(self.path)}: removed or replaced while it was written; nothing is committed"
            )
        self.file.close()
        return sha256

    def leave(self) -> None:
        """Close the file and let it lie: whether it was committed is for `resume_ledger` to find out."""
        with contextlib.suppress(OSError):
            self.file.close()

    def abandon(self) -> None:
        """Leave nothing behind."""
        self.leave()
        with contextlib.suppress(OSError):
            partial_of(self.path).unlink(missing_ok=True)

    def _add(self, key: str, tensor: torch.Tensor) -> None:
        dense = tensor.detach().to("cpu").resolve_conj().resolve_neg().contiguous()  # bytes are stored as they lie
        data = dense.reshape(-1).view(torch.uint8).numpy()
        write_at(self.file.fileno(), data.data, 8 + self.room + self.n_bytes)
        self.header[key] = {
            "dtype": DTYPE_NAMES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [self.n_bytes, self.n_bytes + len(data)],
        }
        self.n_bytes += len(data)


def start_model_file(path: Path, like: Model, n_models: int) -> ModelFileWriter:
    """Begin a file for at most `n_models` models of the tensors of `like`."""
    make_folder(path.parent)
    file = io.FileIO(create_file(partial_of(path)), "r+")
    return ModelFileWriter(path, file, _header_room(like, n_models))


def settle(path: Path) -> None:
    """Give a whole and committed file its name. Until then readers find it under the partial one."""
    partial_of(path).rename(path)


def partial_of(path: Path) -> Path:
    """Where a file is written before it is whole."""
    return path.with_name(path.name + PARTIAL)


def read_models(path: Path, sha256: str) -> dict[Owner, Model]:
    """The models of a file whose bytes are as recorded, memory-mapped."""
    for place in (path, partial_of(path), path):  # it may take its name while we look
        with contextlib.suppress(FileNotFoundError):
            _check_extent(place)
            found = file_sha256(place)
            if found != sha256:
                raise LedgerError(f"{path}: sha256 {found}, expected {sha256}; the file was changed or damaged")
            return _models_in(place)
    raise LedgerError(f"{path}: missing, though the manifest lists it; restore it from a copy")


def file_sha256(path: Path) -> str:
    """The sha256 of a file, read a piece at a time."""
    try:
        with open_regular(path) as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except FileNotFoundError:
        raise
    except OSError as error:
        raise LedgerError(f"{path}: cannot be read ({error.strerror})") from error


def _check_extent(place: Path) -> None:
    """Refuse a file that is not as long as its own header says, before terabytes are hashed or memory is taken."""
    try:
        with open_regular(place) as file:
            n_bytes, room = os.fstat(file.fileno()).st_size, int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(room)) if room <= min(LONGEST_HEADER, n_bytes) else {}
        expected = 8 + room + max((entry["data_offsets"][1] for entry in header.values()), default=0)
    except FileNotFoundError:
        raise
    except (OSError, ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError) as error:
        raise LedgerError(f"{place}: its header cannot be read ({error}); the file was changed or damaged") from error
    if n_bytes != expected:
        found = f"is {n_bytes:,} bytes long, and its header says {expected:,}"
        raise LedgerError(f"{place}: {found}; the file was changed or damaged")


def _models_in(place: Path) -> dict[Owner, Model]:
    models: dict[Owner, Model] = {}
    try:
        with safe_open(place, framework="pt") as file:
            for key in sorted(file.keys()):
                kind, _, rest = key.partition("/")
                if kind not in UNREAD:
                    index, name = (-1, rest) if kind == "global" else _client_key(rest)
                    models.setdefault((OLDER.get(kind, kind), index), {})[name] = file.get_tensor(key)
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
