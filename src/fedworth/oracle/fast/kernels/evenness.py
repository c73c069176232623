"""Whose numbers are too uneven for sums of whole units.

A unit follows the largest number of a block of samples, or of a layer, and all others are rounded to it (`averages`).
Where one number is far larger than most, as a masked logit, an outlying sample or a runaway weight is, the others keep
too few bits: with a logit of −10⁹, none at all. Floats keep their bits whatever is beside them, so coalitions with such
a client are measured by a route of floats. Whether a model is one depends on itself and the test set alone.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedworth.oracle.fast.kernels.tiles import Floats

N_SHOWN = 8
"""Samples of a block that show what is ordinary."""


class Evenness(NamedTuple):
    """What counts as even: an ordinary size, and how many times as large the largest number may be."""

    ordinary: float  # which of the sizes, as a share, from the smallest on
    most: float


LOGITS = Evenness(0.1, 256.0)
"""Of logits, most may be masked."""

UNITS = Evenness(0.5, 512.0)
"""Of hidden units, some are dead. What is lost in bits differs from one to the next, and from sample to sample, so that
most of it cancels out: up to here losses err by less than 10⁻⁶."""

WEIGHTS = Evenness(0.5, 256.0)
"""Of rows and columns of weights; and a bias may be so many times as large as the weights."""


def uneven_outputs(tiles: Floats, extremes: Floats, limit: Evenness) -> NDArray[np.bool_]:
    """(n_models,): of a block's outputs, (n_models, n_tiles, n_outputs, TILE). A few samples show what is ordinary: the
    median of an output over them."""
    largest = np.maximum(extremes[:, 1], -extremes[:, 0])  # (n_models,)
    ordinary = _ordinary(_ordinary(np.abs(tiles[:, 0, :, :N_SHOWN]), 0.5), limit.ordinary)
    return np.asarray(largest > limit.most * ordinary)


def uneven_layers(layers: Sequence[tuple[Floats, Floats]], n_models: int) -> NDArray[np.bool_]:
    """(n_models,): of layers' weights (n_models, n_outputs, n_inputs) and biases (n_models, n_outputs)."""
    uneven = np.zeros(n_models, np.bool_)
    for weights, biases in layers:
        sizes = np.abs(weights)
        largest = sizes.max(axis=(1, 2))  # (n_models,)
        for axis in (1, 2):
            uneven |= largest > WEIGHTS.most * _ordinary(sizes.max(axis=axis), WEIGHTS.ordinary)
        uneven |= (largest > 0) & (np.abs(biases).max(axis=1) > WEIGHTS.most * largest)
    return uneven


def _ordinary(sizes: Floats, share: float) -> Floats:
    """(…): the size that this share of the last axis does not exceed; sizes of 0 do not count, since 0 is a whole
    number of any unit, nor do infinite ones. Without others, it is infinite."""
    counted = (sizes > 0) & (sizes < np.inf)
    in_order = np.sort(np.where(counted, sizes, np.inf), axis=-1)
    places = (share * np.count_nonzero(counted, axis=-1)).astype(np.int64)
    return np.asarray(np.take_along_axis(in_order, np.minimum(places, sizes.shape[-1] - 1)[..., None], -1)[..., 0])
