"""What valuing reads of a ledger, how much memory it takes, and how long opening one takes; prints Markdown tables.

    python benchmarks/ledger_io.py [--quick]

A ledger of 100 rounds × 10 clients × 200,000 parameters, valued by leave-one-out; its server's rule is checked too.
Read bytes are those that the process asked the kernel for (`rchar` in /proc/self/io: hashing a round reads all of it)
plus what it touches of the same files through memory maps and the kernel did not have (major faults × page size: none
when the hash has just read the file). Memory is the resident set that is the process's own (RssAnon: the memory-mapped
files count as the kernel's, who may take their pages back at any time), its peak above what it was before the first
round, and, for comparison, with the mapped pages (VmHWM). Rounds' worth: one round's file, global model and clients.

Opening reads the manifest, checks its chain and lists the files: 32,000 rounds whose files are empty, since none is
opened. Either the same 10 clients answer in each, or 9 of 100 drawn at random, from named nodes, and one fails.
"""

import argparse
import hashlib
import resource
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import torch
from memory import Watch, status

from fedworth.ledger.ledger import Ledger
from fedworth.ledger.manifest import HEADER, MANIFEST, RoundEntry, line_bytes
from fedworth.ledger.writer import Answer, LedgerWriter
from fedworth.oracle.fast import FastOracle
from fedworth.oracle.oracle import LoopOracle, Oracle
from fedworth.oracle.weighting import mixtures
from fedworth.simulation.models import ModelSpec, build_model, state_of
from fedworth.task.task import Task
from fedworth.valuation.federation import Federation
from fedworth.valuation.settings import WorkSettings

HIDDEN = 252  # 784·252 + 252 + 252·10 + 10 = 200,350 parameters
MOST_READ, MOST_ROUNDS = 1.1, 3.0
MANY_ROUNDS, MOST_SECONDS = 32_000, 1.0


def main() -> None:
    """Write the ledger, observe it with each oracle, and hold what that took against the bars."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="10 rounds")
    n_rounds = 10 if parser.parse_args().quick else 100
    module = build_model(ModelSpec("mlp", (784,), 10, (HIDDEN,)))
    rng = np.random.default_rng(0)
    inputs = torch.from_numpy(rng.normal(size=(256, 784)).astype(np.float32))
    task = Task(module, inputs, torch.from_numpy(rng.integers(0, 10, 256)))
    _show("| oracle | ledger MB | read / its bytes | own peak, rounds' worth | with mapped pages | |")
    _show("| --- | ---: | ---: | ---: | ---: | --- |")
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "ledger"
        _write(folder, task, n_rounds)
        is_good = [_line(folder, oracle) for oracle in (FastOracle(task, n_threads=1), LoopOracle(task))]
        _show("\n| who answers | rounds | opened in, CPU s | |\n| --- | ---: | ---: | --- |")
        is_good += [_opening(Path(place) / name, name) for name in ("the same clients", "others each round")]
    sys.exit(0 if all(is_good) else 1)


def _write(folder: Path, task: Task, n_rounds: int) -> None:
    clients = [f"client {k}" for k in range(10)]
    writer = LedgerWriter.create(folder, clients, aggregation="uniform")
    model, generator = state_of(task.module), torch.Generator().manual_seed(0)
    for _ in range(n_rounds):
        answers = {}
        for name in clients:
            moved = {key: t + 0.01 * torch.randn(t.shape, generator=generator) for key, t in model.items()}
            answers[name] = Answer(moved, 100)
        writer.record_round(model, answers)
        sent = [answer.model for answer in answers.values()]
        model = {key: torch.stack([each[key] for each in sent]).mean(0) for key in model}  # as the server averages
    writer.close(model)


def _line(folder: Path, oracle: Oracle) -> bool:
    """Say what leave-one-out takes: the check of the server's rule and eleven coalitions of every round."""
    ledger = Ledger.open(folder)
    n_bytes = sum((folder / entry.file).stat().st_size for entry in ledger.entries)
    one, n_clients = n_bytes / ledger.n_rounds, len(ledger.clients)
    warm = mixtures(np.ones((1, n_clients), dtype=bool), np.ones(n_clients), "uniform")
    oracle.utilities(Ledger.open(folder).open_round(0), warm)  # finds its routes
    before, faults, hwm = _read_bytes(), _major_faults(), status("VmRSS")
    with Watch() as watch:
        Federation(ledger, oracle.task, oracle=oracle, work=WorkSettings(cache=False)).value("leave-one-out")
    read = _read_bytes() - before + (_major_faults() - faults) * resource.getpagesize()
    peak, mapped = (watch.peak - watch.start) / one, (status("VmHWM") - hwm) / one
    is_good = read <= MOST_READ * n_bytes and peak <= MOST_ROUNDS
    name = type(oracle).__name__
    _show(
        f"| {name} | {n_bytes / 1e6:,.0f} | {read / n_bytes:.3f} | {peak:.2f} | {mapped:.2f} | "
        f"{'good' if is_good else 'MISSED'} |"
    )
    return is_good


def _opening(folder: Path, who: str) -> bool:
    """Open a ledger of many rounds three times; the quickest counts, since others share the machine."""
    _forge(folder, is_same=who == "the same clients")
    seconds = []
    for _ in range(3):
        start = time.process_time()
        Ledger.open(folder)
        seconds.append(time.process_time() - start)
    is_good = min(seconds) <= MOST_SECONDS
    _show(f"| {who} | {MANY_ROUNDS:,} | {min(seconds):.2f} | {'good' if is_good else 'MISSED'} |")
    return is_good


def _forge(folder: Path, *, is_same: bool) -> None:
    """The manifest of a ledger as a recorder writes it, and files without anything in them."""
    LedgerWriter.create(folder, [f"client {k}" for k in range(100)], aggregation="samples").release()
    (folder / "rounds").mkdir(exist_ok=True)
    chain = hashlib.sha256((folder / HEADER).read_bytes()).hexdigest()
    rng = np.random.default_rng(0)
    with (folder / MANIFEST).open("wb") as manifest:
        for k in range(MANY_ROUNDS):
            entry = _entry(k, range(10) if is_same else np.sort(rng.choice(100, 10, replace=False)).tolist(), is_same)
            line, chain = line_bytes(entry, chain)
            manifest.write(line)
            (folder / entry.file).touch()


def _entry(round_index: int, asked: Iterable[int], is_same: bool) -> RoundEntry:
    asked = tuple(asked)
    answered = asked if is_same else asked[:-1]
    file = f"rounds/{round_index:06d}.safetensors"
    return RoundEntry(
        round_index=round_index,
        number=round_index,
        file=file,
        sha256=hashlib.sha256(file.encode()).hexdigest(),
        asked=asked,
        answered=answered,
        participants=answered,
        sample_counts=tuple(100 + k for k in answered),
        failed=asked[len(answered) :],
        failure_reasons=("node unavailable",) * (len(asked) - len(answered)),
        nodes=() if is_same else tuple(hashlib.sha256(bytes([k])).hexdigest()[:16] for k in answered),
    )


def _read_bytes() -> int:
    return int(Path("/proc/self/io").read_text().split("rchar: ")[1].split()[0])


def _major_faults() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_majflt


def _show(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
