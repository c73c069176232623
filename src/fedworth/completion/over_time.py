"""How utilities vary over the rounds: covariances of a Gaussian process with fixed numbers, and the rounds' scale.

    m_p(t,s) = A_p + b B_p exp(−(t−s)²/200) + R_p 1(t=s)      for each power p = 0..3 of how alike two coalitions are

Utilities are divided by the scale g_t of their round before: a root mean square, smoothed over the rounds.
"""

import numpy as np

from fedworth.arrays import Floats

ALWAYS = (0.5, 0.1, 0.1, 0.03)  # A
NEARBY = (0.1, 0.5, 0.3, 0.1)  # B
OF_ROUND = (0.1, 0.1, 0.03, 0.01)  # R
REACH = 200.0
BANDWIDTH = 3.0
LEAST_SCALE = 1e-4


def over_time(n_rounds: int, *, wandering: float = 1.0) -> list[Floats]:
    """m_p for each power p, (n_rounds, n_rounds); `wandering` is b: how much of what varies does so slowly."""
    t = np.arange(n_rounds, dtype=np.float64)
    near, same = np.exp(-((t[:, None] - t) ** 2) / REACH), np.eye(n_rounds)
    return [a + wandering * b * near + r * same for a, b, r in zip(ALWAYS, NEARBY, OF_ROUND, strict=True)]


def smoothed(sizes: Floats) -> Floats:
    """g, (n_rounds,): the sizes of some rounds smoothed over all of them, on a logarithmic scale; NaN where a round
    shows nothing."""
    shown = np.flatnonzero(~np.isnan(sizes))
    known = sizes[shown]
    logs = np.log(np.maximum(known, LEAST_SCALE * known.max(initial=0) or 1.0))
    near = np.exp(-0.5 * ((np.arange(len(sizes))[:, None] - shown) / BANDWIDTH) ** 2)  # (n_rounds, n_shown)
    return np.asarray(np.exp(near @ logs / np.maximum(near.sum(axis=1), np.finfo(np.float64).tiny)))
