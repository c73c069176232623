"""How often FedSV tells two identical clients apart (the paper's Observation 1, corrected).

In: the federation's sizes, N clients of whom m take part in each of T rounds, and s. Out: probabilities.
A round sets clients i and j apart when one of them takes part and the other does not:

    p = P(i in, j out) = m(N−m) / (N(N−1))

and then moves s_i − s_j by ±δ_t, δ_t ~ N(δ, σ²). Of k rounds apart b are in j's favour, and a = k − 2b:

    P_s = Σ_{a≥s} Σ_b T! / (b! (T−k)! (a+b)!) p^k (1−2p)^{T−k}
        = Σ_k C(T,k) (2p)^k (1−2p)^{T−k} · P(k − 2 Binomial(k, ½) ≥ s)

The second line, free of large factorials, is what is computed. The paper prints (1−p) for (1−2p), and b up to
⌊(n−a)/2⌋ for ⌊(T−a)/2⌋; its terms sum to (1+p)^T. In a round that hears everyone both clients take part:
do not count it in `n_rounds`.
"""

import math

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr
from scipy.stats import binom

from fedworth.errors import UsageError

MOST_ROUNDS = 5_000  # two arrays of the square of it
Probabilities = NDArray[np.float64]


def difference_chance(n_clients: int, n_participants: int) -> float:
    """The chance that one round has client i among its participants and not client j."""
    if n_clients < 2:
        raise UsageError(f"{n_clients} clients: Observation 1 speaks of a pair, expected at least 2")
    if not 0 <= n_participants <= n_clients:
        raise UsageError(f"{n_participants} participants: expected 0 to {n_clients}, the number of clients")
    return n_participants * (n_clients - n_participants) / (n_clients * (n_clients - 1))


def difference_counts(n_clients: int, n_participants: int, n_rounds: int) -> Probabilities:
    """Entry (k, b): the chance that k rounds set i and j apart, b of them in j's favour."""
    if not 0 <= n_rounds <= MOST_ROUNDS:
        raise UsageError(f"{n_rounds} rounds: expected none or more, and {MOST_ROUNDS:,} at most")
    apart = 2 * difference_chance(n_clients, n_participants)
    counts = np.arange(n_rounds + 1)
    n_apart = binom.pmf(counts, n_rounds, apart)  # (n_rounds + 1,)
    against = binom.pmf(counts[None, :], counts[:, None], 0.5)  # (n_rounds + 1, n_rounds + 1)
    return np.asarray(n_apart[:, None] * against, dtype=np.float64)


def unfairness_bound(n_clients: int, n_participants: int, n_rounds: int, s: float) -> float:
    """P_s, a lower bound on the chance that |s_i − s_j| ≥ sδ whatever σ is.

    For s > 0 it is half the exact chance at σ = 0: the paper's proof spends a factor ½ on the spread of δ_t,
    where P(Σα ≥ sδ | Σβ ≥ sδ) is at least ½, and printed as equal to ½.
    """
    chances = difference_counts(n_clients, n_participants, n_rounds)
    lead = _lead(n_rounds)
    return _total(chances[lead >= _checked(s, "s")])


def unfairness_chance(n_clients: int, n_participants: int, n_rounds: int, s: float, sigma: float = 0.0) -> float:
    """The exact chance that |s_i − s_j| ≥ sδ; `sigma` is the spread of δ_t, in units of δ.

    Given k rounds apart and a lead of a, the difference is N(a, k σ²) in units of δ.
    """
    chances = difference_counts(n_clients, n_participants, n_rounds)
    exceeds = _exceedance(n_rounds, _checked(s, "s"), _checked(sigma, "sigma"))
    return _total(chances * exceeds)


def _lead(n_rounds: int) -> NDArray[np.int64]:
    """Entry (k, b): a = k − 2b, by how many rounds i is ahead of j."""
    counts = np.arange(n_rounds + 1, dtype=np.int64)
    return counts[:, None] - 2 * counts[None, :]  # (n_rounds + 1, n_rounds + 1)


def _exceedance(n_rounds: int, s: float, sigma: float) -> Probabilities:
    """Entry (k, b): P(|N(a, k σ²)| ≥ s)."""
    lead = _lead(n_rounds)
    certain = (np.abs(lead) >= s).astype(np.float64)
    spread = sigma * np.sqrt(np.arange(n_rounds + 1.0))[:, None]  # (n_rounds + 1, 1)
    safe = np.where(spread > 0, spread, 1.0)  # no spread, no normal law: the row is replaced below
    with np.errstate(over="ignore"):  # an infinite quotient has the right tail, 0 or 1
        tails = ndtr((lead - s) / safe) + ndtr((-s - lead) / safe)
    return np.where(spread > 0, tails, certain)


def _total(chances: Probabilities) -> float:
    """The sum, added without rounding and kept from passing 1 by the rounding of its terms."""
    return min(1.0, math.fsum(chances.ravel().tolist()))


def _checked(number: float, name: str) -> float:
    if not (math.isfinite(number) and number >= 0):
        raise UsageError(f"{name} is {number}, expected a finite number of at least 0")
    return float(number)
