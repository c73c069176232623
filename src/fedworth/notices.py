"""What goes on unasked, told to whoever watches: a first call that compiles is not a program that hangs.

What somebody should mend, although the numbers are right, is a warning; where nobody watches, it is logged.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache

Watcher = Callable[[str], None]

_watchers: list[Watcher] = []
_warned: list[Watcher] = []


def tell(what: str) -> None:
    """Tell all who watch that this goes on, once more."""
    for watcher in list(_watchers):
        watcher(what)


@contextmanager
def told(watcher: Watcher) -> Iterator[None]:
    """Let `watcher` be told, from any thread, as long as the context lasts."""
    _watchers.append(watcher)
    try:
        yield
    finally:
        _watchers.remove(watcher)


def caution(what: str) -> None:
    """Warn all who watch for warnings."""
    for watcher in list(_warned) or [_log]:
        watcher(what)


@contextmanager
def warned(watcher: Watcher) -> Iterator[None]:
    """Let `watcher` be warned, from any thread, as long as the context lasts; of one thing once."""
    once = cache(watcher)
    _warned.append(once)
    try:
        yield
    finally:
        _warned.remove(once)


@cache
def _log(what: str) -> None:
    import logging

    logging.getLogger("fedworth").warning(what)
