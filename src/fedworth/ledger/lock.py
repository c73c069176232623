"""The lock of a ledger: only one recorder may write it at a time.

    recorder.lock     {"pid": 4711, "host": "server", "since": "2026-11-16T19:20:43+00:00"}

The lock is the kernel's `flock` on this file, so it ends with the process that holds it. The text tells a second
recorder who the first is. A file that is left without a lock belongs to a process that was killed: the next recorder
takes it over and logs that. A forked child neither keeps its parent's lock nor can it write. Readers need no lock.

On a network file system the lock reaches as far as the mount supports it; before each commit the writer checks that
the file is still its own.
"""

import contextlib
import datetime
import fcntl
import json
import logging
import os
import socket
import stat
import weakref
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedworth.errors import LedgerError
from fedworth.storage import is_at

LOCK = "recorder.lock"
MAX_TEXT_BYTES = 4096

log = logging.getLogger("fedworth")


@dataclass(eq=False)
class LedgerLock:
    """The right to write one ledger; it ends with `release`, with the object or with the process."""

    path: Path
    descriptor: int
    _finalizer: "weakref.finalize[Any, Any]" = field(init=False)

    def __post_init__(self) -> None:
        self._finalizer = weakref.finalize(self, _unlock, self.path, self.descriptor)
        _locks.add(self)

    @property
    def is_held(self) -> bool:
        """Whether this process may still write: the lock was not released, and nobody replaced the file."""
        return self._finalizer.alive and is_at(self.path, self.descriptor)

    def release(self) -> None:
        """Unlock and remove the file; a second call does nothing."""
        self._finalizer()

    def forget(self) -> None:
        """Close a forked child's copy of the descriptor, so that the lock ends with the parent."""
        if self._finalizer.detach() is not None:
            os.close(self.descriptor)


_locks: "weakref.WeakSet[LedgerLock]" = weakref.WeakSet()


def _forget_all() -> None:
    for lock in list(_locks):
        lock.forget()


os.register_at_fork(after_in_child=_forget_all)


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[LedgerLock]:
    """Lock a ledger; the lock stays after the context unless an error ends it."""
    lock = take_lock(folder)
    try:
        yield lock
    except BaseException:
        lock.release()
        raise


def take_lock(folder: Path) -> LedgerLock:
    """Lock the ledger at `folder`; if another recorder has it, the error names that one and nothing is changed."""
    path = folder / LOCK
    try:
        descriptor = _open_locked(path)
        lock = LedgerLock(path, descriptor)
        before = os.pread(descriptor, MAX_TEXT_BYTES, 0)
        if before:
            log.warning("fedworth: %s: taken over from %s, which ended without closing it", folder, _describe(before))
        since = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        text = json.dumps({"pid": os.getpid(), "host": socket.gethostname(), "since": since}) + "\n"
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, text.encode(), 0)
    except BlockingIOError:
        raise LedgerError(f"{folder}: {_holder(path)}") from None
    except OSError as error:
        found = f"{path}: the ledger cannot be locked ({error.strerror or error})"
        raise LedgerError(f"{found}; record where you can write, on a file system that has locks") from error
    return lock


def recorder_gone(folder: Path) -> str | None:
    """Why nobody is writing this ledger any more; None while its recorder lives."""
    try:
        descriptor = os.open(folder / LOCK, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        return "its recorder has released it"
    except OSError:
        return None
    try:
        text = os.pread(descriptor, MAX_TEXT_BYTES, 0)
        holder = _parse(text)
        # The lock is tried only if the process is not known to live: a recorder that starts must find it free.
        if holder.get("host") == socket.gethostname() and _is_alive(holder.get("pid")):
            return None
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return f"its recorder, {_describe(text)}, has ended"
    except OSError:
        return None  # somebody holds the lock
    finally:
        os.close(descriptor)


def _is_alive(pid: Any) -> bool:
    try:
        os.kill(int(pid), 0)
    except (ProcessLookupError, TypeError, ValueError, OverflowError):
        return False
    except OSError:
        return True  # another user's process
    return True


def _open_locked(path: Path) -> int:
    """The descriptor of the locked file; it is opened again if its last holder has just removed it."""
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise OSError("not a regular file")
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if is_at(path, descriptor):
                return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)


def _holder(path: Path) -> str:
    """Who holds the lock, and what to do."""
    text = b""
    with contextlib.suppress(OSError), path.open("rb") as file:
        text = file.read(MAX_TEXT_BYTES)
    remedy = "stop that one first, or choose another folder"
    if _parse(text).get("pid") == os.getpid():
        remedy = "that is this very process: call release() on its recorder, or use that one"
    return f"is being recorded by {_describe(text)}; a ledger has one recorder at a time: {remedy}"


def _describe(text: bytes) -> str:
    holder = _parse(text)
    if not holder:
        return "another process"
    words = f"process {holder.get('pid')} on {holder.get('host')} since {holder.get('since')}"
    return "".join(character for character in words if character.isprintable())[:200]


def _parse(text: bytes) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _unlock(path: Path, descriptor: int) -> None:
    """Remove the file while it is still locked, so that nobody locks a file that is about to go."""
    try:
        with contextlib.suppress(OSError):
            if is_at(path, descriptor):
                path.unlink()
    finally:
        os.close(descriptor)
