"""Test losses of very many coalitions' averaged models, each for little more than its last, nonlinear steps.

Comes in: for every client what its model makes of every test sample, up to where the model stops being linear in its
weights (logits, or the pre-activations of a ReLU network and its later layers), and a trie of coalitions. Goes out:
each coalition's mean cross-entropy, and its accuracy. With weights a_k the model of a coalition S is

    w_S = Σ_{k∈S} a_k w_k / Σ_{k∈S} a_k                without a global model (`uniform`: a = 1, `samples`: a = n_k),
    w_S = w + Σ_{k∈S} a_k (w_k − w)                    from the global model w (`fixed`); w_∅ = w.

Arithmetic is float32, sums over samples are float64. Losses agree with a float64 loop to 1e-6 for logits of order
ten, and to a few float32 roundings of the logits beyond. Results do not depend on the number of threads.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedworth.errors import UtilityError
from fedworth.utility import kernels_hidden, kernels_softmax
from fedworth.utility.kernels_lanes import LANES, TILE
from fedworth.utility.threads import sum_over_blocks
from fedworth.utility.trie import ROOT, Trie, coalition_trie

Floats = NDArray[np.float32]

BLOCK_BYTES = 3 << 20
"""What one block of samples may hold, over all clients: it is read once for every step."""


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
    weighting = _Weighting.of(trie, len(logits), client_weights, global_logits is not None)
    start = _one_model(global_logits, logits.shape[1:])
    n_vectors = _n_units(logits[:, :LANES, 1:].size, kernels_softmax.MOST_VECTORS)

    def of_block(block: int) -> NDArray[np.float64]:
        here = slice(block * n_vectors * LANES, (block + 1) * n_vectors * LANES)
        block_logits, block_start = (np.array(z[:, here], np.float32, order="C") for z in (logits, start))
        block_labels = np.array(labels[here], np.int64)
        packed, start_margins, largest = kernels_softmax.pack_margins(
            block_logits, block_start, block_labels, weighting.client_weights
        )
        _check_finite(math.isfinite(largest), "logits", logits)
        careful = counts_correct or not weighting.convex or largest > kernels_softmax.LARGEST_MARGIN
        n_here = -(-len(block_labels) // LANES)
        found = kernels_softmax.measure_margins(
            packed, start_margins, n_here, trie.clients, trie.sources, trie.targets, trie.wanted,
            weighting.scales, trie.n_slots, careful,
        )  # fmt: skip
        found[1] -= n_here * LANES - len(block_labels)  # samples that only fill up a vector
        return found

    def of_global() -> Measures:
        return softmax_measures(start, labels, _alone(), counts_correct=counts_correct, n_threads=n_threads)

    found = sum_over_blocks(of_block, -(-len(labels) // (n_vectors * LANES)), n_threads)
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
    pre_activations = heads.pre_activations
    _check_samples(labels, pre_activations.shape, heads.n_classes)
    weighting = _Weighting.of(trie, len(pre_activations), client_weights, global_head is not None)
    start = _one_model(None if global_head is None else global_head.pre_activations[0], pre_activations.shape[1:])
    weights = kernels_hidden.pack_layers(heads.weights, heads.biases)  # (n_clients, n_numbers)
    start_weights = np.zeros_like(weights[0])  # (n_numbers,)
    if global_head is not None:
        start_weights = kernels_hidden.pack_layers(global_head.weights, global_head.biases)[0]
    weights = ((weights - start_weights) * weighting.client_weights[:, None]).astype(np.float32)
    widths = np.array([pre_activations.shape[2], *(w.shape[1] + w.shape[1] % 2 for w in heads.weights)])
    n_tiles = _n_units(pre_activations[:, :TILE].size, kernels_hidden.MOST_TILES)

    def of_block(block: int) -> NDArray[np.float64]:
        first = block * n_tiles * TILE
        n_here = min(n_tiles, -(-(len(labels) - first) // TILE))
        packed, packed_start = kernels_hidden.pack_pre_activations(
            pre_activations, start, weighting.client_weights, first, n_here
        )
        _check_finite(bool(np.isfinite(packed).all()), "pre-activations", pre_activations)
        block_labels = np.full(n_here * TILE, -1, np.int32)
        present = labels[first : first + n_here * TILE]
        block_labels[: len(present)] = present
        return kernels_hidden.measure_hidden(
            packed, packed_start, weights, start_weights, widths, heads.n_classes, block_labels,
            trie.clients, trie.sources, trie.targets, trie.wanted, weighting.scales, trie.n_slots,
        )  # fmt: skip

    def of_global() -> Measures:
        assert global_head is not None  # _Weighting.of has refused an empty coalition without one
        return hidden_relu_measures(global_head, labels, _alone(), n_threads=n_threads)

    found = sum_over_blocks(of_block, -(-len(labels) // (n_tiles * TILE)), n_threads)
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


@dataclass(frozen=True, slots=True)
class _Weighting:
    """How running sums become averages: sums of a_k z_k, times a scale for each step."""

    client_weights: NDArray[np.float64]  # (n_clients,)
    scales: Floats  # (n_steps,)
    convex: bool  # whether no average can leave the range of its models

    @classmethod
    def of(
        cls, trie: Trie, n_clients: int, client_weights: NDArray[np.float64] | None, from_global: bool
    ) -> "_Weighting":
        if trie.n_clients > n_clients:
            raise UtilityError(f"the trie names {trie.n_clients} clients, but {n_clients} models were given")
        if client_weights is None and from_global:
            raise UtilityError("averages from a global model need client_weights: each client's share in the whole")
        if trie.asks_for_empty and not from_global:
            raise UtilityError("the empty coalition has no average: its utility is 0, leave it out")
        weights = np.array(np.ones(n_clients) if client_weights is None else client_weights, np.float64)
        if weights.shape != (n_clients,) or not (np.isfinite(weights).all() and (weights > 0).all()):
            raise UtilityError(f"client_weights are {weights}, expected {n_clients} positive numbers")
        if from_global:
            return cls(weights, np.ones(trie.n_steps, np.float32), bool(weights.sum() <= 1 + 1e-9))
        weights = weights / weights.max()  # counts of samples, squared, would waste float32's range
        return cls(weights, (1 / trie.totals(weights)).astype(np.float32), True)


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
    if not np.isfinite(losses).all():
        n_bad = int((~np.isfinite(losses)).sum())
        raise UtilityError(f"{n_bad} of {len(losses)} losses are not finite: float32 overflowed in an averaged model")
    return Measures(losses, accuracies)


def _one_model(array: Floats | None, shape: tuple[int, ...]) -> Floats:
    """The array as a stack of one model, or a stack of none."""
    if array is None:
        return np.empty((0, *shape), np.float32)
    if array.shape != shape:
        raise UtilityError(f"the global model's outputs have shape {array.shape}, the clients' {shape}")
    return array[None]


def _n_units(n_numbers: int, most: int) -> int:
    """How many vectors or tiles a block has, if one of them takes n_numbers for all clients."""
    return max(1, min(most, BLOCK_BYTES // max(1, 4 * n_numbers)))


def _check_samples(labels: NDArray[np.int64], shape: tuple[int, ...], n_classes: int) -> None:
    if len(shape) != 3 or 0 in shape or labels.shape != shape[1:2]:
        raise UtilityError(f"outputs have shape {shape} and labels {labels.shape}, expected (n_clients, n_samples, …)")
    if labels.min() < 0 or labels.max() >= n_classes:
        raise UtilityError(f"labels go from {labels.min()} to {labels.max()}, expected 0 to {n_classes - 1}")


def _check_finite(is_finite: bool, what: str, clients: Floats) -> None:
    """Refuse numbers that are not finite, by the name of the first client that has them."""
    if is_finite:
        return
    broken = [k for k, outputs in enumerate(clients) if not np.isfinite(outputs).all()]
    whose = f"client {broken[0]}" if broken else "the global model"
    raise UtilityError(f"{whose}: {what} are not finite; leave that model out, or train it with smaller steps")
