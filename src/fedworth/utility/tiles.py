"""How samples lie in memory for the kernels: tiles of TILE samples side by side, and blocks of a few tiles.

A block is what is summed before the next: its losses are added up, then those of the blocks in their order. So its
size depends on the module alone, never on how many clients or coalitions are measured, and a coalition's loss is the
same sum whatever is measured beside it.
"""

import numpy as np
from numpy.typing import NDArray

from fedworth.utility.kernels_lanes import TILE

MOST_TILES = 8
"""Tiles of samples in a block, at most: their products of mantissas stay below 2^256."""

BLOCK_NUMBERS = 1 << 16
"""What one model may make of a block: a quarter of a megabyte."""

Floats = NDArray[np.float32]
Labels = NDArray[np.int32]


def tiles_in_block(n_outputs: int) -> int:
    """How many tiles a block has, if a model makes n_outputs numbers of a sample."""
    return max(1, min(MOST_TILES, BLOCK_NUMBERS // (TILE * max(1, n_outputs))))


def tiled(outputs: Floats, first: int, n_tiles: int) -> Floats:
    """Samples from `first` on of (n_models, n_samples, n_outputs) as (n_models, n_tiles, n_outputs, TILE), zeros beyond
    the last sample."""
    block = outputs[:, first : first + n_tiles * TILE]
    n_here = -(-block.shape[1] // TILE)
    missing = n_here * TILE - block.shape[1]
    if missing:
        block = np.pad(block, ((0, 0), (0, missing), (0, 0)))
    tiles = block.reshape(len(block), n_here, TILE, block.shape[2]).transpose(0, 1, 3, 2)
    return np.ascontiguousarray(tiles, np.float32)


def tiled_labels(labels: NDArray[np.int64], first: int, n_tiles: int) -> Labels:
    """The labels of the same samples, −1 beyond the last."""
    present = labels[first : first + n_tiles * TILE]
    block = np.full(-(-len(present) // TILE) * TILE, -1, np.int32)
    block[: len(present)] = present
    return block
