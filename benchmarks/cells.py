"""What utilities by cell of test samples cost, over one sum: prints a Markdown table.

    python benchmarks/cells.py

All 1,024 coalitions of ten clients by the fast oracle, on random samples of ten classes: the loss summed over all test
samples; by cell (class × one of 32 random blocks), as reports measure it; and by cell with accuracy in the same pass.
One thread, process time, best of many interleaved runs. A ratio that misses its bar is named at the end, and the exit
code is 1.
"""

from dataclasses import replace

import numpy as np
import torch
from bars import Bars

from fedworth.coalitions import coalitions_of
from fedworth.oracle.fast import FastOracle
from fedworth.oracle.weighting import mixtures
from fedworth.simulation.models import ModelSpec, build_model
from fedworth.task.cells import divide
from oracle import Case, federated, seconds

N_CLIENTS, N_RUNS, AT_MOST = 10, 25, 1.2
CASES = {  # numbers of test samples, by model
    "logistic": [400, 2_000, 10_000],
    "mlp": [400, 2_000],
}


def measure(model: str, n_samples: int, bars: Bars) -> str:
    """One row of the table."""
    shape = (1, 28, 28)
    spec = ModelSpec(model, shape, 10, (64,) if model == "mlp" else ())  # type: ignore[arg-type]
    coalitions = coalitions_of(np.arange(N_CLIENTS), N_CLIENTS)
    task, round_ = federated(Case(lambda: build_model(spec), shape, n_samples, lambda: coalitions, 0), N_CLIENTS)
    whole = replace(task, blocks=None)
    cells, _ = divide(whole, whole.criterion("loss"))
    oracles = [FastOracle(whole, n_threads=1), FastOracle(cells, n_threads=1)]
    oracles.append(FastOracle(cells, n_threads=1, also=("accuracy",)))
    wanted = mixtures(coalitions, np.ones(N_CLIENTS), "uniform")
    for oracle in oracles:
        oracle.utilities(round_, wanted)  # finds its route
    times = np.array([[seconds(lambda: o.utilities(round_, wanted)) for o in oracles] for _ in range(N_RUNS)])  # noqa: B023
    one, by_cell, with_accuracy = 1000 * times.min(axis=0)
    bars.at_most(f"{model}, {n_samples:,} test samples, by cell", by_cell / one, AT_MOST)
    size = f"{n_samples:,} | {cells.n_blocks} | {one:.1f} | {by_cell:.1f} | {with_accuracy:.1f}"
    return f"| {model} | {size} | **{by_cell / one:.2f}×** | ≤ {AT_MOST}× | {with_accuracy / one:.2f}× |"


def main() -> None:
    torch.set_num_threads(1)
    bars = Bars()
    names = ("model", "test samples", "cells", "one sum, ms", "by cell, ms", "with accuracy, ms")
    print(f"| {' | '.join(names)} | by cell | asked for | with accuracy |")
    print("| --- |" + " ---: |" * 8)
    for model, sizes in CASES.items():
        for n_samples in sizes:
            print(measure(model, n_samples, bars), flush=True)
    bars.close()


if __name__ == "__main__":
    main()
