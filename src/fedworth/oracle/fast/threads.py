"""Blocks of samples on several threads, with results that do not depend on how many.

Threads take the next block from a queue, so a thread slowed down by another process takes fewer of them. Each block
gives an array; the arrays are added in the order of the blocks, whatever the order they were finished in.
At the end nobody is waited for longer than a block takes: a thread that another process has put aside may hold its
block for long, so the block is done again, by the caller, to the same bits.
No OpenMP: beside a busy process its spinning threads cost fifteen times the work (measured).
"""

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from functools import cache
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from fedworth.errors import UsageError, UtilityError

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
    """Start `work` on a thread of its own, if there is more than one. The function returned waits for its result, or
    raises what it raised."""
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
    """Threads that work on one sum, the caller's among them. An array that is finished before its turn waits; no other
    is kept.

    Whoever finishes a block adds up what is due: a thread that did nothing else would only ask for the lock.
    """

    def __init__(self, of_block: BlockFunction, n_blocks: int) -> None:
        self.of_block = of_block
        self.n_blocks = n_blocks
        self.queue = iter(range(n_blocks))
        self.finished: dict[int, NDArray[np.float64]] = {}
        self.due = 0
        self.total: NDArray[np.float64] | None = None
        self.failure: BaseException | None = None
        self.lock = threading.Lock()

    def work(self, n_threads: int) -> NDArray[np.float64]:
        threads = [threading.Thread(target=self._take_blocks, daemon=True) for _ in range(n_threads - 1)]
        for thread in threads:
            thread.start()
        started = time.perf_counter()
        n_taken = self._take_blocks()
        pace = (time.perf_counter() - started) / n_taken if n_taken else None
        try:
            for thread in threads:
                thread.join(pace)
            for block in self._missing():
                self._add(block, self.of_block(block))
        except BaseException as error:  # an interrupt stops the others as a failure does
            self.failure = error
        if self.failure is not None:
            raise self.failure
        if self.total is None:
            raise UtilityError(f"none of {self.n_blocks} blocks of samples was summed; report this")
        return self.total

    def _take_blocks(self) -> int:
        """Block after block, as long as there are any; how many it was."""
        n_taken = 0
        try:
            while (block := self._next()) is not None:
                self._add(block, self.of_block(block))
                n_taken += 1
        except BaseException as error:
            self.failure = self.failure or error
        return n_taken

    def _next(self) -> int | None:
        with self.lock:
            return None if self.failure else next(self.queue, None)

    def _missing(self) -> list[int]:
        """The blocks that are not done, in their order; none after a failure."""
        with self.lock:
            return [] if self.failure else [b for b in range(self.due, self.n_blocks) if b not in self.finished]

    def _add(self, block: int, array: NDArray[np.float64]) -> None:
        with self.lock:
            if block < self.due or block in self.finished:
                return  # done twice, once by whoever was put aside
            self.finished[block] = array
            while self.due in self.finished:
                due = self.finished.pop(self.due)
                self.total = due.copy() if self.total is None else np.add(self.total, due, out=self.total)
                self.due += 1
