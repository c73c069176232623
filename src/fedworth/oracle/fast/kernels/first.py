"""The first layer of all models, by products of our own: what a model makes of a sample depends on nothing else.

    z_k = W_k x + b_k        one chain of multiply-adds through the inputs, in their order

A BLAS is a little faster on large matrices, but its roundings depend on how many rows and columns there are, and so on
who else is measured. Samples come as tiles, packed once for all rounds, and leave as tiles, as the kernels want them.
"""

import numpy as np

from fedworth.compile import compiled
from fedworth.oracle.fast.kernels.lanes import LANES, TILE
from fedworth.oracle.fast.kernels.products import WIDEST, run_panel
from fedworth.oracle.fast.kernels.tiles import Floats, find_extremes


def first_layers(tiles: Floats, packed: Floats, n_outputs: int) -> tuple[Floats, Floats]:
    """All models' outputs for a block of samples (n_tiles, n_inputs, TILE): (n_models, n_tiles, n_outputs, TILE), and
    their extremes (n_models, 2).

    `packed` is (n_models, n_numbers), from `pack_layers`.
    """
    outputs = np.empty((len(packed), len(tiles), n_outputs + n_outputs % 2, TILE), np.float32)
    extremes = np.empty((len(packed), 2), np.float32)
    lanes, flat = np.empty((3, LANES), np.float32), (tiles.ravel(), packed.ravel(), outputs.ravel())
    _first_layers(tiles.shape[1], n_outputs, *flat, outputs, lanes, extremes)
    return np.ascontiguousarray(outputs[:, :, :n_outputs]), extremes


@compiled
def _first_layers(
    n_inputs: int,
    n_wanted: int,
    inputs: Floats,
    weights: Floats,
    results: Floats,
    outputs: Floats,
    lanes: Floats,
    extremes: Floats,
) -> None:
    """`results` are the outputs, flat as inputs and weights are; `lanes` is room to work in."""
    n_models, n_tiles, n_outputs, width = outputs.shape
    one, lowest = np.float32(1.0), np.float32(-np.inf)
    for model in range(n_models):
        at = model * (len(weights) // n_models)
        biases = at + n_inputs * n_outputs
        for out in range(0, n_outputs, WIDEST):
            panel = WIDEST if n_outputs - out > WIDEST else n_outputs - out
            for tile in range(n_tiles):
                x_at = tile * n_inputs * width
                y_at = ((model * n_tiles + tile) * n_outputs + out) * width
                run_panel(panel, (inputs, x_at, weights, at, biases + out, results, y_at, n_inputs, one, one, lowest))
            at += panel * n_inputs
        find_extremes(outputs, model, n_wanted, lanes, extremes)
