"""The Shapley value of one game from a stratified design, with a surrogate as control variate; unbiased.

With p = s/n and the contrast c_i(S) = ([i ∈ S] − p) / (p (1−p)), which sums to 0 over each stratum and over i,

    v_i = (1/n) (U(all) + Σ_{s=1}^{n−1} A_{s,i}),   A_{s,i} = mean over |S| = s of c_i(S) U(S)

since that mean is the mean of U over coalitions of size s with i, minus that over those without. From a stratum of C
coalitions, m of them measured, f = m/C, the estimate is

    Â_{s,i} = A_{s,i}(ḡ) + f · mean_k c_i(S_k) (U(S_k) − ḡ(S_k)) + (1−f) · mean_k c_i(S_k) e_k

with e_k = U(S_k) − g_k(S_k), g_k the surrogate fitted without S_k, and ḡ the mean of the g_k.

Unbiased: Â is the mean over k of

    A(g_k) + (1/C) Σ_{l≠k} c(S_l) (U − g_k)(S_l) + (1 − (m−1)/C) c(S_k) (U − g_k)(S_k).

Fix all draws but the k-th. Then g_k is fixed, and S_k is uniform over the C − m + 1 coalitions that are left, so the
last term has the expectation (1/C) Σ_left c (U − g_k); with the middle term that is A(U) − A(g_k), and with the first
A(U). This holds for any kernel and any game. It needs the kernel and its constants to be chosen without the draws:
they are constants. With f = 1 the surrogate cancels: the stratum is exact.

Beyond `MOST_TRAINED` coalitions the surrogate is trained on the first drawn of each stratum only, and g_k = g for the
others, for which the same argument holds.

The covariance adds (1−f) Σ_k z_k z_kᵀ / (m (m−1)) over the strata, z_k = c(S_k) e_k, as if the g_k were one fixed
surrogate. They are not: measured on eleven kinds of games, 10 clients, 165 evaluations, the mean squared error is 0.93
to 1.14 of the variance claimed (1.04 to 1.22 with z centred), and intervals of 1.96 standard errors hold 93 to 95 %.
"""

import math

import numpy as np

from fedworth.arrays import Floats, Indices, Memberships, Utilities
from fedworth.errors import ValuationError
from fedworth.games.estimate import Estimate
from fedworth.games.planning.design import allocation, check_design, least_budget
from fedworth.games.smooth import FittedSurrogate, Kernel, fit, smooth
from fedworth.threads import one_blas_thread

MOST_TRAINED = 1024


def strata_values(coalitions: Memberships, utilities: Utilities, *, kernel: Kernel = smooth) -> Estimate:
    """The values of n members from the utilities of a design of theirs, (n_coalitions, n)."""
    _check(coalitions, utilities)
    if coalitions.shape[1] == 0:
        return Estimate(np.zeros(0), np.zeros((0, 0)), 0)
    with one_blas_thread():
        return _estimate(coalitions, utilities, kernel)


def _estimate(coalitions: Memberships, utilities: Utilities, kernel: Kernel) -> Estimate:
    n = coalitions.shape[1]
    sizes = coalitions.sum(axis=1)
    trained, surrogate = _surrogate(coalitions, utilities, sizes, kernel)
    totals, covariance = np.full(n, utilities[sizes == n][0]), np.zeros((n, n))
    for size in range(1, n):
        rows = np.flatnonzero(sizes == size)
        contrasts = (coalitions[rows] - size / n) / (size / n * (1 - size / n))  # c, (m, n)
        if surrogate is None or len(rows) == math.comb(n, size):
            totals += contrasts.T @ utilities[rows] / len(rows)
            continue
        estimated, varied = _stratum(surrogate, trained, coalitions[rows], contrasts, utilities[rows], rows)
        totals += estimated
        covariance += varied
    return Estimate(totals / n, covariance / n**2, len(utilities))


def _stratum(
    surrogate: FittedSurrogate,
    trained: Indices,
    coalitions: Memberships,
    contrasts: Floats,
    utilities: Utilities,
    rows: Indices,
) -> tuple[Floats, Floats]:
    """Â_s and its covariance, from the stratum's rows of the design."""
    m, size = len(rows), int(coalitions[0].sum())
    share = m / math.comb(coalitions.shape[1], size)  # f
    inside = np.flatnonzero(np.isin(trained, rows))  # this stratum among the trained
    mean = surrogate.leaving_out(inside, m)  # coefficients of ḡ, (n_trained,)
    both = np.stack([surrogate.coefficients, mean], axis=1)  # (n_trained, 2)
    errors, seen = (utilities[:, None] - surrogate.at(coalitions, both)).T  # e and U − ḡ, (m,)
    errors[np.isin(rows, trained)] = surrogate.errors_left_out[inside]
    missed = contrasts * errors[:, None]  # (m, n)
    kept = contrasts.T @ seen / m  # (n,)
    estimated = surrogate.contrasts(size, mean) + share * kept + (1 - share) * missed.mean(axis=0)
    return estimated, (1 - share) * missed.T @ missed / (m * (m - 1))


def _surrogate(
    coalitions: Memberships, utilities: Utilities, sizes: Indices, kernel: Kernel
) -> tuple[Indices, FittedSurrogate | None]:
    """The rows it is trained on, in order, and the surrogate; none if every coalition was measured."""
    n = coalitions.shape[1]
    if len(coalitions) == 2**n - 1:
        return np.zeros(0, dtype=np.int64), None
    most = allocation(n, max(MOST_TRAINED, least_budget(n)))  # (n + 1,)
    trained = np.concatenate([np.flatnonzero(sizes == size)[: most[size]] for size in range(1, n + 1)])
    trained = np.sort(trained)
    return trained, fit(coalitions[trained], utilities[trained], float(utilities[sizes == n][0]), kernel)


def _check(coalitions: Memberships, utilities: Utilities) -> None:
    check_design(coalitions, np.arange(coalitions.shape[1]), "design")
    if utilities.shape != (len(coalitions),) or not np.isfinite(utilities).all():
        found = f"utilities of shape {utilities.shape}, {int((~np.isfinite(utilities)).sum())} not finite"
        raise ValuationError(f"{found}: expected a known one for each of {len(coalitions):,} coalitions")
