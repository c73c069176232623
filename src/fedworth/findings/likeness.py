"""Pairs of clients whose updates are alike as those of no other two: copies that draw other batches look like this.

In: the inner products of a round's updates. Out: the pair, its likeness, and how sure it is that it stands out.

What all updates of a round share is taken out first (their mean), then the likeness of two is the cosine c_ij of what
is left. Among the pairs of a round c has a median m and a robust spread s (1.48 times the median distance from m):

    z_ij = (c_ij − m) / s,     sure = 1 − n_pairs Φ(−z), and .99 at most

A pair is named if z ≥ 3.3 and no other pair has z ≥ 3; or if c ≥ .999, where hardly anything but rounding is left to
tell the two apart. Where several pairs stand out, clients come in kinds (the same two classes, say), and two of one
kind cannot be told from a copy: then nothing is said. Even of one pair that can be so, hence the .99. Rounds of fewer
than eight answers have too few pairs to know how much these differ.
"""

from dataclasses import dataclass

import numpy as np
from scipy.special import ndtr

from fedworth.arrays import Floats
from fedworth.findings.traces import RoundTrace

STANDS_OUT, BELOW = 3.3, 3.0
ALL_BUT_EQUAL = 0.999
MOST_SURE = 0.99
FEWEST = 8


@dataclass(frozen=True)
class Alike:
    """Two clients of a round, by number, how alike they are, and how sure it is that this is no chance."""

    clients: tuple[int, int]
    likeness: float
    sure: float


def alike_pairs(trace: RoundTrace) -> list[Alike]:
    """The pairs of one round that stand out, if any do."""
    if len(trace.clients) < FEWEST or trace.products is None:
        return []
    cosines = _left_over(trace.products)
    first, second = np.triu_indices(len(cosines), 1)
    found = cosines[first, second]
    middle = np.median(found)
    spread = 1.4826 * float(np.median(np.abs(found - middle)))
    z = (found - middle) / spread if spread > 0 else np.zeros(len(found))
    stands_out = (z >= STANDS_OUT) & ((z >= BELOW).sum() == 1)
    return [
        Alike(
            (trace.clients[int(first[k])], trace.clients[int(second[k])]),
            float(found[k]),
            min(MOST_SURE, 1 - len(found) * float(ndtr(-z[k]))),
        )
        for k in np.flatnonzero(stands_out | (found >= ALL_BUT_EQUAL)).tolist()
    ]


def _left_over(products: Floats) -> Floats:
    """(n, n): cosines of the updates without their mean; 0 of one that is the mean."""
    n = len(products)
    lengths = np.sqrt(np.maximum(np.diag(products), 0))
    scales = np.divide(1.0, lengths, out=np.zeros(n), where=lengths > 0)
    units = products * np.outer(scales, scales)  # a long update is not to decide the mean
    centre = np.eye(n) - 1 / n
    left = centre @ units @ centre
    sizes = np.sqrt(np.maximum(np.diag(left), 0))
    with np.errstate(divide="ignore", invalid="ignore"):
        cosines = np.clip(left / np.outer(sizes, sizes), -1, 1)
    return np.where(np.isfinite(cosines), cosines, 0.0)
