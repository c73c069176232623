"""A large model and few coalitions: the fast oracle beside the plain loop, in time and memory; prints a Markdown table.

    python benchmarks/large.py

A network of 105 MB, 4 clients, 15 coalitions, 200 samples. Each oracle works in a process of its own, on one thread;
the two take turns, and the medians count. Memory is the peak of the process. The fast oracle must not be slower, nor
take more than half as much again. A bar that is missed is named at the end, and the exit code is 1.
"""

import json
import resource
import statistics
import subprocess
import sys
import time
from typing import Any, cast

import numpy as np
import torch
from bars import Bars
from torch import nn

from fedworth.coalitions import coalitions_of
from fedworth.ledger.ledger import Round
from fedworth.oracle.fast.oracle import FastOracle
from fedworth.oracle.oracle import LoopOracle
from fedworth.oracle.weighting import mixtures
from fedworth.simulation.models import state_of
from fedworth.task.task import Task

N_CLIENTS, N_TURNS = 4, 3
MOST_TIME, MOST_MEMORY, NOISE = 1.0, 1.5, 0.04
"""Times the plain loop's. The route is that very loop, so its time is the loop's up to the noise of a machine, a share
of which is let pass."""


def network() -> nn.Module:
    """Convolutions and wide linear layers, 26 million weights."""
    return nn.Sequential(
        nn.Conv2d(3, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(64, 128, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(128 * 8 * 8, 2900), nn.ReLU(), nn.Linear(2900, 800), nn.ReLU(), nn.Linear(800, 10),
    )  # fmt: skip


def child(which: str) -> None:
    """Measure once with one oracle, and say what it took."""
    torch.set_num_threads(1)
    torch.manual_seed(2022)
    module = network().eval()
    origin = state_of(module)
    clients = {k: {name: t + 0.01 * torch.randn_like(t) for name, t in origin.items()} for k in range(N_CLIENTS)}
    task = Task(module, torch.randn(200, 3, 32, 32), torch.randint(0, 10, (200,)))
    round_ = Round(cast(Any, None), origin, clients, {})
    wanted = mixtures(coalitions_of(np.arange(N_CLIENTS), N_CLIENTS)[1:], np.ones(N_CLIENTS), "uniform")
    oracle = FastOracle(task, n_threads=1) if which == "fast" else LoopOracle(task)
    start = time.process_time()
    oracle.utilities(round_, wanted)
    taken = time.process_time() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    route = oracle.describe() if isinstance(oracle, FastOracle) else "plain loop"
    print(json.dumps({"seconds": taken, "megabytes": peak, "route": route}))


def measured(which: str) -> dict[str, Any]:
    done = subprocess.run([sys.executable, __file__, which], capture_output=True, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def main() -> None:
    """Both oracles, taking turns."""
    found: dict[str, list[dict[str, Any]]] = {"loop": [], "fast": []}
    for _ in range(N_TURNS):
        for which, runs in found.items():
            runs.append(measured(which))
    print("| oracle | CPU s | peak MB | route |\n| --- | ---: | ---: | --- |")
    medians = {}
    for which, runs in found.items():
        middle = {key: statistics.median(run[key] for run in runs) for key in ("seconds", "megabytes")}
        medians[which] = middle
        print(f"| {which} | {middle['seconds']:.1f} | {middle['megabytes']:,.0f} | {runs[0]['route']} |", flush=True)
    bars = Bars()
    for key, most in (("seconds", MOST_TIME + NOISE), ("megabytes", MOST_MEMORY)):
        bars.at_most(f"105 MB, {key} over the loop's", medians["fast"][key] / medians["loop"][key], most)
    bars.close()


if __name__ == "__main__":
    child(sys.argv[1]) if len(sys.argv) > 1 else main()
