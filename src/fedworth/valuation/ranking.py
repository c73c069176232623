"""Ranking: who comes before whom. Values that differ by rounding alone share a rank."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

EQUAL = 1e-7
"""Values closer than this, relative to the largest, are equal: what the rounding of float32 models can do to copies."""


def ranks_of(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """(n,): 1 for the largest, equal ones alike; NaN without a value."""
    known = values[~np.isnan(values)]
    slack = EQUAL * np.abs(known).max(initial=0)
    above = (known > values[:, None] + slack).sum(axis=1)  # (n,)
    return np.where(np.isnan(values), np.nan, 1.0 + above)


def rank_correlation(first: Sequence[float], second: Sequence[float]) -> float | None:
    """Spearman's correlation of the clients that have a value on both sides; None where all values of a side are
    equal."""
    both = np.array([first, second], dtype=np.float64)  # (2, n)
    ours, theirs = (ranks_of(side) for side in both[:, ~np.isnan(both).any(axis=0)])
    if len(ours) < 2 or np.ptp(ours) == 0 or np.ptp(theirs) == 0:
        return None
    return float(np.corrcoef(_averaged(ours), _averaged(theirs))[0, 1])


def _averaged(ranks: NDArray[np.float64]) -> NDArray[np.float64]:
    """(n,): equal ones all get the mean of the places that they take together."""
    return np.asarray((ranks < ranks[:, None]).sum(axis=1) + ((ranks == ranks[:, None]).sum(axis=1) + 1) / 2)
