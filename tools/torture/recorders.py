"""Several recorders at one ledger, and readers beside one: no round that was acknowledged is ever lost.

Recorders: some processes go for the same ledger at the same time, each recording as soon as it may, some killed at a
random instant. Each writes down every round that it was told is recorded. In the end the ledger must verify and hold
exactly the rounds that were written down, but for one a kill: a round committed by a process that did not live to say
so. Readers: `watch`, `observe` and `verify` run beside a recorder; none may fail, and all must end with what a ledger
gives that nobody touched meanwhile.
"""

import hashlib
import os
import random
import signal
import time
from functools import partial
from pathlib import Path

import torch

from fedworth.cli.main import main as fedworth_command
from fedworth.errors import LedgerError
from fedworth.ledger.ledger import Ledger
from fedworth.ledger.manifest import HEADER
from fedworth.ledger.writer import Answer, LedgerWriter
from fedworth.simulation.settings import SimulationSettings
from fedworth.simulation.simulate import simulate
from tools.torture.children import Ended, done, forked, wait

SETTINGS = SimulationSettings(
    n_clients=3, copies=(), n_participants=2, n_rounds=5, train_limit=90, test_limit=40, n_steps=1
)


def go_for(folder: Path, said: Path, seed: int, n_rounds: int) -> int:
    """A recorder that takes the ledger whenever it can, records a few rounds, lets go, and comes again."""
    rng, n_recorded = random.Random(seed), 0
    with said.open("ab", buffering=0) as told:
        while n_recorded < n_rounds:
            try:
                writer = _opened(folder)
            except LedgerError as error:
                if "is being recorded by" not in str(error):
                    raise
                time.sleep(rng.uniform(0, 0.002))
                continue
            for _ in range(rng.randint(1, 3)):
                n_recorded += 1
                _record(writer, seed * 1000 + n_recorded)
                told.write(f"{seed * 1000 + n_recorded}\n".encode())
            writer.release()
    return 0


def _opened(folder: Path) -> LedgerWriter:
    if (folder / HEADER).exists():
        return LedgerWriter.resume(folder)
    try:
        return LedgerWriter.create(folder, ["a", "b"], aggregation="samples")
    except Exception as error:
        if (folder / HEADER).exists():  # another was first
            raise LedgerError(f"{folder}: is being recorded by another process") from error
        raise


def model(seed: int) -> dict[str, torch.Tensor]:
    """A model that tells which round it is of."""
    return {"w": torch.full((4, 5), float(seed))}


def _record(writer: LedgerWriter, seed: int) -> None:
    writer.record_round(model(seed), {name: Answer(model(seed + k), 1 + k) for k, name in enumerate("ab")})


def recorders_trial(place: Path, seed: int, *, n_recorders: int = 3, n_rounds: int = 4) -> list[str]:
    """Let some go for one ledger, kill one or none of them; what went wrong."""
    rng = random.Random(seed)
    place.mkdir(parents=True)
    names = range(1, n_recorders + 1)
    children = {k: forked(partial(go_for, place / "l", place / f"{k}", k, n_rounds), place / f"{k}.log") for k in names}
    killed = rng.choice([0, *names])
    if killed:
        time.sleep(rng.uniform(0, 0.15))
        os.kill(children[killed], signal.SIGKILL)
    ends = {k: wait(child, place / f"{k}.log") for k, child in children.items()}
    if not (place / "l" / HEADER).exists():
        return ["no ledger was made"]
    return [*_failed(ends, killed), *_lost(place, Ledger.verify(place / "l"), bool(killed))]


def _failed(ends: dict[int, Ended], killed: int) -> list[str]:
    return [f"recorder {k} failed: {ended.err[-400:]}" for k, ended in ends.items() if ended.code and k != killed]


def _lost(place: Path, ledger: Ledger, was_killed: bool) -> list[str]:
    """Rounds that were acknowledged and are not there, or are there and nobody recorded them."""
    files = [path for path in place.iterdir() if path.name.isdigit()]
    told = [int(line) for path in files for line in path.read_bytes().splitlines()]
    found = [int(round_.global_model["w"][0, 0]) for round_ in ledger.rounds()]
    wrong = [f"round {seed} was acknowledged, and is lost" for seed in set(told) - set(found)]
    extra = len(found) - len(told)
    if len(set(found)) != len(found) or extra not in ((0, 1) if was_killed else (0,)):
        wrong.append(f"{len(told)} rounds were acknowledged, and {len(found)} are there")
    return wrong


def simulated(ledger: Path) -> None:
    """Record a small federation."""
    simulate(SETTINGS, ledger)


def readers_trial(place: Path, seed: int, expected: str) -> list[str]:
    """Watch, observe and verify while a recorder works, again and again; what went wrong."""
    place.mkdir(parents=True)
    rng, ledger = random.Random(seed), place / "l"
    recorder = forked(partial(simulated, ledger), place / "record.log")
    watched = ["watch", str(ledger), "--every", "0.01", "--out", str(place / "w")]
    watcher = forked(lambda: fedworth_command(watched), place / "watch.log")
    wrong, n_looks = list[str](), 0
    while (os.waitpid(recorder, os.WNOHANG) == (0, 0)) and n_looks < 200:
        n_looks += 1
        time.sleep(rng.uniform(0, 0.02))
        if (ledger / HEADER).exists():
            wrong += _looked(ledger, place, n_looks, rng)
    ended = wait(watcher, place / "watch.log")
    wrong += [f"watch failed: {ended.err[-400:]}"] if ended.code else []
    return wrong + ([] if observed(ledger, place / "end") == expected else ["other utilities than without readers"])


def _looked(ledger: Path, place: Path, number: int, rng: random.Random) -> list[str]:
    """One look at a ledger that grows; a ledger without rounds yet is all that may be refused."""
    out = ["--out", str(place / f"u{number}.npz")]
    argv = rng.choice([["verify", str(ledger)], ["observe", str(ledger), *out], ["observe", str(ledger), *out]])
    ended = done(lambda: fedworth_command(argv), place / "look.log", seconds=120)
    if ended.code in (0, 4) and (ended.code == 0 or "no recorded rounds" in ended.err):
        return []
    return [f"{argv[0]} failed with {ended.code}: {ended.err[-400:]}"]


def observed(ledger: Path, place: Path) -> str:
    """The sha256 of a ledger's utilities and its manifest."""
    place.mkdir(parents=True, exist_ok=True)
    argv = ["observe", str(ledger), "--out", str(place / "u.npz")]
    ended = done(lambda: fedworth_command(argv), place / "observe.log", seconds=120)
    if ended.code:
        return ended.err
    return hashlib.sha256((place / "u.npz").read_bytes() + (ledger / "manifest.jsonl").read_bytes()).hexdigest()


def recorders(place: Path, n_trials: int, seed: int) -> tuple[int, list[str]]:
    """So many trials of several recorders; how many rounds were recorded in all, and what went wrong."""
    n_rounds, wrong = 0, list[str]()
    for trial in range(n_trials):
        wrong += [f"trial {trial}: {problem}" for problem in recorders_trial(place / str(trial), seed + trial)]
        n_rounds += Ledger.verify(place / str(trial) / "l").n_rounds
    return n_rounds, wrong


def readers(place: Path, n_trials: int, seed: int) -> list[str]:
    """So many trials of readers beside a recorder; what went wrong."""
    place.mkdir(parents=True)
    done(partial(simulated, place / "alone"), place / "alone.log", seconds=120)
    expected = observed(place / "alone", place / "expected")
    return [problem for k in range(n_trials) for problem in readers_trial(place / str(k), seed + k, expected)]
