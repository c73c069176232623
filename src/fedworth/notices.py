"""Callbacks for work that nobody asked for, such as compiling, and for warnings that are not about a result."""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache

Watcher = Callable[[str], None]

_watchers: list[Watcher] = []
_warned: list[Watcher] = []


def tell(what: str) -> None:
    """Call everyone who listens for progress."""
    for watcher in list(_watchers):
        watcher(what)


@contextmanager
def told(watcher: Watcher) -> Iterator[None]:
    """Call `watcher` on progress, from any thread, while the context lasts."""
    _watchers.append(watcher)
    try:
        yield
    finally:
        _watchers.remove(watcher)


def caution(what: str) -> None:
    """Call everyone who listens for warnings; log the warning if nobody does."""
    for watcher in list(_warned) or [_log]:
        watcher(what)


@contextmanager
def warned(watcher: Watcher) -> Iterator[None]:
    """Call `watcher` on warnings, from any thread, while the context lasts; each text is passed on once."""
    once = cache(watcher)
    _warned.append(once)
    try:
        yield
    finally:
        _warned.remove(once)


@cache
def _log(what: str) -> None:
    logging.getLogger("fedworth").warning(what)
