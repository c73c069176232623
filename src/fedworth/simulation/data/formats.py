"""Reads the image files that MNIST, Fashion-MNIST and CIFAR-10 are published in.

idx (gzipped): two zero bytes, a type byte (8 for unsigned bytes), the number of dimensions, each
dimension as a big-endian 32-bit integer, then the bytes. CIFAR-10, binary version: records of 3073 bytes,
the label and then a 32 × 32 image, red, green and blue plane after one another.

Only the format is checked here; whether the bytes are the published ones is `download`'s business.
"""

import gzip
import struct
import zlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedworth.errors import DataError

Pixels = NDArray[np.uint8]

IDX_BYTES = b"\x00\x00\x08"
"""The start of every idx file of unsigned bytes; the number of dimensions follows."""

CIFAR_SHAPE = (3, 32, 32)
CIFAR_RECORD = 1 + 3 * 32 * 32


def read_idx(path: Path, n_dimensions: int) -> Pixels:
    """The array in a gzipped idx file of unsigned bytes."""
    content = _unzipped(path)
    start = IDX_BYTES + bytes([n_dimensions])
    if not content.startswith(start):
        found = content[: len(start)].hex()
        raise DataError(f"{path}: starts with {found!r}, expected {start.hex()!r}; is it another idx file?")
    header = 4 + 4 * n_dimensions
    if len(content) < header:
        raise DataError(f"{path}: ends inside its header, after {len(content)} bytes; copy it anew")
    shape = struct.unpack(f">{n_dimensions}I", content[4:header])
    expected = header + int(np.prod(shape, dtype=np.int64))
    if len(content) != expected:
        found = f"{len(content)} bytes, expected {expected}"
        raise DataError(f"{path}: its header says shape {shape} but it holds {found}; copy it anew")
    return np.frombuffer(content, np.uint8, offset=header).reshape(shape)


def read_idx_pair(images: Path, labels: Path) -> tuple[Pixels, Pixels]:
    """Grey images and their classes, from the two idx files that belong together."""
    pixels = read_idx(images, 3)[:, np.newaxis]  # (n, 1, height, width)
    classes = read_idx(labels, 1)  # (n,)
    if len(pixels) != len(classes):
        found = f"{len(pixels)} images, but {labels} holds {len(classes)} labels"
        raise DataError(f"{images}: holds {found}; expected the two to belong together")
    return pixels, classes


def read_cifar(*paths: Path) -> tuple[Pixels, Pixels]:
    """Colour images and their classes, from CIFAR-10 binary batches read one after another."""
    records = np.concatenate([_cifar_records(path) for path in paths])  # (n, 3073)
    return records[:, 1:].reshape(-1, *CIFAR_SHAPE), records[:, 0]


def _cifar_records(path: Path) -> Pixels:
    content = path.read_bytes()
    if not content or len(content) % CIFAR_RECORD:
        found = f"{len(content)} bytes, expected a multiple of {CIFAR_RECORD}"
        raise DataError(f"{path}: holds {found}; copy it anew")
    return np.frombuffer(content, np.uint8).reshape(-1, CIFAR_RECORD)


def _unzipped(path: Path) -> bytes:
    try:
        return gzip.decompress(path.read_bytes())
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(f"{path}: not a whole gzip file ({error}); copy it anew") from error
