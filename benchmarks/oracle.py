"""How much faster the fast oracle is than the naive loop, and how exact: prints a Markdown table.

    python benchmarks/oracle.py [name …]
    python benchmarks/oracle.py --threads [name …]      two threads beside one, wall time; wants an idle machine

The naive loop averages state dicts, loads them, and predicts in batches of 128 under inference mode. One thread,
process time, best of several interleaved runs; the naive loop is timed on some of the coalitions and scaled. Errors are
of losses against a float64 loop. Clients have trained on two classes each of scikit-learn's digits, enlarged. With
`--threads` both take turns on an idle machine, and again beside a process that never rests: on two cores that leaves
little more than one, and two threads must not be slower than one. A ratio or an error that misses its bar is named at
the end, and the exit code is 1.
"""

import argparse
import copy
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
import torch.nn.functional as F
from bars import MOST_ERROR, Bars
from numpy.typing import NDArray
from sklearn.datasets import load_digits
from torch import nn

from fedworth.arrays import Memberships
from fedworth.coalitions import coalitions_of, prefixes
from fedworth.games.squares import draw_permutations
from fedworth.ledger.ledger import Model, Round
from fedworth.names import ModelName
from fedworth.oracle.fast.oracle import FastOracle
from fedworth.oracle.oracle import mix
from fedworth.oracle.weighting import Mixtures, mixtures
from fedworth.simulation.models import ModelSpec, build_model, state_of
from fedworth.task.task import Task

N_RUNS = 4
N_NAIVE = 12
N_EXACT = 12
TWO_THREADS = 1.6
"""Times as fast as one, where nobody else works."""

THREAD_SECONDS, MOST_TURNS = 8.0, 100


@dataclass(frozen=True)
class Case:
    """What is measured, on how many samples, and by how much the naive loop must be beaten."""

    module: Callable[[], nn.Module]
    shape: tuple[int, ...]
    n_samples: int
    coalitions: Callable[[], Memberships]
    at_least: float
    frozen: tuple[str, ...] = ()


class Recurrent(nn.Module):
    """An image read line by line: no affine prefix."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(28, 64, batch_first=True)
        self.head = nn.Linear(64, 10)

    def forward(self, lines: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.head(self.lstm(lines)[0][:, -1])
        return logits


def _model(name: ModelName, shape: tuple[int, ...], **options: Any) -> Callable[[], nn.Module]:
    return lambda: build_model(ModelSpec(name, shape, 10, **options))


def _all_of_ten() -> Memberships:
    return coalitions_of(np.arange(10), 10)[1:]


def _some_of_ten() -> Memberships:
    return np.random.default_rng(0).permutation(_all_of_ten())[:24]


def _prefixes_of_fifty() -> Memberships:
    coalitions = prefixes(draw_permutations(np.arange(50), 196, rng=np.random.default_rng(0)), 50)
    return coalitions[coalitions.any(axis=1)]


FLAT, GREY, COLOUR = (784,), (1, 28, 28), (3, 32, 32)
CONVOLUTIONS = ("0.", "3.")
CASES = {
    "logistic 784→10": Case(_model("logistic", FLAT), FLAT, 10_000, _all_of_ten, 150),
    "MLP 784-200-10": Case(_model("mlp", FLAT, hidden=(200,)), FLAT, 10_000, _all_of_ten, 45),
    "MLP 784-200-200-10": Case(_model("mlp", FLAT, hidden=(200, 200)), FLAT, 10_000, _all_of_ten, 5),
    "logistic, 9,800 prefixes of 50": Case(_model("logistic", FLAT), FLAT, 2_000, _prefixes_of_fifty, 150),
    "MLP 784-200-10, 9,800 prefixes of 50": Case(
        _model("mlp", FLAT, hidden=(200,)), FLAT, 2_000, _prefixes_of_fifty, 60
    ),
    "CNN": Case(_model("cnn", GREY), GREY, 2_000, _some_of_ten, 1.8),
    "VGG16-BN, widths/4": Case(_model("vgg16-bn", COLOUR, width_divisor=4), COLOUR, 500, _some_of_ten, 1.3),
    "CNN, convolutions frozen": Case(_model("cnn", GREY), GREY, 2_000, _all_of_ten, 100, frozen=CONVOLUTIONS),
    "LSTM": Case(Recurrent, (28, 28), 2_000, _some_of_ten, 1),
}


def digits(shape: tuple[int, ...], n_samples: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Digits enlarged to a shape, each drawn again and again with a little noise."""
    data = load_digits()
    generator = torch.Generator().manual_seed(seed)
    chosen = torch.randint(0, len(data.target), (n_samples,), generator=generator)
    images = torch.tensor(data.images[chosen.numpy()], dtype=torch.float32)[:, None] / 16  # (n_samples, 1, 8, 8)
    side = shape[-1] if len(shape) > 1 else 28
    large = F.interpolate(images, size=(side, side), mode="bilinear", align_corners=False)
    large = large + 0.1 * torch.randn(large.shape, generator=generator)
    channels = shape[0] if len(shape) == 3 else 1
    return large.expand(-1, channels, -1, -1).reshape(n_samples, *shape), torch.tensor(data.target[chosen.numpy()])


def trained(module: nn.Module, case: Case, client: int) -> Model:
    """The client's model: ten steps on samples of two classes, frozen tensors left as they are."""
    local = copy.deepcopy(module).train()
    parameters = [p for name, p in local.named_parameters() if not name.startswith(case.frozen or ("-",))]
    optimizer = torch.optim.SGD(parameters, lr=0.05)
    inputs, labels = digits(case.shape, 400, seed=client)
    kept = torch.isin(labels, torch.tensor([client % 10, (client + 1) % 10]))
    for _ in range(10):
        optimizer.zero_grad()
        F.cross_entropy(local(inputs[kept]), labels[kept]).backward()
        optimizer.step()
    return state_of(local)


def averaged(models: list[Model]) -> Model:
    return {name: sum(model[name] for model in models) / len(models) for name in models[0]}  # type: ignore[misc]


def federated(case: Case, n_clients: int) -> tuple[Task, Round]:
    """A task, and the second round of a federation."""
    module = case.module().eval()
    first = [trained(module, case, k) for k in range(n_clients)]
    start = {name: t.to(first[0][name].dtype) for name, t in averaged(first).items()}
    module.load_state_dict(start)
    clients = {k: trained(module, case, k) for k in range(n_clients)}
    return Task(module.eval(), *digits(case.shape, case.n_samples, seed=1000)), Round(
        cast(Any, None), start, clients, {}
    )


def naive_losses(task: Task, round_: Round, coalitions: Memberships) -> list[float]:
    """One coalition after the other, as everybody does it."""
    losses = []
    for coalition in coalitions:
        members = [round_.client_models[k] for k in np.flatnonzero(coalition).tolist()]
        task.module.load_state_dict(averaged(members))
        with torch.inference_mode():
            pairs = zip(task.inputs.split(128), task.labels.split(128), strict=True)
            losses.append(sum(F.cross_entropy(task.module(x), y, reduction="sum").item() for x, y in pairs))
    return [loss / len(task.labels) for loss in losses]


def exact_utilities(task: Task, round_: Round, wanted: Mixtures) -> NDArray[np.float64]:
    """The plain loop in float64."""
    module = copy.deepcopy(task.module).double()
    inputs = task.inputs.double() if task.inputs.is_floating_point() else task.inputs
    models = {k: _widened(model) for k, model in round_.client_models.items()}
    losses = []
    for row, of_global in zip(wanted.of_clients, wanted.of_global.tolist(), strict=True):
        module.load_state_dict(mix(_widened(round_.global_model), models, row, of_global))
        with torch.inference_mode():
            losses.append(F.cross_entropy(module(inputs), task.labels).item())
    return np.array(losses)


def _widened(model: Model) -> Model:
    return {name: t.double() if t.is_floating_point() else t for name, t in model.items()}


def seconds(work: Callable[[], object]) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start


def measure(name: str, case: Case, bars: Bars) -> str:
    """One row of the table."""
    coalitions = case.coalitions()
    n_clients = coalitions.shape[1]
    task, round_ = federated(case, n_clients)
    wanted = mixtures(coalitions, np.ones(n_clients), "uniform")
    oracle = FastOracle(copy.deepcopy(task), n_threads=1)
    some = coalitions[:: max(1, len(coalitions) // N_NAIVE)][:N_NAIVE]
    first = seconds(lambda: oracle.utilities(round_, wanted))
    naive, fast = [], []
    for _ in range(N_RUNS):
        naive.append(seconds(lambda: naive_losses(task, round_, some)) / len(some))
        fast.append(seconds(lambda: oracle.utilities(round_, wanted)) / len(coalitions))
    error = largest_error(oracle, task, round_, wanted)
    ratio = min(naive) / min(fast)
    bars.at_least(f"{name}, times the naive loop", ratio, case.at_least)
    bars.at_most(f"{name}, error", error, MOST_ERROR)
    rates = f"{1 / min(naive):,.1f} | {1 / min(fast):,.1f} | **{ratio:,.2f}×** | {case.at_least:g}×"
    set_up, route = first - min(fast) * len(coalitions), oracle.describe().partition(":")[0]
    size = f"{len(coalitions):,} × {case.n_samples:,}"
    return f"| {name} | {size} | {rates} | {error:.1e} | {route} | {set_up:.1f} |"


def largest_error(oracle: FastOracle, task: Task, round_: Round, wanted: Mixtures) -> float:
    """Of losses: utilities are differences to the global model's, whose own error is counted too."""
    chosen = np.linspace(0, len(wanted) - 1, N_EXACT).astype(int)
    nobody = mixtures(np.zeros((1, len(wanted.weights)), dtype=bool), wanted.weights, "uniform")
    before = exact_utilities(task, round_, nobody)
    expected = before - exact_utilities(task, round_, wanted.rows(chosen))
    return float(np.abs(oracle.utilities(round_, wanted)[chosen] - expected).max())


@contextmanager
def busy_process() -> Iterator[None]:
    """Another process that never rests."""
    process = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        yield
    finally:
        process.kill()
        process.wait()


def thread_row(name: str, case: Case, bars: Bars) -> str:
    """One row of the table of threads: wall time on one thread over that on two, alone and beside a busy process."""
    coalitions = case.coalitions()
    task, round_ = federated(case, coalitions.shape[1])
    wanted = mixtures(coalitions, np.ones(coalitions.shape[1]), "uniform")
    oracles = {n: FastOracle(copy.deepcopy(task), n_threads=n) for n in (1, 2)}
    measured = [oracle.utilities(round_, wanted).tobytes() for oracle in oracles.values()]  # and it compiles
    assert measured[0] == measured[1], "one thread and two must give the same bits"

    def turns() -> NDArray[np.float64]:
        """(n_turns, 2): seconds on one thread and on two, taking turns."""
        spent: list[list[float]] = []
        start = time.perf_counter()
        while len(spent) < N_RUNS or (time.perf_counter() - start < THREAD_SECONDS and len(spent) < MOST_TURNS):
            spent.append([wall_seconds(lambda o=o: o.utilities(round_, wanted)) for o in oracles.values()])  # type: ignore[misc]
        return np.array(spent)

    alone = turns()
    with busy_process():
        beside = turns()
    best = [taken[:, 0].min() / taken[:, 1].min() for taken in (alone, beside)]
    median = [np.median(taken[:, 0] / taken[:, 1]) for taken in (alone, beside)]  # of turns that follow each other
    ratios = [best[0], median[0], best[1], median[1]]
    bars.at_least(f"{name}, two threads over one, alone, best", ratios[0], TWO_THREADS)
    bars.at_least(f"{name}, two threads over one, busy, best", ratios[2], 1.0)
    bars.at_least(f"{name}, two threads over one, busy, median", ratios[3], 1.0)
    return f"| {name} | {1e3 * alone[:, 0].min():,.0f} ms | " + " | ".join(f"{ratio:.2f}×" for ratio in ratios) + " |"


def wall_seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def main(names: list[str], only_threads: bool) -> None:
    torch.set_num_threads(1)
    bars = Bars()
    chosen = {name: case for name, case in CASES.items() if not names or any(wanted in name for wanted in names)}
    if only_threads:
        print("| two threads over one | one thread | alone, best | alone, median | busy, best | busy, median |")
        print("| --- |" + " ---: |" * 5)
        for name, case in chosen.items():
            print(thread_row(name, case, bars), flush=True)
        bars.close()
    print("| model | coalitions × samples | naive /s | fedworth /s | ratio | asked for | error | route | first s |")
    print("| --- | --- |" + " ---: |" * 5 + " --- | ---: |")
    for name, case in chosen.items():
        print(measure(name, case, bars), flush=True)
    bars.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=sys.modules[__name__].__doc__)
    parser.add_argument("names", nargs="*", help="measure only models whose name contains one of these")
    parser.add_argument("--threads", action="store_true", help="two threads over one instead, idle and busy")
    given = parser.parse_args()
    main(given.names, given.threads)
