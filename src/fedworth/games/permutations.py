"""Shapley values from permutations, as in the paper's Algorithm 1, with standard errors.

    v_i = E_π [U(π(i)∪i) − U(π(i))],  π(i) the clients before i in the order π

Permutations come in balanced sets: n permutations of n clients in which every client is in every place exactly
once. With the clients in a random circle c_0 … c_{n−1}, permutation k of a set is

    c_{k}, c_{k+1}, c_{k−1}, c_{k+2}, c_{k−2}, …        indices modulo n

(a Latin square that balances neighbours too, after Williams 1949). Each permutation by itself is uniformly random, so
means over permutations stay unbiased. What a client adds depends most of all on its place, so balance pays.

With F balanced sets the mean over permutations is a mean over places, and what varies is a client's marginal at one
place between the sets:

    var_i = Σ_j s²_ij / (F n²),      s²_ij the variance of client i's marginal at place j over the sets

For other permutations var_i is the plain variance over permutations. Either is then shrunk towards the mean over
clients, with the weight of `N_SHARED` draws: unshrunk standard errors are too small (decision 13). With fixed
weights the errors of a set's places cancel, and standard errors are too large.
"""

import math

import numpy as np

from fedworth.arrays import Floats, Indices, Permutations
from fedworth.coalitions import distinct, prefixes
from fedworth.games.game import Game, Shares

N_SHARED = 4.0
"""What the mean variance of all clients counts beside a client's own, in draws; 2 to 8 measure alike."""


def default_permutations(n_clients: int) -> int:
    """The paper's M = n ln n permutations of n clients, rounded up to whole balanced sets (at least 1)."""
    return n_clients * math.ceil(math.log(n_clients)) if n_clients > 1 else 1


def draw_permutations(members: Indices, n_permutations: int, *, rng: np.random.Generator) -> Permutations:
    """Permutations of `members`, one balanced set after the other; a longer draw begins with a shorter one."""
    n = len(members)
    if n == 0:
        return np.zeros((n_permutations, 0), dtype=np.int64)
    places = np.arange(n)
    zigzag = np.where(places % 2 == 1, (places + 1) // 2, -(places // 2))  # 0, 1, −1, 2, −2, …
    sets = [np.zeros((0, n), dtype=np.int64)]
    for _ in range(-(-n_permutations // n)):
        circle = rng.permutation(members).astype(np.int64)
        starts = rng.permutation(n)  # rows come in random order, so that a part of a set is a random part
        sets.append(circle[(starts[:, None] + zigzag) % n])
    return np.concatenate(sets)[:n_permutations]


def n_balanced_sets(permutations: Permutations) -> int:
    """How many balanced sets the permutations consist of, not counting an incomplete last one; 0 if they do not."""
    n = permutations.shape[1]
    count = len(permutations) // n if n else 0
    sets = permutations[: count * n].reshape(count, n, n)
    is_balanced = np.sort(sets, axis=1) == np.sort(permutations[:1].reshape(-1))[:, None]
    return count if is_balanced.all() else 0


def permutation_shapley(game: Game, permutations: Permutations) -> Shares:
    """Shapley values of a game from permutations of its clients (their indices in the federation)."""
    positions = np.searchsorted(game.clients, permutations)  # (n_permutations, n)
    rows = prefixes(positions, len(game.clients))
    wanted, places = distinct(rows)
    utilities = game.utilities(wanted)[places].reshape(*positions.shape[:1], -1, game.n_blocks)
    values, covariance = permutation_estimate(utilities, positions)
    return Shares(values, covariance, int(wanted.any(axis=1).sum()))


def permutation_estimate(prefix_utilities: Floats, permutations: Permutations) -> tuple[Floats, Floats]:
    """Values (n, n_blocks), and the covariance (n, n) of their sums over blocks, from permutations of 0 … n−1.

    `prefix_utilities` are those of all prefixes, (n_permutations, n + 1, n_blocks). The covariance of a single
    permutation is NaN. With two balanced sets or more, an incomplete last one is left out: it would bring the chance of
    places back.
    """
    n, sets = permutations.shape[1], n_balanced_sets(permutations)
    sets = sets if sets >= 2 else 0
    permutations = permutations[: sets * n or None]
    marginals = np.empty((*permutations.shape, prefix_utilities.shape[2]))  # (n_permutations, n, n_blocks)
    added = np.diff(prefix_utilities[: len(permutations)], axis=1)
    np.put_along_axis(marginals, permutations[:, :, None], added, axis=1)
    totals = marginals.sum(axis=2)  # (n_permutations, n)
    deviations = _within_places(totals, permutations, sets) if sets else totals - totals.mean(axis=0)
    n_draws = sets or len(permutations)
    scale = n_draws / (n_draws - 1) if n_draws > 1 else math.nan
    covariance = scale * deviations.T @ deviations / len(permutations) ** 2
    return marginals.mean(axis=0), _shrunk(covariance, max(len(permutations) / max(n, 1) - 1, 0))


def _within_places(marginals: Floats, permutations: Permutations, n_sets: int) -> Floats:
    """(n_permutations, n): each marginal minus the mean of the same client's at the same place, over the sets."""
    n = permutations.shape[1]
    places = np.argsort(permutations, axis=1)  # (n_permutations, n)
    sums = np.zeros((n, n))  # by place and client
    np.add.at(sums, (places, np.arange(n)), marginals)
    return np.asarray(marginals - sums[places, np.arange(n)] / n_sets)


def _shrunk(covariance: Floats, n_own: float) -> Floats:
    """The covariance shrunk towards one of equal variances and equal covariances.

    A client's own variance is known from few draws at each place, `n_own` beyond the first, and most of it comes from
    one or two places: taken alone it is often far too small, just where the value is far off.
    """
    n = len(covariance)
    if n < 2:
        return covariance
    total, variances = covariance.sum(), float(np.trace(covariance))
    alike = np.full((n, n), (total - variances) / (n * (n - 1)))
    np.fill_diagonal(alike, variances / n)
    return np.asarray((n_own * covariance + N_SHARED * alike) / (n_own + N_SHARED))
