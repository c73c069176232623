"""Blocks of samples on several threads, with results that do not depend on how many.

Threads take the next block from a queue, so a thread slowed down by another process takes fewer of them. Each block
gives an array; the arrays are added in the order of the blocks, whatever the order they were finished in.
No OpenMP: beside a busy process its spinning threads cost fifteen times the work (measured).
"""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from functools import cache
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from fedworth.errors import UsageError

Result = TypeVar("Result")
BlockFunction = Callable[[int], NDArray[np.float64]]


def sum_over_blocks(of_block: BlockFunction, n_blocks: int, n_threads: int = 1) -> NDArray[np.float64]:
    """Σ_b of_block(b), to the same bits for every number of threads; `of_block` should release the lock."""
    if n_threads < 1:
        raise UsageError(f"n_threads is {n_threads}, expected 1 or more")
    if n_blocks < 1:
        raise UsageError(f"n_blocks is {n_blocks}, expected 1 or more")
    if n_threads == 1 or n_blocks == 1:
        return _sum_in_order(of_block(block) for block in range(n_blocks))
    return _Crew(of_block, n_blocks).work(min(n_threads, n_blocks))


def meanwhile(work: Callable[[], Result], n_threads: int) -> Callable[[], Result]:
    """Begin `work` on a thread of its own, if there is more than one; what comes out waits for it, and raises what it
    raised."""
    if n_threads == 1:
        return cache(work)
    future: Future[Result] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future.result


def _sum_in_order(arrays: Iterator[NDArray[np.float64]]) -> NDArray[np.float64]:
    total = next(arrays).copy()
    for array in arrays:
        total += array
    return total


class _Crew:
    """Threads at work on one sum; only those arrays wait that were finished before their turn."""

    def __init__(self, of_block: BlockFunction, n_blocks: int) -> None:
        self.of_block = of_block
        self.n_blocks = n_blocks
        self.queue = iter(range(n_blocks))
        self.finished: dict[int, NDArray[np.float64]] = {}
        self.failure: BaseException | None = None
        self.news = threading.Condition()

    def work(self, n_threads: int) -> NDArray[np.float64]:
        threads = [threading.Thread(target=self._take_blocks, daemon=True) for _ in range(n_threads)]
        for thread in threads:
            thread.start()
        try:
            return _sum_in_order(self._in_order())
        except BaseException as error:  # an interrupt must stop the others as a failure does
            with self.news:
                self.failure = self.failure or error
            raise
        finally:
            for thread in threads:
                thread.join()

    def _in_order(self) -> Iterator[NDArray[np.float64]]:
        for block in range(self.n_blocks):
            with self.news:
                while self.failure is None and block not in self.finished:
                    self.news.wait()
                if self.failure is not None:
                    raise self.failure
                array = self.finished.pop(block)
            yield array

    def _take_blocks(self) -> None:
        while True:
            with self.news:
                block = None if self.failure else next(self.queue, None)
            if block is None:
                return
            try:
                array = self.of_block(block)
            except BaseException as error:
                with self.news:
                    self.failure = error
                    self.news.notify_all()
                return
            with self.news:
                self.finished[block] = array
                self.news.notify_all()
