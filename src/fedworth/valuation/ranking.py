"""Ranks of values; values that differ only by rounding share a rank."""

from collections.abc import Sequence

import numpy as np

from fedworth.arrays import Floats

EQUAL = 1e-7
"""Values closer than this, relative to the largest, are equal: float32 models of copies differ by as much."""


def ranks_of(values: Floats) -> Floats:
    """(n,): 1 for the largest, the same rank for equal values, NaN without a value."""
    known = values[~np.isnan(values)]
    slack = EQUAL * np.abs(known).max(initial=0)
    above = (known > values[:, None] + slack).sum(axis=1)  # (n,)
    return np.where(np.isnan(values), np.nan, 1.0 + above)


def rank_correlation(first: Sequence[float], second: Sequence[float]) -> float | None:
    """Spearman's correlation over the clients with a value on both sides; None if all values of a side are equal."""
    both = np.array([first, second], dtype=np.float64)  # (2, n)
    ours, theirs = (ranks_of(side) for side in both[:, ~np.isnan(both).any(axis=0)])
    if len(ours) < 2 or np.ptp(ours) == 0 or np.ptp(theirs) == 0:
        return None
    return float(np.corrcoef(_averaged(ours), _averaged(theirs))[0, 1])


def _averaged(ranks: Floats) -> Floats:
    """(n,): equal ranks replaced by the mean of the places that they take together."""
    return np.asarray((ranks < ranks[:, None]).sum(axis=1) + ((ranks == ranks[:, None]).sum(axis=1) + 1) / 2)
