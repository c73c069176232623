"""Where machine code lies that `fedworth.compile` keeps for the next process, and what to say if it cannot lie there.

    $XDG_CACHE_HOME/fedworth/<stamp>/<module>/      (~/.cache where nothing is named)

The stamp is that of all sources with kernels. What is read from disk is run as it is: the folder is the user's alone.
"""

import errno
import hashlib
import os
import re
import time
from contextlib import suppress
from functools import cache
from pathlib import Path

PACKAGE = Path(__file__).parent
NAMED, HOME = "NUMBA_CACHE_DIR", "XDG_CACHE_HOME"
UNUSED = 30 * 86_400
"""Seconds after which the machine code of other sources is taken for forgotten."""

_STAMP = re.compile(r"[0-9a-f]{16}")
_CODE = re.compile(r"\.nb[ci](\.tmp\.[0-9a-f]+)?$")
"""What numba calls its files, and what a killed process leaves of them."""


@cache
def kernels_folder() -> Path | None:
    """Where the machine code of these very sources is kept for a user; an OSError if there can be no such folder.

    None, and so numba's own choice, if NUMBA_CACHE_DIR names a place, or if anybody else could write there too.
    """
    home = kernels_home()
    if os.environ.get(NAMED) or not hasattr(os, "getuid") or not home.is_absolute():
        return None
    folder = home / kernels_stamp()[:16]
    is_new = not folder.is_dir()
    make_private(folder)
    if _is_own(folder) and _is_own(home):
        _tidy(home, folder, is_new=is_new)
        return folder
    if not os.access(folder, os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(folder))
    return None


def kernels_home() -> Path:
    """The folder of all stamps."""
    return Path(os.environ.get(HOME) or os.path.expanduser("~/.cache")) / "fedworth"


def make_private(folder: Path) -> None:
    """Make a folder, and those above it that are not there, for the user alone."""
    if not folder.is_dir():
        make_private(folder.parent)
        os.makedirs(folder, mode=0o700, exist_ok=True)


def _is_own(folder: Path) -> bool:
    """Whether a folder is the user's, and nobody else may write to it."""
    found = folder.stat()
    return found.st_uid == os.getuid() and not found.st_mode & 0o022


def _tidy(home: Path, folder: Path, *, is_new: bool) -> None:
    """Note that a folder is in use; if it is a new one, remove those of other stamps that nobody used for a month."""
    with suppress(OSError):
        os.utime(folder)
        for other in home.iterdir() if is_new else ():
            is_ours = _STAMP.fullmatch(other.name) and not other.is_symlink()
            if is_ours and time.time() - other.stat().st_mtime > UNUSED:
                _remove_code(other)


def _remove_code(folder: Path) -> None:
    """Remove machine code, and the folders that are empty without it; whatever else lies there stays."""
    for place, _, names in os.walk(folder, topdown=False):
        with suppress(OSError):
            for name in filter(_CODE.search, names):
                os.unlink(os.path.join(place, name))
            os.rmdir(place)


@cache
def kernels_stamp() -> str:
    """The sha256 of every source of this package that has to do with kernels: those that name `fedworth.compile`."""
    digest = hashlib.sha256()
    for path in sorted(PACKAGE.rglob("*.py")):
        source = path.read_bytes()
        if b"fedworth.compile" in source or path == PACKAGE / "compile.py":
            digest.update(path.name.encode() + hashlib.sha256(source).digest())
    return digest.hexdigest()


def not_kept(folder: Path, error: Exception) -> str:
    """What to say if machine code could not be kept in a folder."""
    place, variable = _named_by(folder)
    found = (isinstance(error, OSError) and error.strerror) or f"{type(error).__name__}: {error}"
    return (
        f"{place}: machine code cannot be kept there ({found}), so every process compiles for itself, to the same "
        f"numbers; make room there and let it be written to, or name another folder by {variable}"
    )


def _named_by(folder: Path) -> tuple[str, str]:
    """The place that a folder of machine code lies in, and the variable that moves it."""
    if os.environ.get(NAMED):
        return os.environ[NAMED], NAMED
    home = kernels_home()
    return (str(home), HOME) if home in (folder, *folder.parents) else (str(folder), NAMED)
