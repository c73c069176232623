"""Cross-entropy of averaged ReLU networks, from the pre-activations of their first hidden layer.

Sums run over the first pre-activations z = Σ a_k z_k, linear in the model, and over every later layer's W = Σ a_k W_k
and b = Σ a_k b_k. With s = 1/Σ a_k the averaged network computes, since relu(s·z) = s·relu(z) for s > 0,

    x₁ = relu(z),  x₂ = relu(s²·W₁x₁ + s·b₁),  x₃ = relu(s·W₂x₂ + s·b₂), …

so nothing is scaled before it has been through a product. The last layer has no relu: its outputs are the logits.

With one hidden layer and at most WIDEST classes the running sum, the relu and the product are one pass, which reads two
numbers and writes one for every 2·n_classes operations. Steps are taken a few at a time, first all their weights, then
tile after tile: the tile's sums stay in the cache, and weights are summed once for all tiles of a block.

Packed, a block is (n_tiles, n_inputs, TILE) for each client and a layer is its panels, then its biases. Lanes beyond
the last sample carry the label −1 and lose exactly 0.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedworth.utility.kernels_compile import compiled
from fedworth.utility.kernels_lanes import LANES, TILE
from fedworth.utility.kernels_products import (
    WIDEST,
    Floats,
    cross_entropy,
    join,
    join_and_rectify,
    join_and_run_panel,
    run_panel,
)

MOST_TILES = 8
"""Tiles of samples in a block, at most."""

WEIGHTS_AT_ONCE = 1 << 16
"""Numbers in the summed weights of the steps taken together: a quarter of a second-level cache."""


def pack_layers(weights: Sequence[Floats], biases: Sequence[Floats]) -> Floats:
    """Every model's later layers in the order the products read them.

    A layer of odd width gets one output more, always zero, and the layer after it one input more, with weights zero.
    """
    parts: list[Floats] = []
    for layer, (weight, bias) in enumerate(zip(weights, biases, strict=True)):
        _, n_outputs, n_inputs = weight.shape
        more_outputs, more_inputs = (0, n_outputs % 2), (0, n_inputs % 2 if layer else 0)
        weight = np.pad(weight, ((0, 0), more_outputs, more_inputs))
        for first in range(0, weight.shape[1], WIDEST):
            panel = weight[:, first : first + WIDEST].transpose(0, 2, 1)  # (n_models, n_inputs, width)
            parts.append(panel.reshape(len(panel), -1))
        parts.append(np.pad(bias, ((0, 0), more_outputs)))
    packed = np.concatenate(parts, axis=1)  # (n_models, n_numbers)
    return np.pad(packed, ((0, 0), (0, -packed.shape[1] % LANES))).astype(np.float32)


def pack_pre_activations(
    pre_activations: Floats,
    start: Floats,
    client_weights: NDArray[np.float64],
    first: int,
    n_tiles: int,
) -> tuple[Floats, Floats]:
    """A block's weighted pre-activations for each client, and those sums start from.

    `start` holds one model if sums start from it, and the clients' pre-activations are then relative to it; it holds
    none if they start from nothing.
    """
    factors = client_weights.astype(np.float32)[:, None, None, None]
    packed_start = _tiles(start, first, n_tiles).copy()  # (0 or 1, n_tiles, n_inputs, TILE)
    tiles = _tiles(pre_activations, first, n_tiles)  # (n_clients, n_tiles, n_inputs, TILE)
    packed = np.empty(tiles.shape, np.float32)
    if len(start):
        np.subtract(tiles, packed_start, out=packed)
        packed *= factors
    else:
        np.multiply(tiles, factors, out=packed)
    return packed.reshape(len(packed), -1), packed_start.sum(axis=0).ravel()


def _tiles(outputs: Floats, first: int, n_tiles: int) -> Floats:
    """Samples from `first` on as tiles, (n_models, n_tiles, n_inputs, TILE), zeros beyond the last sample."""
    block = outputs[:, first : first + n_tiles * TILE]
    missing = n_tiles * TILE - block.shape[1]
    if missing:
        block = np.pad(block, ((0, 0), (0, missing), (0, 0)))
    return block.reshape(len(block), n_tiles, TILE, block.shape[2]).transpose(0, 1, 3, 2)


@compiled
def _run_layers(xs: Floats, ys: Floats, weights: Floats, at: int, widths: NDArray[np.int64], share: Any) -> Floats:
    """A tile's logits from its first activations in `xs`; they end up in one of `xs` and `ys`, which take turns."""
    gain = share * share
    for layer in range(len(widths) - 1):
        n_inputs, n_outputs = widths[layer], widths[layer + 1]
        floor = np.float32(0.0) if layer < len(widths) - 2 else np.float32(-np.inf)
        biases = at + n_inputs * n_outputs
        for out in range(0, n_outputs, WIDEST):
            width = min(WIDEST, n_outputs - out)
            run_panel(width, (xs, 0, weights, at, biases + out, ys, out * TILE, n_inputs, gain, share, floor))
            at += width * n_inputs
        at += n_outputs
        gain = share
        xs, ys = ys, xs
    return xs


@compiled
def measure_hidden(
    packed: Floats,
    start: Floats,
    weights: Floats,
    start_weights: Floats,
    widths: NDArray[np.int64],
    n_classes: int,
    labels: NDArray[np.int32],
    clients: NDArray[np.int32],
    sources: NDArray[np.int32],
    targets: NDArray[np.int32],
    wanted: NDArray[np.bool_],
    scales: Floats,
    n_slots: int,
) -> NDArray[np.float64]:
    """Σ loss over the block's samples after each wanted step, and how many were predicted correctly.

    `widths` are the numbers of first pre-activations and of every later layer's outputs, odd ones rounded up.
    """
    n_steps, n_tiles, n_layers = len(clients), len(labels) // TILE, len(widths) - 1
    size, tile_size, n_weights = packed.shape[1], widths[0] * TILE, weights.shape[1]
    joins = n_layers == 1 and widths[1] <= WIDEST
    n_together = max(1, min(WEIGHTS_AT_ONCE // n_weights, n_steps))
    sums = np.empty(n_slots * size + TILE, np.float32)  # the slots, and a place for sums nobody continues
    weight_sums = np.empty(n_slots * n_weights + LANES, np.float32)
    step_weights = np.empty(n_together * n_weights, np.float32)
    xs, ys = np.empty(widths.max() * TILE, np.float32), np.empty(widths.max() * TILE, np.float32)
    sums[:size] = start
    weight_sums[:n_weights] = start_weights
    parts = np.zeros((n_steps, 4))  # Π m, Σ e, Σ linear part, n_correct, over the block
    parts[:, 0] = 1.0
    lowest = np.float32(-np.inf)
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
                at, share = (step - first_step) * n_weights, scales[step]
                place = (sums, source, target, keeps, packed, client)
                if joins and wanted[step]:
                    biases = at + widths[0] * widths[1]
                    effect = (step_weights, at, biases, xs, 0, widths[0], share * share, share, lowest)
                    join_and_run_panel(widths[1], (*place, *effect))
                else:
                    join_and_rectify((*place, xs, 0, tile_size))
                if not wanted[step]:
                    continue
                logits = xs if joins else _run_layers(xs, ys, step_weights, at, widths, share)
                measures = cross_entropy((logits, labels, tile * TILE, n_classes))
                parts[step, 0] *= measures[0]
                for part in range(1, 4):
                    parts[step, part] += measures[part]
    found = np.zeros((2, n_steps))
    for step in range(n_steps):
        found[0, step] = math.log(parts[step, 0]) + math.log(2.0) * parts[step, 1] + parts[step, 2]
        found[1, step] = parts[step, 3]
    return found
