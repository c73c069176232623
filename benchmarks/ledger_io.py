"""What observing reads of a ledger, and how much memory it takes; prints a Markdown table.

    python benchmarks/ledger_io.py [--quick]

A ledger of 100 rounds × 10 clients × 200,000 parameters, of which every round has a coalition to be measured. Read
bytes are those that the process asked the kernel for (`rchar` in /proc/self/io: hashing a round reads all of it) plus
what it touches of the same files through memory maps and the kernel did not have (major faults × page size: none when
the hash has just read the file). Memory is the resident set that is the process's own (RssAnon: the memory-mapped
files count as the kernel's, who may take their pages back at any time), its peak above what it was before the first
round, and, for comparison, with the mapped pages (VmHWM). Rounds' worth: one round's file, global model and clients.
"""

import argparse
import resource
import sys
import tempfile
import threading
from pathlib import Path

import numpy as np
import torch

from fedworth.federation.simulation.models import ModelSpec, build_model, state_of
from fedworth.federation.task import Task
from fedworth.ledger.ledger import open_ledger
from fedworth.ledger.writer import Answer, create_ledger
from fedworth.utility.fast.oracle import FastOracle
from fedworth.utility.observe import observe, participation
from fedworth.utility.oracle import LoopOracle, Oracle
from fedworth.utility.planning.plan import Plan, plan_prefixes
from fedworth.utility.weighting import mixtures

HIDDEN = 252  # 784·252 + 252 + 252·10 + 10 = 200,350 parameters
MOST_READ, MOST_ROUNDS = 1.1, 3.0


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
        plan = plan_prefixes(participation(open_ledger(folder)), n_permutations=2, with_fedsv=False, rng=rng)
        is_good = [_line(folder, oracle, plan) for oracle in (FastOracle(task, n_threads=1), LoopOracle(task))]
    sys.exit(0 if all(is_good) else 1)


def _write(folder: Path, task: Task, n_rounds: int) -> None:
    clients = [f"client {k}" for k in range(10)]
    writer = create_ledger(folder, clients, aggregation="uniform")
    model, generator = state_of(task.module), torch.Generator().manual_seed(0)
    for _ in range(n_rounds):
        answers = {}
        for name in clients:
            moved = {key: t + 0.01 * torch.randn(t.shape, generator=generator) for key, t in model.items()}
            answers[name] = Answer(moved, 100)
        writer.record_round(model, answers)
    writer.close(model)


def _line(folder: Path, oracle: Oracle, plan: Plan) -> bool:
    ledger = open_ledger(folder)
    n_bytes = sum((folder / entry.file).stat().st_size for entry in ledger.entries)
    one = n_bytes / ledger.n_rounds
    coalitions = plan.cells[0][1:]
    warm = mixtures(coalitions, np.ones(coalitions.shape[1]), "uniform")
    oracle.utilities(ledger.open_round(0), warm)  # compiles, and finds its routes
    before, faults, hwm = _read_bytes(), _major_faults(), _status("VmRSS")
    with _Watch() as watch:
        observe(ledger, oracle, plan)
    read = _read_bytes() - before + (_major_faults() - faults) * resource.getpagesize()
    peak, mapped = watch.peak / one, (_status("VmHWM") - hwm) / one
    is_good = read <= MOST_READ * n_bytes and peak <= MOST_ROUNDS
    _show(
        f"| {type(oracle).__name__} | {n_bytes / 1e6:,.0f} | {read / n_bytes:.3f} | {peak:.2f} | {mapped:.2f} | "
        f"{'good' if is_good else 'MISSED'} |"
    )
    return is_good


class _Watch:
    """The largest private memory seen while watching, above what it was at first."""

    def __enter__(self) -> "_Watch":
        self.start, self.peak, self.stop = _status("RssAnon"), 0, threading.Event()
        self.thread = threading.Thread(target=self._look, daemon=True)
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop.set()
        self.thread.join()

    def _look(self) -> None:
        while not self.stop.wait(0.001):
            self.peak = max(self.peak, _status("RssAnon") - self.start)


def _read_bytes() -> int:
    return int(Path("/proc/self/io").read_text().split("rchar: ")[1].split()[0])


def _status(name: str) -> int:
    """A figure of /proc/self/status, in bytes."""
    return int(Path("/proc/self/status").read_text().split(f"{name}:")[1].split()[0]) * 1024


def _major_faults() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_majflt


def _show(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
