"""How much faster the fast oracle is than the naive loop, and how exact: prints a Markdown table.

    python benchmarks/oracle.py [name …]

The naive loop averages state dicts, loads them, and predicts in batches of 128 under inference mode. The fast oracle
measures 32 blocks of test samples, and every measured call is the first one on a round, so that its comparison with the
plain loop counts. One thread, process time, best of several interleaved runs; the naive loop is timed on some of the
coalitions and scaled. Utilities are differences from the global model, so both measure it as well. Errors are of
utilities against a float64 loop. A ratio or an error that misses its bar is named at the end, and the exit code is 1.
"""

import copy
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
import torch
import torch.nn.functional as F
from bars import MOST_ERROR, Bars
from numpy.typing import NDArray
from torch import nn

from fedworth.arrays import Memberships
from fedworth.coalitions import coalitions_of, prefixes
from fedworth.ledger.ledger import Model, Round
from fedworth.oracle.fast import FastOracle
from fedworth.oracle.oracle import mix
from fedworth.oracle.weighting import Mixtures, mixtures
from fedworth.simulation.models import ModelSpec, build_model, state_of
from fedworth.task.task import Task

N_RUNS, N_NAIVE, N_EXACT, N_BLOCKS = 3, 24, 10, 32
NOTHING_SHARED = 0.95  # the same module in the same batches; setting parameters and the comparison come on top


@dataclass(frozen=True)
class Case:
    """A model, the shape of a sample, and by how much the naive loop must be beaten."""

    module: Callable[[], nn.Module]
    shape: tuple[int, ...]
    n_samples: int
    coalitions: Callable[[], Memberships]
    at_least: float
    frozen: tuple[str, ...] = ()  # tensors whose names begin so are not trained


class Recurrent(nn.Module):
    """An image read line by line."""

    def __init__(self, kind: Callable[..., nn.Module]) -> None:
        super().__init__()
        self.layer = kind(28, 64, batch_first=True)
        self.head = nn.Linear(64, 10)

    def forward(self, lines: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.head(self.layer(lines)[0][:, -1])
        return logits


class Attention(nn.Module):
    """The lines of an image attend to each other."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.MultiheadAttention(28, 4, batch_first=True)
        self.head = nn.Linear(28, 10)

    def forward(self, lines: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.head(self.layer(lines, lines, lines, need_weights=False)[0].mean(1))
        return logits


class Adapted(nn.Module):
    """A frozen linear layer with a low-rank adapter beside it, as LoRA has them."""

    def __init__(self, n_inputs: int, n_outputs: int, rank: int = 4) -> None:
        super().__init__()
        self.base = nn.Linear(n_inputs, n_outputs)
        self.lora_down = nn.Linear(n_inputs, rank, bias=False)
        self.lora_up = nn.Linear(rank, n_outputs, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        outputs: torch.Tensor = self.base(x) + self.lora_up(self.lora_down(x))
        return outputs


def _lora() -> nn.Module:
    layers = nn.Linear(256, 512), nn.GELU(), nn.Linear(512, 512), nn.GELU(), Adapted(512, 512), nn.GELU()
    return nn.Sequential(*layers, Adapted(512, 10))


def _transformer() -> nn.Module:
    layer = nn.TransformerEncoderLayer(28, 4, 64, dropout=0.0, batch_first=True)
    return nn.Sequential(layer, nn.Flatten(), nn.Linear(28 * 28, 10))


def _group_norm() -> nn.Module:
    layers = nn.Conv2d(1, 16, 3), nn.GroupNorm(4, 16), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 32, 3)
    return nn.Sequential(*layers, nn.GroupNorm(8, 32), nn.ReLU(), nn.Flatten(), nn.Linear(32 * 11 * 11, 10))


def _tabular() -> nn.Module:
    layers = nn.Linear(42, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 64), nn.BatchNorm1d(64), nn.ReLU()
    return nn.Sequential(*layers, nn.Linear(64, 10))


def _model(name: Any, shape: tuple[int, ...], **options: Any) -> Callable[[], nn.Module]:
    return lambda: build_model(ModelSpec(name, shape, 10, **options))


def _all_of_ten() -> Memberships:
    return coalitions_of(np.arange(10), 10)[1:]


def _some_of_ten() -> Memberships:
    return np.random.default_rng(0).permutation(_all_of_ten())[:24]


def _prefixes_of_fifty() -> Memberships:
    orders = np.random.default_rng(0).permuted(np.tile(np.arange(50), (196, 1)), axis=1)
    coalitions = prefixes(orders, 50)
    return coalitions[coalitions.any(axis=1)]


FLAT, GREY, COLOUR, LINES = (784,), (1, 28, 28), (3, 32, 32), (28, 28)
LORA_FROZEN = ("0.", "2.", "4.base", "6.base")
CASES = {
    "logistic 784→10": Case(_model("logistic", FLAT), FLAT, 10_000, _all_of_ten, 60),
    "MLP 784-200-10": Case(_model("mlp", FLAT, hidden=(200,)), FLAT, 10_000, _all_of_ten, 15),
    "MLP 784-200-200-10": Case(_model("mlp", FLAT, hidden=(200, 200)), FLAT, 2_000, _all_of_ten, 3),
    "logistic, 9,800 prefixes of 50": Case(_model("logistic", FLAT), FLAT, 2_000, _prefixes_of_fifty, 60),
    "MLP, 9,800 prefixes of 50": Case(_model("mlp", FLAT, hidden=(200,)), FLAT, 2_000, _prefixes_of_fifty, 15),
    "CNN, convolutions frozen": Case(_model("cnn", GREY), GREY, 2_000, _all_of_ten, 500, frozen=("0.", "3.")),
    "LoRA on a frozen base": Case(_lora, (256,), 2_000, _all_of_ten, 5, frozen=LORA_FROZEN),
    "tabular MLP with BatchNorm": Case(_tabular, (42,), 4_000, _all_of_ten, 1),
    "CNN": Case(_model("cnn", GREY), GREY, 1_000, _some_of_ten, 1.1),
    "CNN with GroupNorm": Case(_group_norm, GREY, 1_000, _some_of_ten, 1),
    "VGG16-BN, widths/4": Case(_model("vgg16-bn", COLOUR, width_divisor=4), COLOUR, 500, _some_of_ten, 1),
    "transformer layer": Case(_transformer, LINES, 1_000, _some_of_ten, NOTHING_SHARED),
    "attention": Case(Attention, LINES, 1_000, _some_of_ten, NOTHING_SHARED),
    "LSTM": Case(lambda: Recurrent(nn.LSTM), LINES, 1_000, _some_of_ten, NOTHING_SHARED),
    "GRU": Case(lambda: Recurrent(nn.GRU), LINES, 1_000, _some_of_ten, NOTHING_SHARED),
}


def drawn(shape: tuple[int, ...], n: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Random samples whose class shows in their first numbers."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, 10, (n,), generator=generator)
    inputs = torch.rand(n, *shape, generator=generator)
    inputs.view(n, -1)[:, :10] += F.one_hot(labels, 10)
    return inputs, labels


def federated(case: Case, n_clients: int) -> tuple[Task, Round]:
    """A task with blocks, and a round whose clients have trained on two classes each."""
    torch.manual_seed(2022)
    module = case.module().eval()
    clients = {k: _trained(module, case, k) for k in range(n_clients)}
    blocks = np.random.default_rng(0).integers(0, N_BLOCKS, case.n_samples)
    task = Task(module, *drawn(case.shape, case.n_samples, seed=1000), blocks=blocks)
    return task, Round(cast(Any, None), state_of(module), clients, {})


def _trained(module: nn.Module, case: Case, client: int) -> Model:
    local = copy.deepcopy(module).train()
    parameters = [p for name, p in local.named_parameters() if not name.startswith(case.frozen or ("-",))]
    optimizer = torch.optim.SGD(parameters, lr=0.05)
    inputs, labels = drawn(case.shape, 400, seed=client)
    kept = torch.isin(labels, torch.tensor([client % 10, (client + 1) % 10]))
    for _ in range(5):
        optimizer.zero_grad()
        F.cross_entropy(local(inputs[kept]), labels[kept]).backward()
        optimizer.step()
    return state_of(local)


def naive_losses(task: Task, round_: Round, coalitions: Memberships) -> list[float]:
    """One coalition after the other, as everybody does it."""
    losses = []
    for coalition in coalitions:
        members = [round_.client_models[k] for k in np.flatnonzero(coalition).tolist()]
        averaged = {name: sum(model[name] for model in members) / len(members) for name in members[0]}
        task.module.load_state_dict(averaged)
        with torch.inference_mode():
            pairs = zip(task.inputs.split(128), task.labels.split(128), strict=True)
            losses.append(sum(F.cross_entropy(task.module(x), y, reduction="sum").item() for x, y in pairs))
    return [loss / len(task.labels) for loss in losses]


def exact_losses(task: Task, round_: Round, wanted: Mixtures) -> NDArray[np.float64]:
    """The plain loop in float64."""
    module = copy.deepcopy(task.module).double()
    models = {k: _widened(model) for k, model in round_.client_models.items()}
    losses = []
    for row, of_global in zip(wanted.of_clients, wanted.of_global.tolist(), strict=True):
        module.load_state_dict(mix(_widened(round_.global_model), models, row, of_global))
        with torch.inference_mode():
            losses.append(F.cross_entropy(module(task.inputs.double()), task.labels).item())
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
    naive, fast, found = [], [], np.zeros(0)
    for _ in range(N_RUNS):
        another = replace(round_)  # the same models, but a round that the oracle has not seen
        n_measured = 1 + 1 / len(coalitions)  # for each coalition; the global model is measured once
        naive.append(seconds(lambda: naive_losses(task, round_, some)) / len(some) * n_measured)
        start = time.process_time()
        found = oracle.utilities(another, wanted).sum(axis=1)
        fast.append((time.process_time() - start) / len(coalitions))
    chosen = np.linspace(0, len(wanted) - 1, N_EXACT).astype(int)
    nobody = mixtures(np.zeros((1, n_clients), dtype=bool), wanted.weights, "uniform")
    expected = exact_losses(task, round_, nobody) - exact_losses(task, round_, wanted.rows(chosen))
    error = float(np.abs(found[chosen] - expected).max())
    ratio = min(naive) / min(fast)
    bars.at_least(f"{name}, times the naive loop", ratio, case.at_least)
    bars.at_most(f"{name}, error", error, MOST_ERROR)
    size = f"{len(coalitions):,} × {case.n_samples:,}"
    rates = f"{1 / min(naive):,.1f} | {1 / min(fast):,.1f} | **{ratio:,.2f}×** | {case.at_least:g}×"
    return f"| {name} | {size} | {rates} | {error:.1e} | {first - min(fast) * len(coalitions):.1f} |"


def main(names: list[str]) -> None:
    torch.set_num_threads(1)
    bars = Bars()
    print("| model | coalitions × samples | naive /s | fedworth /s | ratio | asked for | error | first call, more s |")
    print("| --- | --- |" + " ---: |" * 6)
    for name, case in CASES.items():
        if not names or any(wanted in name for wanted in names):
            print(measure(name, case, bars), flush=True)
    bars.close()


if __name__ == "__main__":
    main(sys.argv[1:])
