"""The recorder, `observe` and `watch`, killed with SIGKILL at random instants and started again until they are done.

After each kill every committed round must be whole; at the end all bytes must be those of a run that nobody killed.
"""

import contextlib
import os
import random
import shutil
import signal
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from fedworth.cli.main import main as fedworth_command
from fedworth.ledger.ledger import Ledger
from fedworth.ledger.manifest import HEADER
from fedworth.simulation.settings import SimulationSettings
from fedworth.simulation.simulate import simulate
from tools.torture.children import Ended, forked, killed_after, wait
from tools.torture.corruption import content

SETTINGS = SimulationSettings(
    n_clients=4, copies=((3, 0),), n_participants=2, n_rounds=6, train_limit=120, test_limit=60, hidden=(8,)
)
LEDGER, OUT, WATCHED, LOG = Path("l"), Path("u.npz"), Path("l.watch"), Path("../child.log")

Work = Callable[[], int | None]


def record() -> None:
    """The recorder: simulates, or goes on with what is there."""
    simulate(SETTINGS, LEDGER, resume=True)


def observe() -> int:
    """`fedworth observe` into a file."""
    return 0 if OUT.exists() else fedworth_command(["observe", str(LEDGER), "--out", str(OUT)])


def watch() -> int:
    """`fedworth watch` until the ledger is closed."""
    return fedworth_command(["watch", str(LEDGER), "--every", "0.01"])


def is_finished(ended: Ended) -> bool:
    """Whether a child has ended by itself; an error of its own ends everything."""
    if ended.code > 0:
        raise SystemExit(f"a child failed by itself, with code {ended.code}: {ended.err}")
    return ended.code == 0


def check_committed() -> None:
    """Whatever the manifest lists can be read, to the byte."""
    if (LEDGER / HEADER).is_file():
        Ledger.verify(LEDGER)


def kill_until_done(work: Work, seconds: float, rng: random.Random, most: int) -> int:
    """Kill `work` again and again until it gets through (or has been killed often enough); how often it was."""
    for n_kills in range(most):
        if is_finished(killed_after(work, LOG, rng.uniform(0, seconds))):
            return n_kills
        check_committed()
    if not is_finished(wait(forked(work, LOG), LOG)):
        raise SystemExit("a child was killed by somebody else")
    return most


def timed(work: Work) -> float:
    """How long it takes when nobody kills it."""
    start = time.monotonic()
    kill_until_done(work, 0.0, random.Random(0), most=0)
    return time.monotonic() - start


def kills(place: Path, n_kills: int, seed: int) -> tuple[Counter[str], int, list[str]]:
    """Kill recorder, observe and watch: how often each, in how many trials, and what went wrong."""
    rng, done, trial, wrong = random.Random(seed), Counter[str](), 0, list[str]()
    (place / "whole").mkdir(parents=True)
    with contextlib.chdir(place / "whole"):
        seconds = {work.__name__: timed(work) for work in (record, observe, watch)}
        expected = content(Path())
    while done.total() < n_kills:
        folder = place / f"trial-{trial}"
        folder.mkdir()
        trial += 1
        with contextlib.chdir(folder):
            watched_and_killed(rng, seconds, done)
            for work in (record, observe, watch):
                done[work.__name__] += kill_until_done(work, seconds[work.__name__], rng, most=6)
            odd = [name for name, data in content(Path()).items() if expected.get(name) != data]
            if content(Path()) != expected:
                wrong.append(f"trial {trial}: other bytes than without kills in {odd}")
        shutil.rmtree(folder)
    return done, trial, wrong


def watched_and_killed(rng: random.Random, seconds: dict[str, float], done: Counter[str]) -> None:
    """Watch while the recorder is at work, and kill both."""
    recorder, watcher = forked(record, LOG), forked(watch, Path(f"{LOG}.watch"))
    time.sleep(rng.uniform(0, seconds["record"]))
    for name, child, log in (("watch", watcher, Path(f"{LOG}.watch")), ("record", recorder, LOG)):
        os.kill(child, signal.SIGKILL)
        done[name] += not is_finished(wait(child, log))
    check_committed()
