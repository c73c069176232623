"""Large federations from a ledger to the report: time, memory and standard errors; prints a Markdown table.

    python benchmarks/large.py [--data FOLDER] [case …]        thirty, hundred, thousand

    thirty     MLP 784-64-10, 9 of 30 clients a round, 20 rounds
    hundred    the same MLP, 30 of 100 clients a round, 100 rounds
    thousand   softmax regression, 300 of 1,000 clients a round, 100 rounds: half an hour; only if named

Clients have two digits of MNIST each (--data, or $FEDWORTH_DATA), the test set has 1,000 samples; everyone takes part
in the first round. Each case is simulated by one child process and valued by another. Memory is the process's own
(RssAnon, at its peak; the ledger's mapped pages are the kernel's). The standard error is that of sampled coalitions,
root mean square over the clients, relative to the spread of the values by models. Rows with a bar that miss it are
named at the end, and the exit code is 1.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from bars import Bars
from memory import Watch

from fedworth.ledger.ledger import Ledger
from fedworth.pipeline.report_on import report_on
from fedworth.simulation.settings import SimulationSettings
from fedworth.simulation.simulate import simulate, task_of

MNIST: dict[str, Any] = {"dataset": "mnist", "train_limit": 10_000, "test_limit": 1_000, "with_truth": False}
MLP: dict[str, Any] = {"model": "mlp", "hidden": (64,), "rate": 0.3, "n_steps": 10, "batch_size": 64}
CASES = {
    "thirty": SimulationSettings(n_clients=30, n_participants=9, n_rounds=20, **MNIST, **MLP),
    "hundred": SimulationSettings(n_clients=100, n_participants=30, n_rounds=100, **MNIST, **MLP),
    "thousand": SimulationSettings(n_clients=1000, n_participants=300, n_rounds=100, rate=0.1, **MNIST),
}
USUAL = ("thirty", "hundred")
BARS = {"thirty": (60.0, 2.0, 0.1), "hundred": (240.0, 3.0, 0.1), "thousand": (3600.0, 8.0, 0.1)}
"""CPU seconds, GB of own memory, standard error over spread."""


def main() -> None:
    """Each case in processes of its own."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", default=list(USUAL))
    parser.add_argument("--data", type=Path)
    parser.add_argument("--child", nargs=2, metavar=("STEP", "FOLDER"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        step, folder = args.child
        if step == "simulate":
            simulate(CASES[args.cases[0]], folder, data_folder=args.data)
        else:
            print(json.dumps(_valued(Path(folder), args.data)))
        return
    print("| case | N / K / T | wall s | CPU s | own GB | standard error / spread |")
    print("| --- | --- | ---: | ---: | ---: | ---: |")
    bars = Bars()
    for name in args.cases:
        settings = CASES[name]
        with tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, __file__, name, *(["--data", str(args.data)] if args.data else [])]
            subprocess.run([*command, "--child", "simulate", f"{folder}/ledger"], check=True)
            done = subprocess.run([*command, "--child", "value", f"{folder}/ledger"], check=True, capture_output=True)
        found = json.loads(done.stdout)
        sizes = f"{settings.n_clients:,} / {settings.n_participants} / {settings.n_rounds}"
        times = f"{found['wall']:.0f} | {found['cpu']:.0f} | {found['gb']:.2f}"
        print(f"| {name} | {sizes} | {times} | {found['error']:.3f} |", flush=True)
        for what, most in zip(("cpu", "gb", "error"), BARS[name], strict=True):
            bars.at_most(f"{name}, {what}", found[what], most)
    bars.close()


def _valued(folder: Path, data_folder: Path | None) -> dict[str, float]:
    ledger = Ledger.open(folder)
    task = task_of(ledger, data_folder=data_folder)
    start, cpu = time.monotonic(), time.process_time()
    with Watch(every=0.05) as watch:
        report = report_on(ledger, task)
    made = report.chosen
    errors = np.zeros(len(made)) if made.sampling_errors is None else made.sampling_errors
    return {
        "wall": time.monotonic() - start,
        "cpu": time.process_time() - cpu,
        "gb": watch.peak / 1e9,
        "error": float(np.sqrt(np.nanmean(errors**2)) / np.nanstd(made.values)),
    }


if __name__ == "__main__":
    main()
