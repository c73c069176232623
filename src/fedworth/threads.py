"""One thread for linear algebra; several of our own for work that can be divided.

The matrices here are small: two threads gain little, and beside a busy process each waits for the other by spinning
(measured: 14 s of processor time for a demonstration of 4, and 50 ms for a solve of 0.05). One thread also gives the
same last bits on every machine with the same library.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache
from typing import TYPE_CHECKING, TypeVar

from threadpoolctl import ThreadpoolController

if TYPE_CHECKING:
    from torch import nn

Item = TypeVar("Item")
Result = TypeVar("Result")


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Linear algebra on one thread, for as long as the context or the function it decorates lasts."""
    with _libraries().limit(limits=1, user_api="blas"):
        yield


@contextmanager
def one_torch_thread() -> Iterator[None]:
    """Torch on one thread, for as long as the context or the function it decorates lasts.

    OpenMP's threads gain nothing on small tensors, and beside a busy process they cost fifteen times the work. Several
    threads may be in the context at the same time: all of them get back the number that was set before the first one.
    """
    import torch  # imported late, so that the command line starts without torch

    if getattr(_here, "is_inside", False):
        yield
        return
    with _lock:
        _inside.append(_inside[0] if _inside else torch.get_num_threads())
        torch.set_num_threads(1)
    _here.is_inside = True
    try:
        yield
    finally:
        _here.is_inside = False
        with _lock:
            torch.set_num_threads(_inside.pop())


_lock, _here = threading.Lock(), threading.local()  # `_here`: whether this very thread is in `one_torch_thread`
_inside: list[int] = []  # for each thread that is in it, the number of torch's threads before the first of them


def fitting_threads(module: "nn.Module") -> AbstractContextManager[None]:
    """One torch thread for a module without convolutions; convolutions keep torch's own number of threads."""
    from torch import nn

    kinds = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
    return nullcontext() if any(isinstance(part, kinds) for part in module.modules()) else one_torch_thread()


@cache
def _libraries() -> ThreadpoolController:
    """The loaded BLAS libraries; call this after numpy and scipy have been imported."""
    return ThreadpoolController()


def in_order(function: Callable[[Item], Result], items: Sequence[Item], n_threads: int) -> list[Result]:
    """function(item) for each item, in order, on several threads; numpy and torch release Python's lock."""
    import torch  # imported late, so that the command line starts without torch

    def of(item: Item) -> Result:
        with torch.inference_mode():  # a mode belongs to a thread
            return function(item)

    if n_threads == 1 or len(items) == 1:
        return [of(item) for item in items]
    with ThreadPoolExecutor(n_threads) as pool:
        return list(pool.map(of, items))
