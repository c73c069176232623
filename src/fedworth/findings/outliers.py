"""Whether one client's number lies far above all others'.

    t = (x_i − m) / √(s² + sd_i²)

with m the others' median, s their robust spread (1.48 times the median distance from m) and sd_i the client's own
standard error; compared with Student's t with .4 (n − 1) degrees of freedom (a robust spread is that much less certain
than an ordinary one), and counted for all n clients.
"""

import numpy as np
from scipy.special import stdtr

from fedworth.arrays import Floats
from fedworth.findings.finding import confidence_of

FEWEST = 5
"""With fewer clients no number is called far from the others'."""

ROBUST = 1.4826
FREEDOM = 0.4
"""Degrees of freedom for each of the others."""


def confidence_above(own: float, others: Floats, error: float) -> float:
    """The confidence that a number is far above the others, (n − 1,), given its own standard error."""
    middle = float(np.median(others))
    far = np.hypot(ROBUST * float(np.median(np.abs(others - middle))), error)
    chance = float(stdtr(FREEDOM * len(others), (middle - own) / far)) if far > 0 else 1.0
    return confidence_of((len(others) + 1) * chance)
