"""Predicting absent clients' large models, beside the evaluations: CPU time and memory; prints a Markdown table.

    python benchmarks/prediction.py [--parts] [--width 1600 5000] [--samples 200] [--out FOLDER]

A made-up federation of 6 clients, all in the first of four rounds and three in the others. The module is a residual
perceptron of four layers of WIDTH units: 10 million parameters with 1,600, 100 million with 5,000. Updates are random:
a direction that all clients share, one of each client, and noise. Each case is recorded by one child process and valued
by another, by predicted models and sampled coalitions; its ledger (0.8 GB, 8 GB) is removed afterwards.

*Evaluations* are all forward passes, with the mixing of their models: of coalitions, of checks of predictions, and for
the outputs that show which clients are alike. *Prediction* is what comes before: inner products of updates, Gaussian
processes, and the predicted models themselves. *Else* is reading, hashing and checking the ledger, and the estimator.
With --parts only one evaluation of a coalition of four is timed, three predicted models, and all inner products.
Memory is the process's own (RssAnon at its peak), and what predicted models take in a temporary file.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from memory import Watch
from torch import nn

from fedworth.completion.models import complete, updates
from fedworth.completion.models.gaussian_process import GaussianProcess
from fedworth.ledger.ledger import Ledger
from fedworth.oracle import oracle
from fedworth.oracle.weighting import mixtures, participation
from fedworth.recording.recorder import record_into
from fedworth.task.task import Task
from fedworth.valuation.federation import Federation
from fedworth.valuation.settings import WorkSettings

N_CLIENTS, N_PRESENT, N_ROUNDS, N_INPUTS, N_CLASSES = 6, 3, 4, 64, 10
HEAD = (
    "| parameters | a model, MB | one pass, s | forward passes, s | mixing, s | products, s | predicted models, s | "
    "processes, s | else, s | prediction / evaluations | own GB | in a file, GB |"
)
State = dict[str, torch.Tensor]


class Residual(nn.Module):
    """x + ReLU(layer), four times."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(N_INPUTS, width), nn.Linear(width, N_CLASSES)
        self.layers = nn.ModuleList([nn.Linear(width, width) for _ in range(4)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.first(x)
        for layer in self.layers:
            h = h + torch.relu(layer(h))
        found: torch.Tensor = self.last(h)
        return found


def module_of(width: int) -> nn.Module:
    torch.manual_seed(0)
    return Residual(width).eval()


def moved(start: State, client: int, round_index: int) -> State:
    """The model that a client sends."""
    found = {}
    for place, (name, tensor) in enumerate(start.items()):
        model = tensor.clone()
        for seed, size in ((0, 0.02), (1 + client, 0.03), (100 + 10 * round_index + client, 0.02)):
            noise = torch.randn(tensor.shape, generator=torch.Generator().manual_seed(1000 * seed + place))
            model += size / N_INPUTS * noise * tensor.abs().mean() * N_INPUTS**0.5
        found[name] = model
    return found


def record(folder: Path, width: int) -> None:
    """A ledger of made-up updates."""
    names, rng = [f"site-{k}" for k in range(N_CLIENTS)], np.random.default_rng(1)
    start = {name: tensor.detach().clone() for name, tensor in module_of(width).state_dict().items()}
    recorder = record_into(folder, names, aggregation="uniform")
    for t in range(N_ROUNDS):
        chosen = range(N_CLIENTS) if t == 0 else sorted(rng.choice(N_CLIENTS, N_PRESENT, replace=False).tolist())
        recorder.start_round(start, asked=[names[k] for k in chosen])
        mean = {name: torch.zeros_like(tensor) for name, tensor in start.items()}
        for k in chosen:
            model = moved(start, k, t)
            recorder.client_model(names[k], model, 100)
            for name, tensor in model.items():
                mean[name].add_(tensor, alpha=1 / len(chosen))
        recorder.end_round()
        start = mean
    recorder.close(start)


class Clock:
    """CPU seconds and calls of functions, each without those of the others that it calls."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self.calls = Counter[str]()
        self.running: list[str] = ["else"]
        self.since = time.process_time()

    def turn(self) -> None:
        now = time.process_time()
        self.seconds[self.running[-1]] += now - self.since
        self.since = now

    def watch(self, owner: Any, name: str, what: str) -> None:
        """Count the time in a function of a module or class as that of `what`."""
        function: Callable[..., Any] = getattr(owner, name)

        def timed(*args: Any, **keywords: Any) -> Any:
            self.turn()
            self.running.append(what)
            self.calls[what] += 1
            try:
                return function(*args, **keywords)
            finally:
                self.turn()
                self.running.pop()

        setattr(owner, name, timed)


def value(folder: Path, width: int, n_samples: int) -> dict[str, Any]:
    """What the values by predicted models take."""
    clock = Clock()
    clock.watch(Task, "outputs", "forward")
    clock.watch(oracle, "mix_into", "mixing")
    clock.watch(updates.Updates, "combine", "models")
    clock.watch(updates.Updates, "products", "products")
    clock.watch(GaussianProcess, "predict", "process")
    clock.watch(GaussianProcess, "leave_out", "process")
    clock.watch(complete, "singleton_gp", "process")
    clock.watch(complete, "value_covariance", "process")
    generator = torch.Generator().manual_seed(3)
    inputs = torch.randn(n_samples, N_INPUTS, generator=generator)
    task = Task(module_of(width), inputs, torch.randint(N_CLASSES, (n_samples,), generator=generator))
    with torch.inference_mode():
        started = time.process_time()
        task.module(inputs)
        one = time.process_time() - started
    with Watch(every=0.01) as watch:
        found = Federation(Ledger.open(folder), task, work=WorkSettings(cache=False), sampled=True).value()
    clock.turn()
    n = sum(p.numel() for p in task.module.parameters())
    on_disk = 4 * n * (N_CLIENTS - N_PRESENT) if 4 * n * (N_CLIENTS - N_PRESENT) > updates.MOST_IN_MEMORY else 0
    return {
        "n": n, "one": one, "gb": watch.peak / 1e9, "disk": on_disk / 1e9, "seconds": clock.seconds,
        "calls": clock.calls, "evaluations": found.n_evaluations,
    }  # fmt: skip


def parts(folder: Path, width: int, n_samples: int) -> dict[str, float]:
    """CPU seconds of an evaluation of four clients, of three predicted models, and of all inner products."""
    task = Task(module_of(width), torch.randn(n_samples, N_INPUTS), torch.zeros(n_samples, dtype=torch.int64))
    ledger, found = Ledger.open(folder), {}

    def seconds(function: Callable[[], Any]) -> float:
        started = time.process_time()
        function()
        return time.process_time() - started

    with Watch(every=0.01) as watch:
        all_of_them = updates.Updates(tuple(ledger.rounds()), participation(ledger))
        n, round_ = len(all_of_them), ledger.open_round(0)
        members = mixtures(np.arange(N_CLIENTS)[None] < 4, np.ones(N_CLIENTS), "uniform")
        model_of = oracle.mixer(round_, members, True)
        which = np.arange(n_samples)
        found["evaluation"] = seconds(lambda: oracle.outputs_on(task, model_of(0), which))
        found["products"] = seconds(lambda: all_of_them.products(np.arange(n)))
        found["models"] = seconds(lambda: all_of_them.combine(1, np.full((N_PRESENT, n), 1 / n)))
    return {**found, "n": sum(p.numel() for p in task.module.parameters()), "gb": watch.peak / 1e9}


def show_parts(found: dict[str, float]) -> None:
    n = int(found["n"])
    print(f"| {n:,} | {4 * n / 1e6:,.0f} | {found['evaluation']:.2f} | {found['models'] / N_PRESENT:.2f} | ", end="")
    print(f"{found['products']:.2f} | {found['gb']:.2f} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--width", type=int, nargs="*", default=[1600, 5000])
    parser.add_argument("--samples", type=int, default=200)
    parser.add_argument("--parts", action="store_true", help="one evaluation, three predicted models and the products")
    parser.add_argument("--out", type=Path, help="where the ledgers lie for a while; the folder for temporary files")
    parser.add_argument("--child", nargs=2, metavar=("STEP", "FOLDER"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.child:
        step, folder = args.child
        if step == "record":
            record(Path(folder), args.width[0])
        elif step == "parts":
            print(json.dumps(parts(Path(folder), args.width[0], args.samples)))
        else:
            print(json.dumps(value(Path(folder), args.width[0], args.samples)))
        return
    if args.parts:
        print("| parameters | a model, MB | an evaluation, s | a predicted model, s | all inner products, s | own GB |")
        print("| ---: |" + " ---: |" * 5)
    else:
        print(HEAD)
        print("| ---: |" + " ---: |" * 11)
    for width in args.width:
        with tempfile.TemporaryDirectory(dir=args.out) as folder:
            command = [sys.executable, __file__, "--width", str(width), "--samples", str(args.samples), "--child"]
            subprocess.run([*command, "record", f"{folder}/ledger"], check=True)
            step = "parts" if args.parts else "value"
            done = subprocess.run([*command, step, f"{folder}/ledger"], check=True, stdout=subprocess.PIPE)
        found = json.loads(done.stdout)
        if args.parts:
            show_parts(found)
            continue
        seconds = defaultdict(float, found["seconds"])
        evaluations = seconds["forward"] + seconds["mixing"]
        prediction = seconds["products"] + seconds["models"] + seconds["process"]
        columns = [f"{seconds[k]:.1f}" for k in ("forward", "mixing", "products", "models", "process", "else")]
        row = [f"{found['n']:,}", f"{found['n'] * 4 / 1e6:,.0f}", f"{found['one']:.2f}", *columns]
        print(f"| {' | '.join(row)} | {prediction / evaluations:.0%} | {found['gb']:.2f} | {found['disk']:.2f} |")
        print(f"{found['calls']} {found['evaluations']} evaluations", file=sys.stderr)


if __name__ == "__main__":
    main()
