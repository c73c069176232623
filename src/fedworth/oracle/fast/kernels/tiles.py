"""How samples lie in memory for the kernels: tiles of TILE samples side by side, and blocks of a few tiles.

A block is what is summed before the next: its losses are added up, then those of the blocks in their order. So its
size depends on the module alone, never on how many clients or coalitions are measured, and a coalition's loss is the
same sum whatever is measured beside it.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedworth.compile import compiled, compiled_within
from fedworth.oracle.fast.kernels.lanes import LANES, TILE

MOST_TILES = 8
"""Tiles of samples in a block, at most: their products of mantissas stay below 2^256."""

BLOCK_NUMBERS = 1 << 16
"""What one model may make of a block: a quarter of a megabyte."""

Floats = NDArray[np.float32]
Labels = NDArray[np.int32]


class NotFiniteError(ArithmeticError):
    """A model's numbers are not finite, so they cannot be rounded to whole units."""


@dataclass(frozen=True, slots=True)
class Block:
    """What models make of a few tiles of samples, up to where they stop being linear."""

    tiles: Floats  # (n_models, n_tiles, n_outputs, TILE)
    extremes: Floats  # (n_models, 2) the lowest and the highest number of each, NaN if one is not finite
    start: Floats  # (1 or 0, n_tiles, n_outputs, TILE) the model that sums start from, if they do not from nothing
    labels: Labels  # (n_tiles · TILE,) −1 beyond the last sample

    def relative_extremes(self) -> tuple[Floats, Floats]:
        """The extremes of each model less the one that sums start from (n_models, 2), and of that one (0 or 1, 2)."""
        if not len(self.start):
            return self.extremes, np.zeros((0, 2), np.float32)
        return extremes_of(self.tiles - self.start), extremes_of(self.start)


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


def extremes_of(tiles: Floats) -> Floats:
    """(n_models, 2): the lowest and the highest number of each model, NaN if one is not finite."""
    found = np.empty((len(tiles), 2), np.float32)
    _find_all_extremes(tiles, np.empty((3, LANES), np.float32), found)
    return found


@compiled
def _find_all_extremes(tiles: Floats, lanes: Floats, found: Floats) -> None:
    for model in range(len(tiles)):
        find_extremes(tiles, model, tiles.shape[2], lanes, found)


@compiled_within
def find_extremes(tiles: Floats, model: int, n_rows: int, lanes: Floats, found: Floats) -> None:
    """The lowest and the highest number of the first rows of a model's tiles; lanes side by side, for vectors."""
    for lane in range(LANES):
        lanes[0, lane] = tiles[model, 0, 0, lane]
        lanes[1, lane] = tiles[model, 0, 0, lane]
        lanes[2, lane] = np.float32(0.0)
    for tile in range(tiles.shape[1]):
        for row in range(n_rows):
            for first in range(0, tiles.shape[3], LANES):
                for lane in range(LANES):
                    number = tiles[model, tile, row, first + lane]
                    lanes[0, lane] = number if number < lanes[0, lane] else lanes[0, lane]
                    lanes[1, lane] = number if number > lanes[1, lane] else lanes[1, lane]
                    lanes[2, lane] += number * np.float32(0.0)  # NaN for all that is not finite
    lowest, highest, nothing = lanes[0, 0], lanes[1, 0], lanes[2, 0]
    for lane in range(1, LANES):
        lowest = lanes[0, lane] if lanes[0, lane] < lowest else lowest
        highest = lanes[1, lane] if lanes[1, lane] > highest else highest
        nothing += lanes[2, lane]
    found[model, 0], found[model, 1] = lowest + nothing, highest + nothing
