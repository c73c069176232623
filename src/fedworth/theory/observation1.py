"""How often FedSV gives two identical clients different values (the paper's Observation 1, corrected).

N clients, of whom m take part in each of T rounds. A round separates clients i and j if one of them takes part and the
other does not,

    p = P(i in, j out) = m(N−m) / (N(N−1)),

and then moves s_i − s_j by ±δ_t, δ_t ~ N(δ, σ²). If k rounds separate them, b in favour of j, then i leads by
a = k − 2b rounds, and

    P_s = Σ_{a≥s} Σ_b T! / (b! (T−k)! (a+b)!) p^k (1−2p)^{T−k}
        = Σ_k C(T,k) (2p)^k (1−2p)^{T−k} · P(k − 2 Binomial(k, ½) ≥ s).

The second line has no large factorials and is what is computed. The paper prints (1−p) instead of (1−2p), and b up to
⌊(n−a)/2⌋ instead of ⌊(T−a)/2⌋; its terms sum to (1+p)^T. A round with all clients separates nobody: do not count it in
`n_rounds`.
"""

import math

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr
from scipy.stats import binom

from fedworth.arrays import Floats
from fedworth.errors import UsageError

MOST_ROUNDS = 5_000  # two arrays of its square are made


def difference_chance(n_clients: int, n_participants: int) -> float:
    """p, the probability that client i takes part in a round and client j does not."""
    if n_clients < 2:
        raise UsageError(f"{n_clients} clients: Observation 1 compares a pair, expected at least 2")
    if not 0 <= n_participants <= n_clients:
        raise UsageError(f"{n_participants} participants: expected 0 to {n_clients}, the number of clients")
    return n_participants * (n_clients - n_participants) / (n_clients * (n_clients - 1))


def difference_counts(n_clients: int, n_participants: int, n_rounds: int) -> Floats:
    """(n_rounds + 1, n_rounds + 1): entry (k, b) is the probability of k separating rounds, b in favour of j."""
    if not 0 <= n_rounds <= MOST_ROUNDS:
        raise UsageError(f"{n_rounds} rounds: expected none or more, and {MOST_ROUNDS:,} at most")
    counts = np.arange(n_rounds + 1)
    separating = binom.pmf(counts, n_rounds, 2 * difference_chance(n_clients, n_participants))  # (n_rounds + 1,)
    in_favour = binom.pmf(counts[None, :], counts[:, None], 0.5)  # (n_rounds + 1, n_rounds + 1)
    return np.asarray(separating[:, None] * in_favour, dtype=np.float64)


def unfairness_bound(n_clients: int, n_participants: int, n_rounds: int, s: float) -> float:
    """P_s, a lower bound of the probability that |s_i − s_j| ≥ sδ, for any σ.

    For s > 0 it is half the exact probability at σ = 0: the paper's proof loses a factor ½ to the spread of δ_t, since
    P(Σα ≥ sδ | Σβ ≥ sδ) is at least ½ (printed as equal to ½).
    """
    chances = difference_counts(n_clients, n_participants, n_rounds)
    return _total(chances[_lead(n_rounds) >= _checked(s, "s")])


def unfairness_chance(n_clients: int, n_participants: int, n_rounds: int, s: float, sigma: float = 0.0) -> float:
    """The exact probability that |s_i − s_j| ≥ sδ; `sigma` is the spread of δ_t in units of δ.

    Given k separating rounds and a lead of a, the difference is N(a, k σ²) in units of δ.
    """
    chances = difference_counts(n_clients, n_participants, n_rounds)
    s, lead = _checked(s, "s"), _lead(n_rounds)
    spread = _checked(sigma, "sigma") * np.sqrt(np.arange(n_rounds + 1.0))[:, None]  # (n_rounds + 1, 1)
    safe = np.where(spread > 0, spread, 1.0)  # rows without spread are replaced below
    with np.errstate(over="ignore"):  # an infinite quotient has the right tail, 0 or 1
        tails = ndtr((lead - s) / safe) + ndtr((-s - lead) / safe)
    return _total(chances * np.where(spread > 0, tails, np.abs(lead) >= s))


def _lead(n_rounds: int) -> NDArray[np.int64]:
    """(n_rounds + 1, n_rounds + 1): entry (k, b) is a = k − 2b, by how many rounds i leads."""
    counts = np.arange(n_rounds + 1, dtype=np.int64)
    return counts[:, None] - 2 * counts[None, :]


def _total(chances: Floats) -> float:
    """The exact sum, at most 1 in spite of rounding."""
    return min(1.0, math.fsum(chances.ravel().tolist()))


def _checked(number: float, name: str) -> float:
    if not (math.isfinite(number) and number >= 0):
        raise UsageError(f"{name} is {number}, expected a finite number of at least 0")
    return float(number)
