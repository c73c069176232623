"""One ledger, one recorder: an exclusive lock that a writer holds for its whole life.

    recorder.lock     {"pid": 4711, "host": "server", "since": "2026-11-16T19:20:43+00:00"}

The lock is the kernel's (`flock`) on that file, so it ends with the process that holds it, however that ends. The
text in the file says who holds it, for the error of whoever comes second. A file whose lock is free belongs to a
process that was killed: it is taken over, and the log says so. Letting go removes the file.

A forked child does not keep its parent's lock, nor can it write. Readers need no lock. On a network file system the
lock reaches as far as the mount's does: before each commit the writer looks whether the file is still its own.
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
MOST_TEXT = 4096

log = logging.getLogger("fedworth")


@dataclass(eq=False)
class LedgerLock:
    """The right to write one ledger; it ends with `release`, with the object, or with the process."""

    path: Path
    descriptor: int
    pid: int = field(default_factory=os.getpid)
    _ending: "weakref.finalize[Any, Any]" = field(init=False)

    def __post_init__(self) -> None:
        self._ending = weakref.finalize(self, _let_go, self.path, self.descriptor)
        _held.add(self)

    @property
    def is_held(self) -> bool:
        """Whether this process may still write: it has not let go, and nobody has put another lock in the place."""
        return self._ending.alive and is_at(self.path, self.descriptor)

    def release(self) -> None:
        """Let go, and remove the file; a second time does nothing."""
        self._ending()

    def forget(self) -> None:
        """In a forked child: close the copy of the descriptor, so that the lock ends with the parent."""
        self._ending.detach()
        os.close(self.descriptor)


_held: "weakref.WeakSet[LedgerLock]" = weakref.WeakSet()


def _forget_all() -> None:
    for lock in list(_held):
        if lock._ending.alive:
            lock.forget()


os.register_at_fork(after_in_child=_forget_all)


def take_lock(folder: Path) -> LedgerLock:
    """The lock of the ledger at `folder`, or an error that names who has it; then nothing was changed."""
    try:
        descriptor = _open_locked(folder / LOCK)
        lock = LedgerLock(folder / LOCK, descriptor)
        _say_who(folder, descriptor)
    except BlockingIOError:
        raise LedgerError(f"{folder}: {_holder(folder / LOCK)}") from None
    except OSError as error:
        found = f"{folder / LOCK}: the ledger cannot be locked ({error.strerror or error})"
        raise LedgerError(f"{found}; record where you can write, on a file system that has locks") from error
    return lock


def recorder_gone(folder: Path) -> str | None:
    """Why nobody is writing this ledger any more, in words; None while its recorder lives.

    The lock is looked at only where its holder is not known to live: a recorder that starts must find it free.
    """
    try:
        descriptor = os.open(folder / LOCK, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        return "its recorder has let go of it"
    except OSError:
        return None
    try:
        text = os.pread(descriptor, MOST_TEXT, 0)
        found = _document(text)
        if found.get("host") == socket.gethostname() and _is_alive(found.get("pid")):
            return None
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return f"its recorder, {_described(text)}, has ended"
    except OSError:
        return None  # somebody holds it
    finally:
        os.close(descriptor)


def _is_alive(pid: Any) -> bool:
    try:
        os.kill(int(pid), 0)
    except (ProcessLookupError, TypeError, ValueError, OverflowError):
        return False
    except OSError:
        return True  # it is somebody else's
    return True


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[LedgerLock]:
    """The ledger's lock, to be kept by the writer that is made meanwhile; if none is made, it is let go."""
    lock = take_lock(folder)
    try:
        yield lock
    except BaseException:
        lock.release()
        raise


def _open_locked(path: Path) -> int:
    """The descriptor of the lock file, locked; opened anew if its last holder has just removed it."""
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


def _say_who(folder: Path, descriptor: int) -> None:
    """Write into the file who holds the lock now; what stands there already was left by a process that is gone."""
    before = os.pread(descriptor, MOST_TEXT, 0)
    if before:
        log.warning("fedworth: %s: taken over from %s, which ended without closing it", folder, _described(before))
    since = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    text = json.dumps({"pid": os.getpid(), "host": socket.gethostname(), "since": since}) + "\n"
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, text.encode(), 0)


def _holder(path: Path) -> str:
    """Who holds the lock, and what to do, in words."""
    text = b""
    with contextlib.suppress(OSError), path.open("rb") as file:
        text = file.read(MOST_TEXT)
    remedy = "stop that one first, or name another folder"
    if _document(text).get("pid") == os.getpid():
        remedy = "that is this very process: call release() on the recorder it has, or go on with that one"
    return f"is being recorded by {_described(text)}; one ledger, one recorder: {remedy}"


def _described(text: bytes) -> str:
    found = _document(text)
    if not found:
        return "another process"
    words = f"process {found.get('pid')} on {found.get('host')} since {found.get('since')}"
    return "".join(character for character in words if character.isprintable())[:200]


def _document(text: bytes) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _let_go(path: Path, descriptor: int) -> None:
    """Remove the file while it is still locked, so that nobody takes a file that is about to go."""
    try:
        with contextlib.suppress(OSError):
            if is_at(path, descriptor):
                path.unlink()
    finally:
        os.close(descriptor)
