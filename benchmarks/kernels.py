"""How much faster the kernels are than averaging and evaluating one coalition after another.

Run `python benchmarks/kernels.py`; it prints a table in Markdown and takes about two minutes. Times are process times
of one thread, best of several runs in which both sides take turns, so that a busy machine slows both. The kernels are
run by the fast oracle: their time includes the trie and the clients' own forward passes. The loop is timed on some
coalitions and scaled up. A ratio or an error that misses its bar is named at the end, and the exit code is 1.
"""

import copy
import itertools
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from bars import MOST_ERROR, Bars
from torch import Tensor, nn
from torch.nn import functional

from fedworth.arrays import Indices, Memberships, Permutations
from fedworth.ledger.ledger import Round
from fedworth.oracle.fast import FastOracle
from fedworth.oracle.weighting import mixtures
from fedworth.task.task import Task

N_RUNS = 5
State = dict[str, Tensor]


@dataclass(frozen=True)
class Case:
    """One row of the table: models, test samples and the coalitions to measure."""

    name: str
    bar: float
    widths: tuple[int, ...]
    n_clients: int
    n_samples: int
    permutations: Permutations | None
    n_looped: int
    """Coalitions that the loop is timed on."""

    def memberships(self) -> Memberships:
        if self.permutations is None:
            return (np.arange(1, 2**self.n_clients)[:, None] >> np.arange(self.n_clients) & 1).astype(np.bool_)
        ranks = np.argsort(self.permutations, axis=1)  # (n_permutations, n_clients)
        joined = ranks[:, None, :] <= np.arange(self.n_clients)[None, :, None]
        return joined.reshape(-1, self.n_clients)


def network(widths: tuple[int, ...]) -> nn.Sequential:
    layers: list[nn.Module] = []
    for n_inputs, n_outputs in itertools.pairwise(widths):
        layers += [nn.Linear(n_inputs, n_outputs), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def federation(case: Case) -> tuple[nn.Sequential, list[State], Tensor, Tensor]:
    """Clients that have moved away from a common model, and samples the common model half understands."""
    torch.manual_seed(2022)
    model = network(case.widths)
    states = [
        {name: w + 0.3 * w.std() * torch.randn_like(w) for name, w in model.state_dict().items()}
        for _ in range(case.n_clients)
    ]
    samples = 2 * torch.rand(case.n_samples, case.widths[0])
    with torch.inference_mode():
        labels = (model(samples) + 0.3 * torch.randn(case.n_samples, case.widths[-1])).argmax(1)
    return model, states, samples, labels


@torch.inference_mode()
def looped_loss(model: nn.Sequential, states: list[State], samples: Tensor, labels: Tensor, members: Indices) -> float:
    """What everybody writes first: average, load, evaluate in batches."""
    chosen = [states[k] for k in members]
    model.load_state_dict({name: torch.stack([s[name] for s in chosen]).mean(0) for name in chosen[0]})
    losses = [
        functional.cross_entropy(model(x), y, reduction="sum").item()
        for x, y in zip(torch.split(samples, 128), torch.split(labels, 128), strict=True)
    ]
    return sum(losses) / len(labels)


def seconds(run: Callable[[], object], clock: Callable[[], float] = time.process_time) -> float:
    start = clock()
    run()
    return clock() - start


def compare(case: Case, bars: Bars) -> str:
    """One row: coalitions a second on both sides, their ratio, and the error against a float64 loop."""
    model, states, samples, labels = federation(case)
    memberships = case.memberships()
    looped = np.random.default_rng(2022).choice(len(memberships), case.n_looped, replace=False)
    start = {name: w.clone() for name, w in model.state_dict().items()}
    round_ = Round(cast(Any, None), start, dict(enumerate(states)), {})
    oracle = FastOracle(Task(copy.deepcopy(model), samples, labels), n_threads=1)
    wanted = mixtures(memberships, np.ones(case.n_clients), "uniform")
    found = oracle.utilities(round_, wanted)  # finds its route, compiles

    def loop() -> None:
        for coalition in looped:
            looped_loss(model, states, samples, labels, np.flatnonzero(memberships[coalition]))

    times = np.array([(seconds(loop), seconds(lambda: oracle.utilities(round_, wanted))) for _ in range(N_RUNS)])
    loop_rate, kernel_rate = case.n_looped / times[:, 0].min(), len(memberships) / times[:, 1].min()
    everybody = [{name: w.double() for name, w in state.items()} for state in (*states, start)]
    exact = [
        looped_loss(network(case.widths).double(), everybody, samples.double(), labels, members)
        for members in (np.array([case.n_clients]), *(np.flatnonzero(memberships[c]) for c in looped[:8]))
    ]
    error = np.abs(found[looped[:8]] - (exact[0] - np.array(exact[1:]))).max()
    bars.at_least(f"{case.name}, times the loop", kernel_rate / loop_rate, case.bar)
    bars.at_most(f"{case.name}, error", error, MOST_ERROR)
    return (
        f"| {case.name} | {loop_rate:.1f} | {kernel_rate:.0f} | {kernel_rate / loop_rate:.1f}× "
        f"| ≥ {case.bar:g}× | {error:.1e} |"
    )


def main() -> None:
    torch.set_num_threads(1)
    rng = np.random.default_rng(2022)
    permutations = np.stack([rng.permutation(50) for _ in range(196)])
    subsets = "all 1,023 coalitions of 10 clients, 10,000 samples"
    prefixes = "9,800 prefixes of 50 clients, 2,000 samples"
    cases = [
        Case(f"softmax regression 784-10, {subsets}", 150, (784, 10), 10, 10_000, None, 64),
        Case(f"MLP 784-200-10, {subsets}", 45, (784, 200, 10), 10, 10_000, None, 24),
        Case(f"MLP 784-200-200-10, {subsets}", 5, (784, 200, 200, 10), 10, 10_000, None, 24),
        Case(f"softmax regression 784-10, {prefixes}", 150, (784, 10), 50, 2_000, permutations, 256),
        Case(f"softmax regression 60-10, {prefixes}", 150, (60, 10), 50, 2_000, permutations, 512),
        Case(f"MLP 784-200-10, {prefixes}", 60, (784, 200, 10), 50, 2_000, permutations, 64),
    ]
    write = sys.stdout.write
    write("| case | loop, coalitions/s | kernels, coalitions/s | ratio | bar | largest error |\n")
    write("| --- | ---: | ---: | ---: | ---: | ---: |\n")
    bars = Bars()
    for case in cases:
        write(compare(case, bars) + "\n")
        sys.stdout.flush()
    bars.close()


if __name__ == "__main__":
    main()
