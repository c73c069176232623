"""How much faster the fast oracle is than the naive loop on models that nobody tuned it for: prints a Markdown table.

    python benchmarks/everyday.py [name …]

The naive loop, the times and the errors are those of `oracle.py`; ratios are medians. Inputs and labels are drawn at
random, and clients have taken a few steps on a part of them: what is measured is time, and that both sides agree. A
ratio or an error that misses its bar is named at the end, and the exit code is 1.
"""

import argparse
import copy
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, cast

import numpy as np
import torch
import torch.nn.functional as F
from bars import MOST_ERROR, Bars
from torch import nn

from fedworth.coalitions import coalitions_of
from fedworth.ledger.ledger import Model, Round
from fedworth.oracle.fast.oracle import FastOracle
from fedworth.oracle.weighting import mixtures
from fedworth.simulation.models import state_of
from fedworth.task.task import Task
from oracle import largest_error, naive_losses, seconds

N_RUNS, N_NAIVE, N_CLIENTS = 11, 8, 10


@dataclass(frozen=True)
class Case:
    """A model, how its inputs are drawn, and by how much the naive loop must be beaten."""

    module: Callable[[], nn.Module]
    inputs: Callable[[int, torch.Generator], torch.Tensor]
    n_classes: int
    n_samples: int
    n_coalitions: int
    at_least: float
    trained: str = ""  # only tensors with this in their name are trained


class Attention(nn.Module):
    """A small attention block over eight patches of an input, and a classifier on their mean."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Linear(16, 32)
        self.attention = nn.MultiheadAttention(32, 4, batch_first=True)
        self.norm = nn.LayerNorm(32)
        self.head = nn.Linear(32, 10)

    def forward(self, samples: torch.Tensor) -> torch.Tensor:
        x = self.patches(samples.reshape(len(samples), 8, 16))
        logits: torch.Tensor = self.head(self.norm(x + self.attention(x, x, x)[0]).mean(1))
        return logits


class Text(nn.Module):
    """Token numbers, embedded, read by a recurrent layer or a transformer's, and classified."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.embedding = nn.Embedding(2000, 32)
        self.body = body
        self.head = nn.Linear(32, 4)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.body(self.embedding(tokens))
        x = x[0][:, -1] if isinstance(x, tuple) else x.mean(1)
        logits: torch.Tensor = self.head(x)
        return logits


class Tabular(nn.Module):
    """Ten numbers and four categories, embedded; two hidden layers with batch norm."""

    def __init__(self) -> None:
        super().__init__()
        self.embeddings = nn.ModuleList(nn.Embedding(20, 8) for _ in range(4))
        self.body = nn.Sequential(
            nn.Linear(42, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 64), nn.BatchNorm1d(64), nn.ReLU()
        )
        self.head = nn.Linear(64, 3)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        codes = rows[:, 10:].long()
        embedded = [table(codes[:, k]) for k, table in enumerate(self.embeddings)]
        logits: torch.Tensor = self.head(self.body(torch.cat([rows[:, :10], *embedded], 1)))
        return logits


class Adapted(nn.Module):
    """A frozen linear layer with a low-rank adapter of its own beside it, as LoRA does."""

    def __init__(self, n_inputs: int, n_outputs: int, rank: int = 4) -> None:
        super().__init__()
        self.base = nn.Linear(n_inputs, n_outputs)
        self.lora_down = nn.Linear(n_inputs, rank, bias=False)
        self.lora_up = nn.Linear(rank, n_outputs, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        outputs: torch.Tensor = self.base(x) + self.lora_up(self.lora_down(x))
        return outputs


def _mlp(*widths: int, activation: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    def made() -> nn.Module:
        layers: list[nn.Module] = []
        for n_inputs, n_outputs in pairwise(widths):
            layers += [nn.Linear(n_inputs, n_outputs), activation()]
        return nn.Sequential(*layers[:-1])

    return made


def _group_norm_cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.GroupNorm(4, 16), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.GroupNorm(4, 32), nn.ReLU(), nn.AdaptiveAvgPool2d(4),
        nn.Flatten(), nn.Linear(512, 10),
    )  # fmt: skip


def _lora() -> nn.Module:
    return nn.Sequential(
        nn.Linear(256, 512), nn.GELU(), nn.Linear(512, 512), nn.GELU(), Adapted(512, 512), nn.GELU(), Adapted(512, 10)
    )


def _transformer() -> nn.Module:
    return Text(nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True))


def _numbers(*shape: int) -> Callable[[int, torch.Generator], torch.Tensor]:
    return lambda n, generator: torch.randn(n, *shape, generator=generator)


def _tokens(n: int, generator: torch.Generator) -> torch.Tensor:
    return torch.randint(0, 2000, (n, 24), generator=generator)


def _rows(n: int, generator: torch.Generator) -> torch.Tensor:
    codes = torch.randint(0, 20, (n, 4), generator=generator).float()
    return torch.cat([torch.randn(n, 10, generator=generator), codes], 1)


CASES = {
    "MLP 300-128-17, ReLU": Case(_mlp(300, 128, 17, activation=nn.ReLU), _numbers(300), 17, 4000, 1023, 17),
    "MLP 300-128-17, GELU": Case(_mlp(300, 128, 17, activation=nn.GELU), _numbers(300), 17, 4000, 1023, 8),
    "MLP 90-64-64-5, tanh": Case(_mlp(90, 64, 64, 5, activation=nn.Tanh), _numbers(90), 5, 4000, 1023, 4),
    "MLP 300-128-17, ELU": Case(_mlp(300, 128, 17, activation=nn.ELU), _numbers(300), 17, 4000, 127, 1),
    "attention block": Case(Attention, _numbers(128), 10, 2000, 64, 2),
    "text, GRU": Case(lambda: Text(nn.GRU(32, 32, batch_first=True)), _tokens, 4, 1000, 32, 1),
    "text, LSTM": Case(lambda: Text(nn.LSTM(32, 32, batch_first=True)), _tokens, 4, 1000, 32, 1),
    "text, transformer": Case(_transformer, _tokens, 4, 1000, 32, 1),
    "tabular MLP, embeddings, BatchNorm": Case(Tabular, _rows, 3, 4000, 255, 1),
    "CNN, GroupNorm": Case(_group_norm_cnn, _numbers(3, 16, 16), 10, 1000, 32, 1),
    "LoRA on a frozen base": Case(_lora, _numbers(256), 10, 2000, 255, 2, trained="lora"),
}


def federated(case: Case) -> tuple[Task, Round]:
    """A task, and a round whose clients have taken a few steps on a part of the data each."""
    torch.manual_seed(2022)
    module = case.module().eval()
    generator = torch.Generator().manual_seed(1)
    inputs = case.inputs(case.n_samples, generator)
    labels = torch.randint(0, case.n_classes, (case.n_samples,), generator=generator)
    clients = {k: _trained(module, case, inputs[k::50], labels[k::50]) for k in range(N_CLIENTS)}
    return Task(module, inputs, labels), Round(cast(Any, None), state_of(module), clients, {})


def _trained(module: nn.Module, case: Case, inputs: torch.Tensor, labels: torch.Tensor) -> Model:
    local = copy.deepcopy(module)
    parameters = [p for name, p in local.named_parameters() if case.trained in name]
    optimizer = torch.optim.SGD(parameters, lr=0.1)
    for _ in range(5):
        optimizer.zero_grad()
        F.cross_entropy(local(inputs), labels).backward()
        optimizer.step()
    return state_of(local)


def measure(name: str, case: Case, bars: Bars) -> str:
    """One row of the table."""
    task, round_ = federated(case)
    everyone = coalitions_of(np.arange(N_CLIENTS), N_CLIENTS)[1:]
    coalitions = np.random.default_rng(0).permutation(everyone)[: case.n_coalitions]
    wanted = mixtures(coalitions, np.ones(N_CLIENTS), "uniform")
    oracle = FastOracle(copy.deepcopy(task), n_threads=1)
    some = coalitions[:N_NAIVE]
    first = seconds(lambda: oracle.utilities(round_, wanted))
    naive, fast = [], []
    for _ in range(N_RUNS):
        naive.append(seconds(lambda: naive_losses(task, round_, some)) / len(some))
        fast.append(seconds(lambda: oracle.utilities(round_, wanted)) / len(coalitions))
    ratio = float(np.median(np.array(naive) / np.array(fast)))
    error = largest_error(oracle, task, round_, wanted)
    bars.at_least(f"{name}: times the naive loop", ratio, case.at_least)
    bars.at_most(f"{name}: error", error, MOST_ERROR)
    route = oracle.describe().partition(":")[0]
    return (
        f"| {name} | {len(coalitions)} × {case.n_samples:,} | {1 / min(naive):,.1f} | {1 / min(fast):,.1f} | "
        f"**{ratio:.2f}×** | {case.at_least:g}× | {error:.1e} | {route} | {first:.1f} |"
    )


def main(names: list[str]) -> None:
    torch.set_num_threads(1)
    bars = Bars()
    print("| model | coalitions × samples | naive /s | fedworth /s | ratio | asked for | error | route | first s |")
    print("| --- | --- |" + " ---: |" * 5 + " --- | ---: |")
    for name, case in CASES.items():
        if not names or any(wanted in name for wanted in names):
            print(measure(name, case, bars), flush=True)
    bars.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="only models whose name contains one of these")
    main(parser.parse_args().names)
