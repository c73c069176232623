"""What the kernels for ReLU networks read: layers and pre-activations in the order of the products, in whole units.

A layer is its panels, (n_inputs, width) each, then its biases; integers in units of `averages`, floats before that.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedworth.arrays import Indices
from fedworth.compile import compiled
from fedworth.oracle.fast.kernels.lanes import LANES
from fedworth.oracle.fast.kernels.products import WIDEST
from fedworth.oracle.fast.kernels.tiles import Floats, NotFiniteError

Integers = NDArray[np.int32]

OfModels = Sequence[Floats] | Floats
"""A weight or a bias of each model: as an array, or one by one, which takes no copy."""


def pack_layers(weights: Sequence[OfModels], biases: Sequence[OfModels]) -> Floats:
    """Every model's layers in the order the products read them: (n_models, n_numbers), the one copy that is made.

    A layer of odd width gets one output more, always zero, and the layer after it one input more, with weights zero.
    """
    shapes = [_even_shape(weight[0].shape, is_first=layer == 0) for layer, weight in enumerate(weights)]
    n_numbers = sum(n_outputs * (n_inputs + 1) for n_outputs, n_inputs in shapes)
    packed = np.zeros((len(weights[0]), n_numbers + -n_numbers % LANES), np.float32)
    for model, numbers in enumerate(packed):
        at = 0
        for (n_outputs, n_inputs), weight, bias in zip(shapes, weights, biases, strict=True):
            for first in range(0, n_outputs, WIDEST):
                width = min(WIDEST, n_outputs - first)
                panel = numbers[at : at + n_inputs * width].reshape(n_inputs, width)
                given = weight[model][first : first + WIDEST]
                panel[: given.shape[1], : given.shape[0]] = given.T
                at += n_inputs * width
            numbers[at : at + len(bias[model])] = bias[model]
            at += n_outputs
    return packed


def _even_shape(shape: tuple[int, ...], *, is_first: bool) -> tuple[int, int]:
    """Outputs, made even, and inputs, made even as those of the layer before are."""
    n_outputs, n_inputs = shape
    return n_outputs + n_outputs % 2, n_inputs if is_first else n_inputs + n_inputs % 2


@dataclass(frozen=True, slots=True)
class PackedLayers:
    """All models' layers after the first relu, those that sums start from (zeros if from nothing), and their sizes."""

    weights: Floats  # (n_clients, n_numbers)
    start: Floats  # (n_numbers,)
    widths: NDArray[np.int64]  # (n_layers + 1,) first pre-activations, then outputs of each, odd ones rounded up
    sizes: NDArray[np.int64]  # (2 n_layers,) how many numbers of each unit: weights, biases, weights, …
    n_classes: int
    bounds: tuple[tuple[NDArray[np.float64], float], ...]  # of each unit, as `averages.groups` wants them


def packed_layers(
    weights: Sequence[Floats],
    biases: Sequence[Floats],
    start: tuple[Sequence[Floats], Sequence[Floats]] | None,
) -> PackedLayers:
    """Layers as (n_models, n_outputs, n_inputs) and (n_models, n_outputs); `start` holds those of one model."""
    packed = pack_layers(weights, biases)  # (n_clients, n_numbers)
    if not np.isfinite(packed).all():
        raise NotFiniteError("a weight or bias after the first layer")
    origin = np.zeros_like(packed[0]) if start is None else pack_layers(*start)[0]  # (n_numbers,)
    widths = np.array([weights[0].shape[2], *(w.shape[1] + w.shape[1] % 2 for w in weights)])
    sizes = np.column_stack((widths[1:] * widths[:-1], widths[1:])).ravel()
    sizes[-1] += len(origin) - sizes.sum()  # what only fills up the last vector
    pieces = [slice(end - size, end) for end, size in zip(np.cumsum(sizes), sizes, strict=True)]
    bounds = tuple(
        (np.abs(packed[:, piece] - origin[piece]).max(axis=1).astype(np.float64), float(np.abs(origin[piece]).max()))
        for piece in pieces
    )
    return PackedLayers(packed, origin, widths, sizes, weights[-1].shape[1], bounds)


def pack_weights(
    layers: PackedLayers, members: Indices, factors: NDArray[np.float64], start_factors: NDArray[np.float64]
) -> tuple[Integers, Integers]:
    """Some clients' layers in whole units, and those that sums start from; the other clients' rows are not filled
    in."""
    of_start = np.repeat(start_factors, layers.sizes)  # (n_numbers,)
    packed = np.empty(layers.weights.shape, np.int32)
    for k in members:
        difference = layers.weights[k].astype(np.float64) - layers.start
        packed[k] = np.rint(difference * np.repeat(factors[:, k], layers.sizes))
    return packed, np.rint(layers.start * of_start).astype(np.int32)


@compiled
def pack_tiles(
    tiles: Floats,
    start: Floats,
    held: tuple[int, int],
    members: Indices,
    factors: NDArray[np.float64],
    start_factor: float,
) -> tuple[Integers, Integers]:
    """Some clients' weighted pre-activations in whole units, and those that sums start from, of the tiles from held[0]
    up to held[1]; the other clients' rows are not filled in.
    """
    n_clients, _, n_inputs, width = tiles.shape
    row = n_inputs * width
    packed = np.empty((n_clients, (held[1] - held[0]) * row), np.int32)
    packed_start = np.zeros(packed.shape[1], np.int32)
    for tile in range(held[0], held[1]):
        at = (tile - held[0]) * row
        for k in range(len(start)):
            numbers, target = start[k, tile].reshape(row), packed_start[at : at + row]
            for i in range(row):
                target[i] = np.int32(np.rint(np.float64(numbers[i]) * start_factor))
        for k in members:
            factor = factors[k]
            numbers, target = tiles[k, tile].reshape(row), packed[k, at : at + row]
            if len(start):
                origin = start[0, tile].reshape(row)
                for i in range(row):
                    target[i] = np.int32(np.rint((np.float64(numbers[i]) - np.float64(origin[i])) * factor))
            else:
                for i in range(row):
                    target[i] = np.int32(np.rint(np.float64(numbers[i]) * factor))
    return packed, packed_start
