"""The surrogate: a smooth game that predicts the utilities of coalitions from those measured, fitted by kernel ridge.

    g(S) = u₀ + Σ_j α_j κ(S, S_j),   (K + ν I) α = y − u₀           S_j the coalitions it is trained on, u₀ = U(all)

κ depends only on the sizes and the overlap of two coalitions, o = |S∩T|. A coalition's model is the average with
weights 1/|S|, so κ is smooth in these weights, whose squared distance is 1/|S| + 1/|T| − 2o/(|S||T|); a weaker part is
smooth in the membership itself, |S△T|/n, for utilities that do not average (accuracy, fixed weights).

Because κ sees sizes and overlap alone, the means of g over strata, and so its Shapley value, are sums over overlaps.
Let A_{s,i}(g) be the mean of g over coalitions of size s with i, minus that over those without. For i ∈ T, |T| = t,

    A_{s,i}(κ(·,T)) = E κ(1 + H) − E κ(H'),   H ~ Hypergeometric(n−1, t−1, s−1),  H' ~ Hypergeometric(n−1, t−1, s)

and since Σ_i A_{s,i} = 0 and all i ∉ T are alike, they get −t/(n−t) of it.

Leaving one coalition k out costs nothing more: with B = (K + ν I)^−1, the coefficients without k are
α − B_{·k} α_k / B_kk, and what they miss at k is e_k = α_k / B_kk.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy.linalg import cho_factor, cho_solve
from scipy.special import gammaln

from fedworth.arrays import Floats, Indices, Memberships, Utilities

Kernel = Callable[[Floats, Floats, Floats, int], Floats]
"""Overlap, size, other size, n members → similarity."""

NOISE = 1e-5
"""ν, relative to the kernel's own height; larger than rounding, smaller than what matters."""
ROUGH = 0.1
"""Height of the part that is smooth in the membership alone, relative to the other."""
REACH = 0.3
"""How fast it falls with |S△T|/n."""
BLOCK = 4096


def smooth(overlaps: Floats, sizes: Floats, others: Floats, n_members: int) -> Floats:
    """The kernel in use: Matérn 5/2 in the averaging weights, and a little in the membership."""
    in_weights = 1 / sizes + 1 / others - 2 * overlaps / (sizes * others)
    in_members = (sizes + others - 2 * overlaps) / n_members
    return _matern(in_weights) + ROUGH * _matern(REACH * in_members)


@dataclass(frozen=True)
class FittedSurrogate:
    """A fitted surrogate, and what is needed to leave out any coalition that it was trained on."""

    trained: Memberships  # (n_trained, n)
    origin: float
    coefficients: Floats  # α, (n_trained,)
    inverse: Floats  # B, (n_trained, n_trained)
    kernel: Kernel

    @property
    def errors_left_out(self) -> Floats:
        """(n_trained,): what the surrogate misses at each trained coalition when fitted without it."""
        return np.asarray(self.coefficients / np.diag(self.inverse))

    def leaving_out(self, which: Indices, n_in_mean: int) -> Floats:
        """(n_trained,): the mean coefficients of `n_in_mean` surrogates, each of `which` being left out of one."""
        return np.asarray(self.coefficients - self.inverse[:, which] @ self.errors_left_out[which] / n_in_mean)

    def at(self, coalitions: Memberships, coefficients: Floats) -> Utilities:
        """(n_coalitions, n_surrogates): utilities predicted with each column of coefficients, block by block."""
        starts = range(0, len(coalitions), BLOCK)
        blocks = [similarities(coalitions[a : a + BLOCK], self.trained, self.kernel) @ coefficients for a in starts]
        return self.origin + np.concatenate(blocks)

    def contrasts(self, size: int, coefficients: Floats) -> Floats:
        """(n,): A_{s,i} of the surrogate, over all coalitions of this size."""
        n = self.trained.shape[1]
        others = self.trained.sum(axis=1)  # t, (n_trained,)
        weights = coefficients * slopes(n, size, self.kernel)[others]  # (n_trained,)
        outside = -others / np.maximum(n - others, 1)  # (n_trained,)
        return np.asarray(np.where(self.trained, 1.0, outside[:, None]).T @ weights)


def fit(coalitions: Memberships, utilities: Utilities, origin: float, kernel: Kernel = smooth) -> FittedSurrogate:
    """The surrogate trained on these coalitions."""
    similar = similarities(coalitions, coalitions, kernel)  # K, (n_trained, n_trained)
    similar[np.diag_indices_from(similar)] += NOISE * np.trace(similar) / max(len(similar), 1)
    inverse = cho_solve(cho_factor(similar), np.eye(len(similar)))
    return FittedSurrogate(coalitions, origin, inverse @ (utilities - origin), inverse, kernel)


def similarities(rows: Memberships, columns: Memberships, kernel: Kernel) -> Floats:
    """(n_rows, n_columns): κ of every two coalitions."""
    overlaps = rows.astype(np.float64) @ columns.T.astype(np.float64)
    sizes, others = rows.sum(axis=1, dtype=np.float64), columns.sum(axis=1, dtype=np.float64)
    return kernel(overlaps, sizes[:, None], others[None], rows.shape[1])


@lru_cache(maxsize=4096)
def slopes(n_members: int, size: int, kernel: Kernel) -> Floats:
    """(n + 1,): entry t is A_{s,i}(κ(·,T)) for i ∈ T of size t; 0 for T = ∅ and T = all."""
    found = np.zeros(n_members + 1)
    others = np.arange(1, n_members)[:, None]  # t, (n−1, 1)
    overlaps = np.arange(n_members)[None]  # (1, n)
    with_member = _chances(overlaps - 1, n_members - 1, others - 1, size - 1)  # (n−1, n)
    without = _chances(overlaps, n_members - 1, others - 1, size)  # (n−1, n)
    kernels = kernel(overlaps.astype(np.float64), np.full((1, 1), float(size)), others.astype(np.float64), n_members)
    found[1:n_members] = ((with_member - without) * kernels).sum(axis=1)
    return found


def _chances(overlaps: Indices, n_all: int, n_marked: Indices, n_drawn: int) -> Floats:
    """Hypergeometric: the chance of so many marked ones among `n_drawn` of `n_all`."""
    possible = (
        (overlaps >= 0) & (overlaps <= n_marked) & (n_drawn - overlaps <= n_all - n_marked) & (overlaps <= n_drawn)
    )
    k = np.where(possible, overlaps, np.maximum(0, n_drawn - n_all + n_marked))  # any possible one, to be masked
    logs = _log_choose(n_marked, k) + _log_choose(n_all - n_marked, n_drawn - k) - _log_choose(n_all, n_drawn)
    return np.where(possible, np.exp(logs), 0.0)


def _log_choose(n: Indices | int, k: Indices | int) -> Floats:
    return np.asarray(gammaln(np.add(n, 1)) - gammaln(np.add(k, 1)) - gammaln(np.subtract(n, k) + 1))


def _matern(squared: Floats) -> Floats:
    """Matérn 5/2 of a squared distance."""
    distance = np.sqrt(5 * np.maximum(squared, 0))
    return np.asarray((1 + distance + distance**2 / 3) * np.exp(-distance))
