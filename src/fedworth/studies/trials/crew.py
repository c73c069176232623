"""Run trials side by side, each in a process with one thread. A row does not depend on which process ran it."""

import multiprocessing
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import replace

from fedworth.storage import silent
from fedworth.studies.trials.readings import READERS
from fedworth.studies.trials.trial import Bench, Trial, is_done, row_of


def run_side_by_side(trials: Sequence[Trial], bench: Bench, done: Callable[[], None]) -> None:
    """Run those trials that are not on disk, `bench.n_jobs` at a time, and call `done` after each.

    The first that fails ends the others once those under way have finished; what they found is kept.
    """
    left = [trial for trial in trials if not is_done(trial, bench)]
    alone = replace(bench, progress=silent, n_jobs=1, n_threads=1)
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(min(bench.n_jobs, max(1, len(left))), spawn, _start) as pool:
        futures = [pool.submit(_run, trial, alone) for trial in left]
        try:
            for future in as_completed(futures):
                future.result()
                done()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def _run(trial: Trial, bench: Bench) -> None:
    row_of(trial, bench, READERS)


def _start() -> None:
    """One thread a process; and a process whose parent was killed ends too."""
    import torch

    torch.set_num_threads(1)
    threading.Thread(target=_follow_parent, daemon=True).start()


def _follow_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
