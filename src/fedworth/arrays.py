"""Names for the arrays that pass between stages, and the random streams that fill them.

A name says what an array holds; the shape stands at the end of the line that makes it.
"""

import zlib

import numpy as np
from numpy.typing import NDArray

Utilities = NDArray[np.float64]
"""Loss before minus loss after; higher is better."""

Memberships = NDArray[np.bool_]
"""(n_coalitions, n_clients): row c says who is in coalition c."""

Permutations = NDArray[np.int64]
"""(n_permutations, n_clients): row m lists the clients in the order they join."""

Indices = NDArray[np.int64]

Floats = NDArray[np.float64]
"""Any other array of numbers."""


def stream(seed: int, purpose: str, *indices: int) -> np.random.Generator:
    """The random stream of one purpose: equal arguments give equal numbers, whatever else was drawn."""
    return np.random.default_rng([seed, zlib.crc32(purpose.encode()), *indices])
