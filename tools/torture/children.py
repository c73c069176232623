"""Work in a process of its own: forked with everything loaded, so that a start costs nothing, and killed at will."""

import contextlib
import os
import signal
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

FAULT = 70
"""The code of a child that ended with a traceback: nothing else ends with it."""


@dataclass(frozen=True)
class Ended:
    """How a child ended: its code (minus the signal, if one killed it), and what it printed."""

    code: int
    out: str
    err: str


def forked(work: Callable[[], int | None], log: Path) -> int:
    """The process id of a child that does this and nothing else; what it prints goes to `log` and `log`.err."""
    child = os.fork()
    if child:
        return child
    code = FAULT
    try:
        with log.open("w") as out, Path(f"{log}.err").open("w", errors="backslashreplace") as err:
            code = _code_of(work, out, err)
    finally:
        os._exit(code)


def _code_of(work: Callable[[], int | None], out: TextIO, err: TextIO) -> int:
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            return int(work() or 0)
        except SystemExit as stop:
            return stop.code if isinstance(stop.code, int) else int(stop.code is not None)
        except BaseException:
            err.write(traceback.format_exc())
            return FAULT


def wait(child: int, log: Path) -> Ended:
    """How a child ended, once it has."""
    _, status = os.waitpid(child, 0)
    return Ended(os.waitstatus_to_exitcode(status), _text(log), _text(Path(f"{log}.err")))


def done(work: Callable[[], int | None], log: Path, *, seconds: float) -> Ended:
    """What became of work that may take so long; SIGALRM ends what takes longer."""

    def limited() -> int | None:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_REAL, seconds)
        return work()

    return wait(forked(limited, log), log)


def killed_after(work: Callable[[], int | None], log: Path, seconds: float) -> Ended:
    """What became of work that was killed with SIGKILL at this instant, unless it was done by then."""
    child = forked(work, log)
    time.sleep(seconds)
    os.kill(child, signal.SIGKILL)
    return wait(child, log)


def _text(path: Path) -> str:
    with contextlib.suppress(FileNotFoundError), open(path, errors="replace") as file:
        return file.read()
    return ""
