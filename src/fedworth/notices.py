"""What goes on unasked, told to whoever watches: a first call that compiles is not a program that hangs."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

_watchers: list[Callable[[str], None]] = []


def tell(what: str) -> None:
    """Tell all who watch that this goes on, once more."""
    for watcher in list(_watchers):
        watcher(what)


@contextmanager
def told(watcher: Callable[[str], None]) -> Iterator[None]:
    """Let `watcher` be told, from any thread, as long as the context lasts."""
    _watchers.append(watcher)
    try:
        yield
    finally:
        _watchers.remove(watcher)
