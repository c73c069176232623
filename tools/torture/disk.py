"""A disk that forgets: what files may hold after a power cut, given what was written, flushed and renamed before it.

`Recording` notes every operation on files below a folder. `after_power_cut` says what a disk may hold if the power went
after some of them. What was flushed is there. Of everything else any part may be there, in any order:

    data        each write since the file's last fsync is there whole, in part (by sectors of 512 bytes), or not; where
                a file has grown and its data did not arrive, it reads as zeros
    names       each new file, rename and removal since the folder's last fsync is there, or not

That is weaker than what Linux file systems promise (they keep the order of names), and so it holds for all of them.
"""

import os
import random
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

SECTOR = 512
OPERATIONS = (
    "open", "close", "pwrite", "write", "fsync", "ftruncate", "truncate", "rename", "replace", "unlink", "mkdir",
)  # fmt: skip


@dataclass(frozen=True)
class Step:
    """One operation: on the data of a file (by its number), on a name in a folder, or an acknowledgement."""

    kind: str  # write, resize, flush; create, make, move, remove, flush folder; done
    folder: str = ""
    name: str = ""
    other: str = ""  # the new name, of a rename
    file: int = -1
    offset: int = 0
    data: bytes = b""


@dataclass
class Recording:
    """What was done to the files below a folder, in order."""

    root: Path
    steps: list[Step] = field(default_factory=list)
    names: dict[tuple[str, str], int] = field(default_factory=dict)  # (folder, name) → file
    opened: dict[int, int | str] = field(default_factory=dict)  # descriptor → file, or a folder
    n_files: int = 0

    def begin_with(self, folder: Path) -> None:
        """Take what lies in a folder for flushed."""
        for path in sorted(folder.rglob("*")):
            where = self._where(self.root / path.relative_to(folder))
            if path.is_dir():
                self.steps += [Step("make", *where), Step("flush folder", where[0])]
                continue
            self.names[where] = file = self._new_file()
            self.steps += [Step("create", *where, file=file), Step("flush folder", where[0])]
            self.steps += [Step("write", file=file, data=path.read_bytes()), Step("flush", file=file)]

    def done(self) -> None:
        """Note that something was promised to whoever waits for it."""
        self.steps.append(Step("done"))

    def _new_file(self) -> int:
        self.n_files += 1
        return self.n_files

    def _where(self, path: Any) -> tuple[str, str]:
        inside = Path(path).absolute().relative_to(self.root)
        return str(inside.parent), inside.name

    def open(self, before: bool, path: Any, flags: int, descriptor: int) -> None:
        where = self._where(path)
        if Path(path).is_dir():
            self.opened[descriptor] = str(Path(*where))
            return
        if not before:
            self.names[where] = self._new_file()
            self.steps.append(Step("create", *where, file=self.names[where]))
        if flags & os.O_TRUNC:
            raise AssertionError("no file of a ledger is emptied in place")
        self.opened[descriptor] = self.names[where]

    def write(self, descriptor: int, data: bytes, offset: int) -> None:
        self.steps.append(Step("write", file=self._file(descriptor), offset=offset, data=data))

    def resize(self, file: int, size: int) -> None:
        self.steps.append(Step("resize", file=file, offset=size))

    def flush(self, descriptor: int) -> None:
        found = self.opened.get(descriptor)
        if isinstance(found, str):
            self.steps.append(Step("flush folder", found))
        elif found is not None:
            self.steps.append(Step("flush", file=found))

    def move(self, old: Any, new: Any) -> None:
        (folder, name), (there, other) = self._where(old), self._where(new)
        assert folder == there, "renames stay in their folder"
        file = self.names[folder, other] = self.names.pop((folder, name))
        self.steps.append(Step("move", folder, name, other, file))

    def remove(self, path: Any) -> None:
        where = self._where(path)
        self.names.pop(where)
        self.steps.append(Step("remove", *where))

    def _file(self, descriptor: int) -> int:
        found = self.opened[descriptor]
        assert isinstance(found, int)
        return found

    def is_inside(self, path: Any) -> bool:
        return isinstance(path, str | os.PathLike) and Path(path).absolute().is_relative_to(self.root)


@contextmanager
def recorded(root: Path) -> Iterator[Recording]:
    """Note all that is done to files below `root` meanwhile."""
    notes, real = Recording(root.absolute()), {name: getattr(os, name) for name in OPERATIONS}
    with ExitStack() as patches:
        for name, noted in _noting(notes, real).items():
            patches.enter_context(patch.object(os, name, noted))
        yield notes


def _noting(notes: Recording, real: dict[str, Callable[..., Any]]) -> dict[str, Callable[..., Any]]:
    """The operations, each noted once it has been done."""

    def open_(path: Any, flags: int, *args: Any, **kwargs: Any) -> int:
        inside = notes.is_inside(path)
        before = inside and os.path.lexists(path)
        descriptor: int = real["open"](path, flags, *args, **kwargs)
        if inside:
            notes.open(before, path, flags, descriptor)
        return descriptor

    def close(descriptor: int) -> None:
        notes.opened.pop(descriptor, None)
        real["close"](descriptor)

    def pwrite(descriptor: int, data: Any, offset: int) -> int:
        n_written: int = real["pwrite"](descriptor, data, offset)
        if descriptor in notes.opened:
            notes.write(descriptor, bytes(data)[:n_written], offset)
        return n_written

    def write(descriptor: int, data: Any) -> int:
        assert descriptor not in notes.opened, "files of a ledger are written at a place"
        n_written: int = real["write"](descriptor, data)
        return n_written

    def fsync(descriptor: int) -> None:
        notes.flush(descriptor)  # what is on this machine's disk is no matter here

    def ftruncate(descriptor: int, size: int) -> None:
        real["ftruncate"](descriptor, size)
        if descriptor in notes.opened:
            notes.resize(notes._file(descriptor), size)

    def truncate(path: Any, size: int) -> None:
        real["truncate"](path, size)
        if notes.is_inside(path):
            notes.resize(notes.names[notes._where(path)], size)

    def rename(old: Any, new: Any, **kwargs: Any) -> None:
        real["rename"](old, new, **kwargs)
        if notes.is_inside(old):
            notes.move(old, new)

    def unlink(path: Any, **kwargs: Any) -> None:
        real["unlink"](path, **kwargs)
        if notes.is_inside(path):
            notes.remove(path)

    def mkdir(path: Any, *args: Any, **kwargs: Any) -> None:
        real["mkdir"](path, *args, **kwargs)
        if notes.is_inside(path):
            notes.steps.append(Step("make", *notes._where(path)))

    return {
        "open": open_, "close": close, "pwrite": pwrite, "write": write, "fsync": fsync, "ftruncate": ftruncate,
        "truncate": truncate, "rename": rename, "replace": rename, "unlink": unlink, "mkdir": mkdir,
    }  # fmt: skip


Fate = Callable[[str], bool]
"""Whether what was not flushed is there after all: a name, the new size of a file, or a sector of its data."""

FOLDER = -2
NAMES = ("create", "make", "move", "remove")


def fates(rng: random.Random, n_random: int) -> Iterator[Fate]:
    """Nothing that was not flushed; all of it; names without data; data without names; and so many by chance."""
    yield lambda _: False
    yield lambda _: True
    yield lambda what: what != "data"
    yield lambda what: what != "name"
    for _ in range(n_random):
        yield by_chance(rng, rng.choice((0.2, 0.5, 0.8)))


def by_chance(rng: random.Random, share: float) -> Fate:
    """This share of everything is there, each by chance."""
    return lambda _: rng.random() < share


def after_power_cut(steps: Sequence[Step], fate: Fate) -> dict[str, bytes | None]:
    """What a disk holds: the bytes of each file, None for a folder."""
    files, folders = _data(steps, fate), _names(steps, fate)
    found: dict[str, bytes | None] = {}
    waiting = ["."]
    while waiting:
        folder = waiting.pop()
        for name, file in folders[folder].items():
            path = str(Path(folder, name))
            found[path] = None if file == FOLDER else bytes(files[file])
            waiting += [path] if file == FOLDER else []
    return found


def _data(steps: Sequence[Step], fate: Fate) -> dict[int, bytearray]:
    """What is in each file: flushed writes, and of the others what fate leaves."""
    last = {step.file: k for k, step in enumerate(steps) if step.kind == "flush"}
    files: dict[int, bytearray] = defaultdict(bytearray)
    for k, step in enumerate(steps):
        is_safe, data = k < last.get(step.file, -1), files[step.file]
        if step.kind == "resize" and (is_safe or fate("size")):
            data[step.offset :] = bytes(max(0, step.offset - len(data)))
        elif step.kind == "write":
            _write(data, step, (lambda _: True) if is_safe else fate)
    return files


def _write(data: bytearray, step: Step, fate: Fate) -> None:
    end = step.offset + len(step.data)
    if end > len(data) and fate("size"):
        data.extend(bytes(end - len(data)))  # the data itself may not be there
    start = step.offset
    while start < end:
        stop = min(end, (start // SECTOR + 1) * SECTOR)
        if fate("data"):
            data.extend(bytes(max(0, stop - len(data))))
            data[start:stop] = step.data[start - step.offset : stop - step.offset]
        start = stop


def _names(steps: Sequence[Step], fate: Fate) -> dict[str, dict[str, int]]:
    """What is in each folder: flushed names, and of the others what fate leaves."""
    last = {step.folder: k for k, step in enumerate(steps) if step.kind == "flush folder"}
    folders: dict[str, dict[str, int]] = defaultdict(dict)
    for k, step in enumerate(steps):
        if step.kind not in NAMES or not (k < last.get(step.folder, -1) or fate("name")):
            continue
        folder = folders[step.folder]
        if step.kind in ("move", "remove"):
            folder.pop(step.name, None)
        if step.kind != "remove":
            folder[step.other or step.name] = FOLDER if step.kind == "make" else step.file
    return folders


def lay_out(found: dict[str, bytes | None], folder: Path) -> None:
    """Put it on a real disk."""
    folder.mkdir(parents=True)
    for name, data in found.items():
        if data is None:
            (folder / name).mkdir(parents=True, exist_ok=True, mode=0o700)
    for name, data in found.items():
        if data is not None:
            (folder / name).write_bytes(data)
