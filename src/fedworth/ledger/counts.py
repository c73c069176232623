"""How much a client's model weighs in an average: a number of samples, or a weight of the server's own.

    samples     a whole number from 1 to 10^12: what a live federation's clients report
    weights     any finite number from 2^-53 to 2^53: a server that weighs by something else says so once, by
                `record_into(…, real_weights=True)`, or in Flower by naming the metric: `weighted_by="my-weight"`
    any         from 0 to 2^53: a simulation's, or of a program that raises its own errors

A client that reports anything else is quarantined with the reason: one tiny or huge number would decide every average.
"""

import math
import numbers
from typing import Any, Literal

from fedworth.errors import ModelError

Counting = Literal["samples", "weights", "any"]

RANGES: dict[Counting, tuple[float, float]] = {
    "samples": (1, 10**12),
    "weights": (2.0**-53, 2.0**53),
    "any": (0, 2.0**53),
}


def checked_count(said: Any, counting: Counting, where: str) -> float:
    """The count as a number of Python's own, whole if it is whole."""
    if isinstance(said, bool) or not isinstance(said, numbers.Real):
        raise ModelError(f"{where}: its number of samples is a {type(said).__name__}, expected a number")
    n_samples: Any = said
    least, most = RANGES[counting]
    is_whole = isinstance(n_samples, numbers.Integral) or float(n_samples).is_integer()
    if not least <= n_samples <= most or (counting == "samples" and not is_whole):
        expected = "a whole number from 1 to 10^12" if counting == "samples" else f"from {least:.3g} to {most:.3g}"
        raise ModelError(f"{where}: its number of samples is {_shown(n_samples)}, expected {expected}")
    return int(n_samples) if is_whole else float(n_samples)


def _shown(n_samples: Any) -> str:
    try:
        return f"{float(n_samples):.6g}"
    except OverflowError:
        return f"a number of {math.log10(abs(int(n_samples))):.0f} digits"
