"""The end of a ledger: how a line is put there, and what is cleared away there after a kill.

A line commits its round. So a line goes to the device whole or is taken back; and after a kill, whatever no finished
line speaks of is removed, and whatever one speaks of gets its name.
"""

import contextlib
import logging
import os
from pathlib import Path

from fedworth.errors import LedgerError
from fedworth.ledger.ledger import Ledger
from fedworth.ledger.manifest import FINAL, MANIFEST, read_manifest
from fedworth.ledger.model_file import partial_of, settle

log = logging.getLogger("fedworth")


def append_line(manifest: Path, data: bytes, size: int) -> None:
    """Put a line at the end of a manifest that has `size` bytes: all of it on the device, or nothing of it."""
    descriptor = os.open(manifest, os.O_RDWR | os.O_NOFOLLOW)
    try:
        if os.fstat(descriptor).st_size != size:
            raise LedgerError(f"{manifest}: was written by someone else; one ledger, one recorder")
        _write_line(descriptor, data, size)
    finally:
        with contextlib.suppress(OSError):  # what was flushed is committed, whatever closing says
            os.close(descriptor)


def _write_line(descriptor: int, data: bytes, offset: int) -> None:
    try:
        if os.pwrite(descriptor, data, offset) != len(data):
            raise OSError("the device is full")
        os.fsync(descriptor)
    except BaseException:  # an interrupt as well: whoever gives the round up removes its file
        os.ftruncate(descriptor, offset)
        raise


def is_settled(path: Path) -> bool:
    """Give a committed file its name, and return whether that worked. If not, it is logged: readers find the partial
    name too."""
    try:
        settle(path)
    except OSError as error:
        if not partial_of(path).exists():
            raise LedgerError(f"{path}: was committed, and is gone; somebody removed it: restore it") from error
        reason = error.strerror or error
        log.error("fedworth: %s: committed and whole, but still under its partial name (%s)", path, reason)
        return False
    return True


def cut_unfinished_line(folder: Path) -> int:
    """Where the next line goes; what a killed recorder began to write there is cut off."""
    size = len(read_manifest(folder))
    if size < (folder / MANIFEST).stat().st_size:
        os.truncate(folder / MANIFEST, size)
    return size


def clear_away(ledger: Ledger) -> None:
    """Give committed files their names, remove what was never committed."""
    for file in ledger.files:
        if not (ledger.folder / file).exists() and partial_of(ledger.folder / file).exists():
            settle(ledger.folder / file)
    for path in [*ledger.folder.glob("rounds/*"), *ledger.folder.glob("apart/*"), partial_of(ledger.folder / FINAL)]:
        if str(path.relative_to(ledger.folder)) not in ledger.files:
            path.unlink(missing_ok=True)
