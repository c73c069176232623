"""Test losses of very many coalitions' averaged models, each for little more than its last, nonlinear steps.

Comes in: for every client what its model makes of every test sample, up to where the model stops being linear in its
weights (logits, or the pre-activations of a ReLU network and its later layers), and a trie of coalitions. Goes out:
each coalition's mean cross-entropy, and its accuracy. With weights a_k the model of a coalition S is

    w_S = Σ_{k∈S} a_k w_k / Σ_{k∈S} a_k                without a global model (`uniform`: a = 1, `samples`: a = n_k),
    w_S = w + Σ_{k∈S} a_k (w_k − w)                    from the global model w (`fixed`); w_∅ = w.

Sums over clients are of integers (`averages`), other arithmetic is float32, sums over samples are float64 in blocks of
fixed size (`tiles`). Losses agree with a float64 loop to 1e-6 for logits of order ten, and to a few float32 roundings
of the logits beyond. A coalition's measures depend on its own members alone: neither on the other coalitions of the
trie, nor on the trie's order, nor on the number of threads.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedworth.errors import UtilityError
from fedworth.utility.fast.averages import averages
from fedworth.utility.fast.kernels.hidden import hidden_sums
from fedworth.utility.fast.kernels.lanes import TILE
from fedworth.utility.fast.kernels.layers import packed_layers
from fedworth.utility.fast.kernels.softmax import softmax_sums
from fedworth.utility.fast.threads import sum_over_blocks
from fedworth.utility.fast.tiles import Block, Floats, extremes_of, tiled, tiled_labels, tiles_in_block
from fedworth.utility.fast.trie import ROOT, Trie, coalition_trie


@dataclass(frozen=True, slots=True)
class Measures:
    """What each coalition's model achieves on the test samples."""

    losses: NDArray[np.float64]  # (n_coalitions,) mean cross-entropy
    accuracies: NDArray[np.float64]  # (n_coalitions,) share of samples whose label no class beats


@dataclass(frozen=True, slots=True)
class ReluHeads:
    """Several models from their first pre-activations on: relu, layer, relu, layer, …, layer."""

    pre_activations: Floats  # (n_models, n_samples, n_hidden), any strides; samples innermost is fastest
    weights: tuple[Floats, ...]  # each (n_models, n_outputs, n_inputs), as in torch.nn.Linear
    biases: tuple[Floats, ...]  # each (n_models, n_outputs)

    def __post_init__(self) -> None:
        n_models, _, n_inputs = self.pre_activations.shape
        if not self.weights or len(self.weights) != len(self.biases):
            found = f"{len(self.weights)} weights and {len(self.biases)} biases"
            raise UtilityError(f"ReLU heads: {found}, expected as many of each, and at least one")
        for layer, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            n_outputs = weight.shape[1]
            if weight.shape != (n_models, n_outputs, n_inputs) or bias.shape != (n_models, n_outputs):
                found = f"weights {weight.shape} and biases {bias.shape}"
                expected = f"({n_models}, n_outputs, {n_inputs}) and ({n_models}, n_outputs)"
                raise UtilityError(f"ReLU heads, layer {layer}: {found}, expected {expected}")
            if not (np.isfinite(weight).all() and np.isfinite(bias).all()):
                raise UtilityError(f"ReLU heads, layer {layer}: a weight or bias is not finite")
            n_inputs = n_outputs

    @property
    def n_classes(self) -> int:
        return int(self.weights[-1].shape[1])


def softmax_measures(
    logits: Floats,
    labels: NDArray[np.int64],
    trie: Trie,
    *,
    client_weights: NDArray[np.float64] | None = None,
    global_logits: Floats | None = None,
    counts_correct: bool = True,
    n_threads: int = 1,
) -> Measures:
    """What coalitions achieve whose averaged logits are their model's logits.

    `logits` is (n_clients, n_samples, n_classes) with any strides, `global_logits` (n_samples, n_classes). Without
    `counts_correct` the accuracies are NaN, and large exponents need not be looked for.
    """
    _check_samples(labels, logits.shape, logits.shape[2])
    sums = averages(trie, len(logits), client_weights, from_global=global_logits is not None)
    start = _one_model(global_logits, logits.shape[1:])
    refuse_infinite("logits", logits, start)

    def of_block(block: int) -> NDArray[np.float64]:
        return softmax_sums(_block(block, logits, start, labels), sums, counts_correct=counts_correct)

    def of_global() -> Measures:
        return softmax_measures(start, labels, _alone(), counts_correct=counts_correct, n_threads=n_threads)

    found = sum_over_blocks(of_block, _n_blocks(logits), n_threads)
    if not counts_correct:
        found[1] = np.nan
    return _measures(found / len(labels), trie, of_global)


def softmax_losses(
    logits: Floats,
    labels: NDArray[np.int64],
    trie: Trie,
    *,
    client_weights: NDArray[np.float64] | None = None,
    global_logits: Floats | None = None,
    n_threads: int = 1,
) -> NDArray[np.float64]:
    """The mean cross-entropy of each coalition (n_coalitions,); arguments as for `softmax_measures`."""
    return softmax_measures(
        logits, labels, trie, client_weights=client_weights, global_logits=global_logits,
        counts_correct=False, n_threads=n_threads,
    ).losses  # fmt: skip


def hidden_relu_measures(
    heads: ReluHeads,
    labels: NDArray[np.int64],
    trie: Trie,
    *,
    client_weights: NDArray[np.float64] | None = None,
    global_head: ReluHeads | None = None,
    n_threads: int = 1,
) -> Measures:
    """What coalitions achieve whose clients' models end in ReLU heads; `global_head` holds one model."""
    outputs = heads.pre_activations
    _check_samples(labels, outputs.shape, heads.n_classes)
    sums = averages(trie, len(outputs), client_weights, from_global=global_head is not None)
    start = _one_model(None if global_head is None else global_head.pre_activations[0], outputs.shape[1:])
    refuse_infinite("pre-activations", outputs, start)
    start_layers = None if global_head is None else (global_head.weights, global_head.biases)
    layers = packed_layers(heads.weights, heads.biases, start_layers)

    def of_block(block: int) -> NDArray[np.float64]:
        return hidden_sums(_block(block, outputs, start, labels), sums, layers)

    def of_global() -> Measures:
        assert global_head is not None  # `averages` has refused an empty coalition without one
        return hidden_relu_measures(global_head, labels, _alone(), n_threads=n_threads)

    found = sum_over_blocks(of_block, _n_blocks(outputs), n_threads)
    return _measures(found / len(labels), trie, of_global)


def hidden_relu_losses(
    heads: ReluHeads,
    labels: NDArray[np.int64],
    trie: Trie,
    *,
    client_weights: NDArray[np.float64] | None = None,
    global_head: ReluHeads | None = None,
    n_threads: int = 1,
) -> NDArray[np.float64]:
    """The mean cross-entropy of each coalition (n_coalitions,); arguments as for `hidden_relu_measures`."""
    return hidden_relu_measures(
        heads, labels, trie, client_weights=client_weights, global_head=global_head, n_threads=n_threads
    ).losses


def _n_blocks(outputs: Floats) -> int:
    return -(-len(outputs[0]) // (tiles_in_block(outputs.shape[2]) * TILE))


def _block(block: int, outputs: Floats, start: Floats, labels: NDArray[np.int64]) -> Block:
    """A block of the samples, from outputs (n_models, n_samples, n_outputs)."""
    n_tiles = tiles_in_block(outputs.shape[2])
    first = block * n_tiles * TILE
    tiles, start_tiles = (tiled(z, first, n_tiles) for z in (outputs, start))
    return Block(tiles, extremes_of(tiles), start_tiles, tiled_labels(labels, first, n_tiles))


def _alone() -> Trie:
    """The trie of one coalition of one client: how a single model is measured."""
    return coalition_trie(np.ones((1, 1), np.bool_))


def _measures(found: NDArray[np.float64], trie: Trie, of_global: Callable[[], Measures]) -> Measures:
    """Each coalition's measures, from those of the steps (2, n_steps)."""
    losses, accuracies = np.empty((2, len(trie.coalition_steps)))
    is_empty = trie.coalition_steps == ROOT
    losses[~is_empty], accuracies[~is_empty] = found[:, trie.coalition_steps[~is_empty]]
    if is_empty.any():
        empty = of_global()
        losses[is_empty], accuracies[is_empty] = empty.losses, empty.accuracies
    refuse_overflow(losses)
    return Measures(losses, accuracies)


def _one_model(array: Floats | None, shape: tuple[int, ...]) -> Floats:
    """The array as a stack of one model, or a stack of none."""
    if array is None:
        return np.empty((0, *shape), np.float32)
    if array.shape != shape:
        raise UtilityError(f"the global model's outputs have shape {array.shape}, the clients' {shape}")
    return array[None]


def _check_samples(labels: NDArray[np.int64], shape: tuple[int, ...], n_classes: int) -> None:
    if len(shape) != 3 or 0 in shape or labels.shape != shape[1:2]:
        raise UtilityError(f"outputs have shape {shape} and labels {labels.shape}, expected (n_clients, n_samples, …)")
    if labels.min() < 0 or labels.max() >= n_classes:
        raise UtilityError(f"labels go from {labels.min()} to {labels.max()}, expected 0 to {n_classes - 1}")


def refuse_infinite(what: str, clients: Floats, start: Floats, numbers: Sequence[int] | None = None) -> None:
    """Refuse numbers that are not finite, by the number of the first client that has them."""
    if np.isfinite(clients).all() and np.isfinite(start).all():
        return
    for k, outputs in zip(numbers or range(len(clients)), clients, strict=True):
        _refuse(f"client {k}", what, outputs)
    for outputs in start:
        _refuse("the global model", what, outputs)


def _refuse(whose: str, what: str, outputs: Floats) -> None:
    if not np.isfinite(outputs).all():
        raise UtilityError(f"{whose}: {what} are not finite; leave that model out, or train it with smaller steps")


def refuse_overflow(losses: NDArray[np.float64]) -> None:
    """Refuse losses that are not finite although every model's own outputs are."""
    n_bad = int((~np.isfinite(losses)).sum())
    if n_bad:
        raise UtilityError(f"{n_bad} of {len(losses)} losses are not finite: float32 overflowed in an averaged model")
