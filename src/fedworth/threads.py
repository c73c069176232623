"""One thread for linear algebra.

The matrices here are small: two threads gain little, and beside a busy process each waits for the other by spinning
(measured: 14 s of processor time for a demonstration of 4, and 50 ms for a solve of 0.05). One thread also gives the
same last bits on every machine with the same library.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

from threadpoolctl import ThreadpoolController


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Linear algebra on one thread, for as long as the context or the function it decorates lasts."""
    with _libraries().limit(limits=1, user_api="blas"):
        yield


@cache
def _libraries() -> ThreadpoolController:
    """Those that are loaded: to be asked for only when numpy and scipy are."""
    return ThreadpoolController()
