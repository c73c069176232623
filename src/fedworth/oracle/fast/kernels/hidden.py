"""Cross-entropy of averaged networks, ReLU or another activation, from the pre-activations of their first hidden layer.

Sums run over the first pre-activations z = Σ a_k z_k, linear in the model, and over every later layer's W = Σ a_k W_k
and b = Σ a_k b_k. With s = 1/Σ a_k the averaged network computes, since relu(s·z) = s·relu(z) for s > 0,

    x₁ = relu(z),  x₂ = relu(s²·W₁x₁ + s·b₁),  x₃ = relu(s·W₂x₂ + s·b₂), …

so nothing is scaled before it has been through a product. Any other activation f takes s·z, and what follows takes s
once less. The last layer has none: its outputs are the logits.
All sums are of integers, in the whole units of `averages`: one for the pre-activations of a block, and two for each
later layer, of its weights and its biases. Units are factors, and go with s: `scales` are the products.

With one hidden layer and at most WIDEST classes the running sum, the relu and the product are one pass, which reads two
numbers and writes one for every 2·n_classes operations. Steps are taken a few at a time, first all their weights, then
tile after tile: the tile's sums stay in the cache, and weights are summed once for the tiles that are held together:
a block's, or as many of them as fit for all clients.

Lanes beyond the last sample carry the label −1 and lose exactly 0.
"""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedworth.compile import compiled, compiled_within
from fedworth.oracle.fast.averages import Averages, groups
from fedworth.oracle.fast.kernels.activations import RELU, Activation, activate
from fedworth.oracle.fast.kernels.lanes import LANES, TILE
from fedworth.oracle.fast.kernels.layers import Integers, PackedLayers, pack_tiles, pack_weights
from fedworth.oracle.fast.kernels.products import (
    WIDEST,
    add,
    cross_entropy,
    join,
    join_and_rectify,
    join_and_run_panel,
    run_panel,
)
from fedworth.oracle.fast.kernels.tiles import Block, Floats, Labels

HELD_BYTES = 3 << 20
"""What the tiles that are held together may take, over all clients: they are read once for every step."""

WEIGHTS_AT_ONCE = 1 << 16
"""Numbers in the summed weights of the steps taken together: a quarter of a second-level cache."""


def hidden_sums(block: Block, averages: Averages, layers: PackedLayers, activation: Activation) -> NDArray[np.float64]:
    """Σ loss over a block's samples after each wanted step: (n_steps,).

    If sums start from a model, the clients' pre-activations are relative to it.
    """
    tiles, start, labels = block.tiles, block.start, block.labels
    n_held = max(1, HELD_BYTES // max(1, 4 * tiles[:, 0].size))
    largest, of_start = (_largest(extremes) for extremes in block.relative_extremes())  # (n_clients,), (1 or 0,)
    start_bound = float(of_start.max(initial=0))
    found = np.zeros(averages.trie.n_steps)
    for group in groups(averages, [(largest, start_bound), *layers.bounds]):
        steps, members = group.trie, group.members
        factors = group.factors(averages.client_weights)  # (n_parts, n_clients)
        of_start = np.ldexp(float(len(start)), -group.exponents)  # (n_parts,) 0 if sums start from nothing
        weights, start_weights = pack_weights(layers, members, factors[1:], of_start[1:])
        parts = np.zeros((steps.n_steps, 3))  # Π m, Σ e, Σ linear part, over the block
        parts[:, 0] = 1.0
        for first in range(0, tiles.shape[1], n_held):
            held = (first, min(first + n_held, tiles.shape[1]))
            packed, packed_start = pack_tiles(tiles, start, held, members, factors[0], of_start[0])
            measure_hidden(
                packed, packed_start, weights, start_weights, layers.widths, layers.n_classes, *activation,
                labels[first * TILE : (first + n_held) * TILE], steps.clients, steps.sources, steps.targets,
                steps.wanted, group.scales(averages.shares), steps.n_slots, parts,
            )  # fmt: skip
        here, places = parts[steps.wanted], group.places[steps.wanted]
        found[places] = _totals(here)
    return found


@compiled
def _totals(parts: NDArray[np.float64]) -> NDArray[np.float64]:
    """(n_steps,): Σ loss."""
    found = np.empty(len(parts))
    for step in range(len(parts)):
        found[step] = math.log(parts[step, 0]) + math.log(2.0) * parts[step, 1] + parts[step, 2]
    return found


def _largest(extremes: Floats) -> NDArray[np.float64]:
    """(n_models,): the largest number in size between these extremes."""
    return np.asarray(np.maximum(extremes[:, 1], -extremes[:, 0]), np.float64)


@compiled_within
def _run_layers(
    xs: Floats,
    ys: Floats,
    weights: Floats,
    at: int,
    widths: NDArray[np.int64],
    scales: Floats,
    kind: int,
    slope: Any,
) -> Floats:
    """A tile's logits from its first activations in `xs`; they end up in one of `xs` and `ys`, which take turns."""
    gain, one = scales[0] if kind == RELU else np.float32(1.0), np.float32(1.0)
    for layer in range(len(widths) - 1):
        n_inputs, n_outputs, is_last = widths[layer], widths[layer + 1], layer == len(widths) - 2
        floor = np.float32(0.0) if kind == RELU and not is_last else np.float32(-np.inf)
        of_weights, of_biases = gain * scales[2 * layer + 1], scales[2 * layer + 2]
        biases = at + n_inputs * n_outputs
        for out in range(0, n_outputs, WIDEST):
            width = min(WIDEST, n_outputs - out)
            effect = (of_weights, of_biases, floor)
            run_panel(width, (xs, 0, weights, at, biases + out, ys, out * TILE, n_inputs, *effect))
            at += width * n_inputs
        at += n_outputs
        if kind != RELU and not is_last:
            activate(kind, (ys, one, slope, n_outputs * TILE))
        gain = one
        xs, ys = ys, xs
    return xs


@compiled
def measure_hidden(
    packed: Integers,
    start: Integers,
    weights: Integers,
    start_weights: Integers,
    widths: NDArray[np.int64],
    n_classes: int,
    kind: int,
    slope: float,
    labels: Labels,
    clients: NDArray[np.int32],
    sources: NDArray[np.int32],
    targets: NDArray[np.int32],
    wanted: NDArray[np.bool_],
    scales: Floats,
    n_slots: int,
    parts: NDArray[np.float64],
) -> None:
    """Add to each wanted step's parts what these tiles' samples lose: Π m, Σ e, Σ linear part."""
    n_steps, n_tiles, n_layers = len(clients), len(labels) // TILE, len(widths) - 1
    size, tile_size, n_weights = packed.shape[1], widths[0] * TILE, weights.shape[1]
    joins = kind == RELU and n_layers == 1 and widths[1] <= WIDEST
    n_together = max(1, min(WEIGHTS_AT_ONCE // n_weights, n_steps))
    sums = np.empty(n_slots * size + TILE, np.int32)  # the slots, and a place for sums nobody continues
    weight_sums = np.empty(n_slots * n_weights + LANES, np.int32)
    step_weights = np.empty(n_together * n_weights, np.float32)
    xs, ys = np.empty(widths.max() * TILE, np.float32), np.empty(widths.max() * TILE, np.float32)
    sums[:size] = start
    weight_sums[:n_weights] = start_weights
    lowest, leak = np.float32(-np.inf), np.float32(slope)
    for first_step in range(0, n_steps, n_together):
        steps = range(first_step, min(first_step + n_together, n_steps))
        for step in steps:
            keeps = np.int64(targets[step] >= 0)
            source = np.int64(sources[step]) * n_weights
            target = np.int64(targets[step] if keeps else n_slots) * n_weights
            client, at = np.int64(clients[step]) * n_weights, (step - first_step) * n_weights
            join((weight_sums, source, target, keeps, weights, client, step_weights, at, n_weights))
        for tile in range(n_tiles):
            for step in steps:
                keeps = np.int64(targets[step] >= 0)
                source = np.int64(sources[step]) * size + tile * tile_size
                client = np.int64(clients[step]) * size + tile * tile_size
                target = targets[step] * size + tile * tile_size if keeps else n_slots * size
                at = (step - first_step) * n_weights
                place = (sums, source, target, keeps, packed, client)
                if joins and wanted[step]:
                    biases = at + widths[0] * widths[1]
                    gain = scales[step, 0] * scales[step, 1]
                    effect = (step_weights, at, biases, xs, 0, widths[0], gain, scales[step, 2], lowest)
                    join_and_run_panel(widths[1], (*place, *effect))
                elif wanted[step] and kind == RELU:
                    join_and_rectify((*place, xs, 0, tile_size))
                elif wanted[step]:
                    join((*place, xs, 0, tile_size))
                    activate(kind, (xs, scales[step, 0], leak, tile_size))
                else:  # always continued: a trie has no step that leads nowhere
                    add((sums, source, target, packed, client, tile_size))
                    continue
                logits = xs if joins else _run_layers(xs, ys, step_weights, at, widths, scales[step], kind, leak)
                of_tile = cross_entropy((logits, labels, tile * TILE, n_classes))
                parts[step, 0] *= of_tile[0]
                parts[step, 1] += of_tile[1]
                parts[step, 2] += of_tile[2]
