"""What a ledger survives, counted: kills at random instants, corrupted files, a device that is full.

    python tools/torture.py [--kills 200] [--corruptions 10000] [--seed 0]

Kills: the recorder (a simulation), `observe` and `watch` are killed with SIGKILL at random instants and started again
until they are done. After each kill every committed round must be whole; at the end the bytes must be those of a run
that was never killed. Corruptions: each must be found by `verify`, and by whoever would value the ledger. Children are
forked, so that a start costs nothing. Prints one JSON object; ends with an error if anything slipped through.
"""

import argparse
import contextlib
import json
import multiprocessing
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from corruption import content, corruptions, small_ledger

import fedworth.pipeline.watch  # noqa: F401 - children are forked with everything loaded
from fedworth.cli.main import main as fedworth_command
from fedworth.errors import LedgerError
from fedworth.federation.simulation.settings import SimulationSettings
from fedworth.federation.simulation.simulate import simulate
from fedworth.ledger.ledger import HEADER, verify_ledger
from fedworth.ledger.writer import Answer, create_ledger

SETTINGS = SimulationSettings(
    n_clients=4, copies=((3, 0),), n_participants=2, n_rounds=6, train_limit=120, test_limit=60, hidden=(8,)
)
LEDGER, OUT, WATCHED = Path("l"), Path("u.npz"), Path("l.watch")


def record() -> None:
    """The recorder: simulates, or goes on with what is there."""
    simulate(SETTINGS, LEDGER, resume=True)


def observe() -> None:
    """`fedworth observe` into a file."""
    if not OUT.exists() and fedworth_command(["observe", str(LEDGER), "--out", str(OUT)]):
        raise SystemExit(3)


def watch() -> None:
    """`fedworth watch` until the ledger is closed."""
    if fedworth_command(["watch", str(LEDGER), "--every", "0.01"]):
        raise SystemExit(3)


def forked(work: Callable[[], None]) -> int:
    """The process id of a child that does this and nothing else; what it says goes to a file."""
    child = os.fork()
    if child:
        return child
    with Path("../child.log").open("w") as log, contextlib.redirect_stdout(log), contextlib.redirect_stderr(log):
        try:
            work()
            code = 0
        except SystemExit as stop:
            code = 3 if stop.code else 0
        except BaseException as error:
            log.write(f"{type(error).__name__}: {error}")
            code = 2
    os._exit(code)


def finished(child: int) -> bool:
    """Whether a child has ended by itself; an error of its own ends everything."""
    _, status = os.waitpid(child, 0)
    if os.WIFEXITED(status) and os.WEXITSTATUS(status):
        said = Path("../child.log").read_text()
        raise SystemExit(f"a child failed by itself, with code {os.WEXITSTATUS(status)}: {said}")
    return os.WIFEXITED(status)


def committed_rounds_are_whole() -> None:
    """Whatever the manifest lists can be read, to the byte."""
    if (LEDGER / HEADER).is_file():
        verify_ledger(LEDGER)


def kill_until_done(work: Callable[[], None], seconds: float, rng: random.Random, most: int) -> int:
    """Kill `work` again and again until it gets through (or has been killed often enough); how often it was."""
    n_kills = 0
    while True:
        child = forked(work)
        if n_kills < most:
            time.sleep(rng.uniform(0, seconds))
            os.kill(child, signal.SIGKILL)
        if finished(child):
            return n_kills
        n_kills += 1
        committed_rounds_are_whole()


def timed(work: Callable[[], None]) -> float:
    """How long it takes when nobody kills it."""
    start = time.monotonic()
    if not finished(forked(work)):
        raise SystemExit("a child was killed by somebody else")
    return time.monotonic() - start


def kills(place: Path, n_kills: int, rng: random.Random) -> dict[str, Any]:
    """Kill recorder, observe and watch so often between them; compare with what was never killed."""
    seconds = {}
    with contextlib.chdir(place / "whole"):
        for work in (record, observe, watch):
            seconds[work.__name__] = timed(work)
        expected = content(Path())
    done: Counter[str] = Counter()
    trial = 0
    while sum(done.values()) < n_kills:
        folder = place / f"trial-{trial}"
        folder.mkdir()
        trial += 1
        with contextlib.chdir(folder):
            watcher_of(rng, seconds, done)
            for work in (record, observe, watch):
                done[work.__name__] += kill_until_done(work, seconds[work.__name__], rng, most=6)
            if content(Path()) != expected:
                odd = [name for name, data in content(Path()).items() if expected.get(name) != data]
                raise SystemExit(f"trial {trial}: other bytes than without kills in {odd}")
        shutil.rmtree(folder)
    return {"kills": dict(done), "n_kills": done.total(), "trials_with_equal_bytes": trial}


def watcher_of(rng: random.Random, seconds: dict[str, float], done: Counter[str]) -> None:
    """Watch while the recorder is at work, and kill both."""
    recorder, watcher = forked(record), forked(watch)
    time.sleep(rng.uniform(0, seconds["record"]))
    for name, child in (("watch", watcher), ("record", recorder)):
        os.kill(child, signal.SIGKILL)
        done[name] += not finished(child)
    committed_rounds_are_whole()


def full_device(place: Path) -> dict[str, Any]:
    """A device that takes no more, at every size of file from nothing to all of it."""
    n_refused = 0
    small_ledger(place / "model")
    whole = (place / "model" / "rounds" / "000000.safetensors").stat().st_size
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    for limit in range(0, whole, max(1, whole // 50)):
        folder = place / f"full-{limit}"
        writer = create_ledger(folder, ["a"], aggregation="uniform")
        model = {"w": torch.ones(3, 4), "n": torch.tensor(1)}
        writer.record_round(model, {"a": Answer(model, 1)})
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
        try:
            writer.record_round(model, {"a": Answer(model, 1)})
        except LedgerError as error:
            n_refused += "rounds before it are intact" in str(error)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        if verify_ledger(folder).n_rounds not in (1, 2):
            raise SystemExit(f"full device: {folder} lost a round")
        writer.record_round(model, {"a": Answer(model, 1)})
        verify_ledger(folder)
    return {"full_device_refusals": n_refused}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--corruptions", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.set_num_threads(1)
    start = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="fedworth-torture-") as folder:
        place = Path(folder)
        (place / "whole").mkdir()
        outcome = kills(place, args.kills, random.Random(args.seed))
        outcome |= full_device(place)
    jobs = [(args.seed + k, args.corruptions // 20) for k in range(20)]
    found, missed = Counter[str](), list[str]()
    with multiprocessing.Pool(2) as pool:
        for counts, problems in pool.imap_unordered(corruptions, jobs):
            found += counts
            missed += problems
    outcome |= {"corrupted": dict(sorted(found.items())), "n_corrupted": found.total(), "undetected": missed[:20]}
    sys.stdout.write(json.dumps({**outcome, "seconds": round(time.monotonic() - start)}, indent=2) + "\n")
    if missed:
        raise SystemExit(f"{len(missed)} corruptions went unnoticed")


if __name__ == "__main__":
    main()
