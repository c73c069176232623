"""How near the fast oracle comes to the machine's own limit: prints a Markdown table.

    python benchmarks/roofline.py

The limit is what torch.mm reaches in float32 on matrices of 256 or 512 rows. The least work after affine sharing is
every client's first layer once, and for each coalition the later layers' products; for logistic regression, which has
none, one multiply-add a logit. All 1,023 coalitions of 10 clients, 10,000 samples, one thread, process time, best of
several turns in which the limit is measured too. Where the rest goes, in shares of the whole time: the first layer, by
the oracle's own kernel on samples packed beforehand (the global model's too, which is not counted as work), and the
logits' running sums, exponentials and logarithms are run by themselves, less what their counted work takes at the
limit; what is left are hidden units' running sums and ReLU, products below the limit, packing and the trie (a little
less than nothing where the kernels' products outrun torch.mm).
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from fedworth.arrays import Indices
from fedworth.coalitions import coalitions_of
from fedworth.ledger.ledger import Round
from fedworth.oracle.fast.averages import averages
from fedworth.oracle.fast.kernels.first import first_layers
from fedworth.oracle.fast.kernels.lanes import TILE
from fedworth.oracle.fast.kernels.layers import pack_layers
from fedworth.oracle.fast.kernels.softmax import softmax_sums
from fedworth.oracle.fast.kernels.tiles import Block, Floats, extremes_of, tiled, tiled_labels, tiles_in_block
from fedworth.oracle.fast.oracle import FastOracle
from fedworth.oracle.fast.routes import KERNEL_BATCH
from fedworth.oracle.fast.trie import coalition_trie
from fedworth.oracle.weighting import mixtures
from fedworth.task.task import Task
from oracle import CASES, federated, seconds

NAMES = ("logistic 784→10", "MLP 784-200-10", "MLP 784-200-200-10")
HIDDEN = "hidden sums, ReLU, products below the limit and packing"
OTHERS = {NAMES[0]: "packing and the trie", NAMES[1]: HIDDEN, NAMES[2]: HIDDEN}
N_CLIENTS, N_CLASSES = 10, 10
N_TURNS = 5
SIDES = (256, 512)
N_PRODUCTS = {256: 64, 512: 16}


@dataclass(frozen=True)
class Work:
    """The least arithmetic after sharing, in GFLOP."""

    first_layer: float
    coalitions: float

    @property
    def whole(self) -> float:
        return self.first_layer + self.coalitions


def least_work(module: nn.Module, n_samples: int, n_coalitions: int) -> Work:
    """A multiply-add is two operations; sums over hidden units, ReLU, exponentials and logarithms count nothing."""
    sizes = [layer.weight.numel() for layer in module.modules() if isinstance(layer, nn.Linear)]
    n_classes = [layer.out_features for layer in module.modules() if isinstance(layer, nn.Linear)][-1]
    for_coalition = sum(sizes[1:]) or n_classes
    return Work(2e-9 * N_CLIENTS * n_samples * sizes[0], 2e-9 * n_coalitions * n_samples * for_coalition)


def gemm_rate() -> float:
    """GFLOP/s of torch.mm, float32, the better of two sizes."""
    rates = []
    for side in SIDES:
        a, b, out = torch.rand(side, side), torch.rand(side, side), torch.empty(side, side)
        n = N_PRODUCTS[side]
        taken = seconds(lambda a=a, b=b, out=out, n=n: [torch.mm(a, b, out=out) for _ in range(n)])  # type: ignore[misc]
        rates.append(2e-9 * n * side**3 / taken)
    return max(rates)


@dataclass(frozen=True)
class FirstLayer:
    """Everybody's first layer and the samples, packed as the oracle packs them."""

    packed: Floats  # (n_models, n_numbers)
    blocks: list[Floats]  # (n_tiles, n_inputs, TILE) each
    n_outputs: int

    def run(self) -> None:
        for block in self.blocks:
            first_layers(block, self.packed, self.n_outputs)


def first_layer_of(task: Task, round_: Round) -> FirstLayer:
    """The first layer of the global model and the clients', and the test set in the oracle's batches and blocks."""
    names = list(round_.global_model)[:2]  # weight and bias
    everybody = (round_.global_model, *round_.client_models.values())
    weights, biases = ([model[name].numpy() for model in everybody] for name in names)
    n_outputs = len(biases[0])
    n_tiles = tiles_in_block(n_outputs)
    batches = [batch.numpy()[None] for batch in torch.split(task.inputs, KERNEL_BATCH)]
    blocks = [tiled(rows, at, n_tiles)[0] for rows in batches for at in range(0, rows.shape[1], n_tiles * TILE)]
    return FirstLayer(pack_layers((weights,), (biases,)), blocks, n_outputs)


def logit_blocks(labels: Indices) -> Iterator[Block]:
    """Logits drawn at random, in the oracle's batches and blocks."""
    rng, n_tiles = np.random.default_rng(0), tiles_in_block(N_CLASSES)
    for start in range(0, len(labels), KERNEL_BATCH):
        some = labels[start : start + KERNEL_BATCH]
        logits = rng.normal(size=(N_CLIENTS, len(some), N_CLASSES)).astype(np.float32)
        for at in range(0, len(some), n_tiles * TILE):
            tiles = tiled(logits, at, n_tiles)
            yield Block(tiles, extremes_of(tiles), tiles[:0], tiled_labels(some, at, n_tiles))


def measure(name: str) -> str:
    """One row of the table."""
    case = CASES[name]
    coalitions = coalitions_of(np.arange(N_CLIENTS), N_CLIENTS)[1:]
    task, round_ = federated(case, N_CLIENTS)
    wanted = mixtures(coalitions, np.ones(N_CLIENTS), "uniform")
    oracle = FastOracle(task, n_threads=1)
    oracle.utilities(round_, wanted)  # finds its route, compiles
    sums = averages(coalition_trie(coalitions), N_CLIENTS, np.ones(N_CLIENTS), from_global=False)
    blocks = list(logit_blocks(task.labels.numpy()))
    first_layer = first_layer_of(task, round_)
    turns = [
        (
            1 / gemm_rate(),
            seconds(lambda: oracle.utilities(round_, wanted)),
            seconds(first_layer.run),
            seconds(lambda: [softmax_sums(block, sums) for block in blocks]),
        )
        for _ in range(N_TURNS)
    ]
    per_gflop, taken, first, softmax = np.array(turns).min(axis=0).tolist()
    work = least_work(task.module, case.n_samples, len(coalitions))
    at_limit = work.whole * per_gflop
    counted = 0.0 if "MLP" in name else work.coalitions * per_gflop  # of the logits' part
    first_rest, softmax_rest = first - work.first_layer * per_gflop, softmax - counted
    other = taken - at_limit - first_rest - softmax_rest
    rest = (
        f"first layer below the limit {first_rest / taken:.0%}, logits' sums, exp and log {softmax_rest / taken:.0%}, "
        f"{OTHERS[name]} {other / taken:.0%}"
    )
    return (
        f"| {name} | {work.whole:,.2f} ({work.first_layer:.2f} + {work.coalitions:,.2f}) | {1 / per_gflop:.0f} "
        f"| {len(coalitions) / at_limit:,.0f} | {len(coalitions) / taken:,.0f} | **{at_limit / taken:.0%}** | {rest} |"
    )


def main() -> None:
    torch.set_num_threads(1)
    print("| model | least work, GFLOP (first layer + coalitions) | torch.mm, GFLOP/s | limit, coalitions/s ", end="")
    print("| reached /s | share of limit | where the rest of the time goes |")
    print("| --- |" + " ---: |" * 5 + " --- |")
    for name in NAMES:
        print(measure(name), flush=True)


if __name__ == "__main__":
    main()
