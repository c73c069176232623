"""Run the trials of a study, side by side and resumably.

FOLDER/trials/KEY.csv holds the rows of one trial and the commit that made them. It is written whole, so a killed run
goes on where it stopped. Rows of another commit are not used: the trial runs again.
"""

import multiprocessing
import os
import shutil
import subprocess
import threading
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from rich.progress import track

from studies.study import Case, Study, study_named

UNKNOWN = "unknown"
TEXTS = {"setting": str, "refusal": str, "commit": str}  # columns that must not be read as numbers
BOOKKEEPING = ["trial", "commit", "cpu_seconds"]


@cache
def commit() -> str:
    """The commit of this source tree, marked if files were changed since; "unknown" outside a repository."""
    asked = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        return subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return UNKNOWN


def run(study: Study, cases: Sequence[Case], folder: Path, *, data: Path | None = None, n_jobs: int = 1) -> None:
    """Run those cases that have no rows of this commit yet."""
    (folder / "trials").mkdir(parents=True, exist_ok=True)
    left = [case for case in cases if not is_done(study, case, folder)]
    if n_jobs == 1 or len(left) < 2 or study.is_timed:
        for case in track(left, f"{study.name}, {len(left)} of {len(cases)} trials"):
            run_one(study.name, case, folder, data)
        return
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(min(n_jobs, len(left)), spawn, _start) as pool:
        futures = [pool.submit(run_one, study.name, case, folder, data) for case in left]
        try:
            done = as_completed(futures)
            for future in track(done, f"{study.name}, {len(futures)} trials", total=len(futures)):
                future.result()
        finally:  # after an error, let running trials finish and start no others
            pool.shutdown(wait=True, cancel_futures=True)


def is_done(study: Study, case: Case, folder: Path) -> bool:
    """Whether the case has rows of this commit."""
    path = folder / "trials" / f"{case.key(study.name)}.csv"
    return path.is_file() and bool((pd.read_csv(path, usecols=["commit"], dtype=str).commit == commit()).all())


def run_one(name: str, case: Case, folder: Path, data: Path | None = None) -> None:
    """Run one trial and write its rows."""
    study = study_named(name)
    key = case.key(name)
    scratch = folder / "scratch" / key
    shutil.rmtree(scratch, ignore_errors=True)
    start = time.process_time()
    rows = study.trial(case, scratch, data)
    spent = time.process_time() - start
    shutil.rmtree(scratch, ignore_errors=True)
    same = {**federation_columns(case), "trial": key, "commit": commit(), "cpu_seconds": spent}
    path = folder / "trials" / f"{key}.csv"
    part = path.with_suffix(".part")
    pd.DataFrame([{**same, **row} for row in rows]).to_csv(part, index=False, float_format="%.6g")
    part.replace(path)


def federation_columns(case: Case) -> dict[str, Any]:
    """What every row says about its federation."""
    settings = case.federation
    names = ("model", "partition", "n_clients", "n_participants", "n_rounds", "n_steps", "rate", "seed")
    same = {"setup": case.setup, "data_set": settings.dataset}
    return {**same, **{name: getattr(settings, name) for name in names}}


def rows_of(study: Study, cases: Iterable[Case], folder: Path) -> pd.DataFrame:
    """The rows of those cases that have been run at this commit."""
    paths = [folder / "trials" / f"{case.key(study.name)}.csv" for case in cases if is_done(study, case, folder)]
    if not paths:
        raise SystemExit(f"{folder}: no trial of {study.name} has been run there at this commit")
    return pd.concat([pd.read_csv(path, dtype=TEXTS) for path in paths], ignore_index=True)


def _start() -> None:
    """Start a worker: one thread, and it ends when its parent is killed."""
    torch.set_num_threads(1)
    threading.Thread(target=_follow_parent, daemon=True).start()


def _follow_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
