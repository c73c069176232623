"""Many models in one safetensors file, written as they arrive and read back by owner.

The format is eight bytes of length, a JSON header padded with spaces, then the bytes of the tensors. The header comes
first but is known last, so space is reserved for it: enough for the announced number of models, all shaped like the
first. Each tensor goes to disk when it arrives, and only the header stays in memory. A `padding` tensor follows a model
where needed, because readers expect each number at a multiple of its size.

The format has no checksum, so a flipped bit loads without complaint. Readers compare the sha256 of the file first.
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
from fedworth.ledger.model import Model, tensor_bytes
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
ENTRY_BYTES = 160  # upper bound of a header entry's length, without the tensor's name and shape
ALIGNMENT = 8

Owner = tuple[str, int]
"""("global", -1), ("client", 3) or ("apart", 3)."""

GLOBAL: Owner = ("global", -1)

NO_MODEL = ("padding", "quarantined")  # "quarantined": a model that was rejected after it was written


@dataclass
class ModelFileWriter:
    """A file being written under a partial name: `finish` completes it, `give_final_name` renames it."""

    path: Path
    file: io.FileIO
    header_size: int  # bytes reserved
    header: dict[str, Any] = field(default_factory=dict)
    n_bytes: int = 0

    def add(self, owner: str, model: Model) -> None:
        """Write all tensors of one model, or none of them."""
        n_bytes, header = self.n_bytes, dict(self.header)
        try:
            widest_first = sorted(model.items(), key=lambda item: (-item[1].element_size(), item[0]))
            for name, tensor in widest_first:  # so that each is aligned
                self._add(f"{owner}/{name}", tensor)
            if self.n_bytes % ALIGNMENT:
                self._add(f"padding/{len(self.header)}", torch.zeros(-self.n_bytes % ALIGNMENT, dtype=torch.uint8))
        except BaseException:
            self.n_bytes, self.header = n_bytes, header
            raise

    def rename(self, owner: str, other: str) -> None:
        """Give the tensors of one owner to another."""
        entries = self.header.items()
        self.header = {other + key.removeprefix(owner) if key.startswith(owner) else key: at for key, at in entries}

    def finish(self) -> str:
        """Write the header, flush everything to the device, and return the sha256 of the file."""
        text = json.dumps(self.header, ensure_ascii=False, separators=(",", ":")).encode()
        if len(text) > self.header_size:
            raise LedgerError(f"{self.path}: has more models than were announced")
        header = self.header_size.to_bytes(8, "little") + text.ljust(self.header_size)
        write_at(self.file.fileno(), memoryview(header), 0)
        os.ftruncate(self.file.fileno(), len(header) + self.n_bytes)
        with ThreadPoolExecutor(1) as pool:  # hashing takes about as long as flushing
            hashing = pool.submit(hashlib.file_digest, self.file, "sha256")
            os.fsync(self.file.fileno())
            sha256 = hashing.result().hexdigest()
        flush_folder(self.path.parent)
        if not is_at(partial_path(self.path), self.file.fileno()):
            found = "removed or replaced while it was written"
            raise LedgerError(f"{partial_path(self.path)}: {found}; nothing is committed")
        self.file.close()
        return sha256

    def close(self) -> None:
        """Close the file and leave it: `LedgerWriter.resume` finds out whether it was committed."""
        with contextlib.suppress(OSError):
            self.file.close()

    def remove(self) -> None:
        self.close()
        with contextlib.suppress(OSError):
            partial_path(self.path).unlink(missing_ok=True)

    def _add(self, key: str, tensor: torch.Tensor) -> None:
        data = tensor_bytes(tensor)
        write_at(self.file.fileno(), data, 8 + self.header_size + self.n_bytes)
        self.header[key] = {
            "dtype": DTYPE_NAMES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [self.n_bytes, self.n_bytes + len(data)],
        }
        self.n_bytes += len(data)


def start_model_file(path: Path, like: Model, n_models: int) -> ModelFileWriter:
    """Begin a file for at most `n_models` models with the tensors of `like`."""
    entries = sum(len(json.dumps(name)) + len(str(list(tensor.shape))) + ENTRY_BYTES for name, tensor in like.items())
    needed = n_models * (entries + ENTRY_BYTES) + 2
    make_folder(path.parent)
    return ModelFileWriter(path, io.FileIO(create_file(partial_path(path)), "r+"), needed + -needed % ALIGNMENT)


def give_final_name(path: Path) -> None:
    """Rename a committed file; until then readers find it under its partial name."""
    partial_path(path).rename(path)


def partial_path(path: Path) -> Path:
    """The name of a file while it is written."""
    return path.with_name(path.name + PARTIAL)


def read_models(path: Path, sha256: str) -> dict[Owner, Model]:
    """The models of a file, memory-mapped, after its sha256 was compared."""
    for place in (path, partial_path(path), path):  # it may be renamed meanwhile
        with contextlib.suppress(FileNotFoundError):
            return _read_place(place, sha256)
    raise LedgerError(f"{path}: missing, but the manifest lists it; restore it from a copy")


def _read_place(place: Path, sha256: str) -> dict[Owner, Model]:
    models: dict[Owner, Model] = {}
    try:
        open_regular(place).close()  # a pipe would be waited for
        with safe_open(place, framework="pt") as file:  # refuses a wrong length, before terabytes are hashed
            found = file_sha256(place)
            if found != sha256:
                raise LedgerError(f"{place}: sha256 {found}, expected {sha256}; the file was changed or damaged")
            for key in sorted(file.keys()):
                kind, _, name = key.partition("/")
                if kind in NO_MODEL:
                    continue
                owner = GLOBAL
                if kind != "global":
                    index, _, name = name.partition("/")
                    owner = kind, int(index)
                models.setdefault(owner, {})[name] = file.get_tensor(key)
    except FileNotFoundError:
        raise
    except (SafetensorError, ValueError, OSError) as error:
        raise LedgerError(f"{place}: not readable as safetensors ({error}); it was changed or damaged") from error
    return models


def file_sha256(path: Path) -> str:
    try:
        with open_regular(path) as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except FileNotFoundError:
        raise
    except OSError as error:
        raise LedgerError(f"{path}: cannot be read ({error.strerror})") from error
