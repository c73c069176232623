"""The Shapley value of any game of many clients from few evaluations: a surrogate's, corrected by sampled coalitions.

For games whose utilities are no sums over test samples (AUC, a utility of the user's own, completed utilities); others
are sampled by `games.ensemble`. The Shapley value of any game is a sum over the sizes of coalitions,

    v_i = (U(all) + Σ_{s<n} A_{s,i}(U)) / n

with A_{s,i} the mean of U over coalitions of size s with i minus that over those without. With the contrasts
c_i(S) = ([i ∈ S] − s/n) / (s/n (1 − s/n)), A_{s,i} is the mean of c_i(S) U(S) over the coalitions of size s. Sizes 1
and n are measured. For the others a surrogate g of the lone clients' utilities, whose A_{s,i} have closed form, is near
U, and draws correct it:

    v_i = (U(all) + A_{1,i}(U) + Σ_{1<s<n} A_{s,i}(g)) / n + Σ_S z_i(S),     z_i(S) = ω_S c_i(S) (U − g)(S) / n

where ω_S is the weight of a drawn coalition. For any g that does not depend on the draws the expectation is the value
of U. The coefficients of g are fitted on the draws, so there are two fits: the surrogate for the draws of one fold is
fitted on the draws of the other fold, and A(g) is the mean of both.

    covariance = Σ_S z(S) z(S)ᵀ     over the draws, of the sums over blocks
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedworth.arrays import Floats, Indices, Memberships
from fedworth.coalitions import distinct, from_members, of_size
from fedworth.games.game import Game, Shares

PER_CLIENT = 20
"""Evaluations per client."""

FEWEST_FITTED = 20
"""Draws of a fold below which coefficients are not fitted."""

RIDGE = 1e-3
"""How firmly fitted coefficients are held to zero, relative to what the draws say of each."""

FEWEST_OF_SIZE = 0.2
"""The least expected number of draws of a size: with fewer, the rare draw counts so much that it is worse than none."""


@dataclass(frozen=True)
class Draws:
    """Coalitions of sizes 2 … n−1, what each counts in its size's mean, its fold, and whether its size is complete."""

    coalitions: Memberships  # (n_draws, n)
    weights: Floats  # (n_draws,)
    folds: Indices  # (n_draws,), 0 or 1
    complete: NDArray[np.bool_]  # (n_draws,)
    groups: Indices  # (n_draws,)

    def __len__(self) -> int:
        return len(self.weights)


def contrasts_of_clients(of_clients: Floats) -> Floats:
    """(n, n_blocks): A_{s,i} of Σ_{i∈S} r_i, given r."""
    n = len(of_clients)
    return np.asarray(of_clients - (of_clients.sum(axis=0) - of_clients) / (n - 1))


def sampled_shapley(game: Game, rng: np.random.Generator) -> Shares:
    """The Shapley values of a game of three clients or more, from about `PER_CLIENT` evaluations per client."""
    n = len(game.clients)
    sizes = np.arange(2.0, n)
    needs = 1 / (sizes * np.sqrt(n - sizes))  # the contrasts are largest for the smallest and the largest coalitions
    draws = draw(needs, PER_CLIENT * n - n - 1, rng=rng)
    rows, places = distinct(np.concatenate([np.eye(n, dtype=bool), np.ones((1, n), dtype=bool), draws.coalitions]))
    measured = game.utilities(rows)[places]  # in one call: an oracle shares work among coalitions
    values, covariance = estimate(measured[n], measured[:n], draws, measured[n + 1 :])
    return Shares(values, covariance, len(rows))


def estimate(everyone: Floats, lone: Floats, draws: Draws, utilities: Floats) -> tuple[Floats, Floats]:
    """Values (n, n_blocks), and the covariance (n, n) of their sums over blocks, from the utilities of draws."""
    n, sizes = len(lone), draws.coalitions.sum(axis=1)
    missed = utilities - everyone  # (n_draws, n_blocks)
    centred = lone.sum(axis=1) - lone.sum(axis=1).mean()  # (n,)
    sums = draws.coalitions @ centred  # (n_draws,)
    # The last three terms are the same for all coalitions of a size: they change no value, and take up what the others
    # miss on the average over a size. All terms are 0 for everyone.
    constant = [1 / sizes - 1 / n, 1 / sizes**2 - 1 / n**2, sizes - n]
    terms = np.column_stack([sums / sizes, sums / sizes**2, sums, *constant])  # (n_draws, n_terms)
    fits = np.stack([_fit(terms, missed, draws, fold) for fold in (1, 0)])  # for draws of fold 0, of fold 1
    guesses = np.where(draws.complete[None, :, None], (terms @ fits).mean(axis=0), terms @ fits)
    left = missed - guesses[draws.folds, np.arange(len(draws))]  # (n_draws, n_blocks)
    share = draws.coalitions.sum(axis=1, keepdims=True) / n
    contrasts = (draws.coalitions - share) / (share * (1 - share)) * draws.weights[:, None] / n  # (n_draws, n)
    between = np.arange(2.0, n)
    of_terms = np.outer(contrasts_of_clients(centred), [(1 / between).sum(), (1 / between**2).sum(), n - 2, 0, 0, 0])
    layers = contrasts_of_clients(lone) + of_terms @ fits.mean(axis=0)
    z = (contrasts * left.sum(axis=1, keepdims=True))[~draws.complete]
    return (everyone + layers) / n + contrasts.T @ left, z.T @ z


def _fit(terms: Floats, missed: Floats, draws: Draws, fold: int) -> Floats:
    """(n_terms, n_blocks): coefficients by least squares on one fold and on complete sizes.

    A coalition of s counts s^1.5 times, since utilities vary less the larger it is.
    """
    some = (draws.folds == fold) | draws.complete
    if some.sum() < FEWEST_FITTED:
        return np.zeros((terms.shape[1], missed.shape[1]))
    scale = draws.coalitions[some].sum(axis=1, keepdims=True) ** 1.5
    rows = terms[some] * scale
    held = np.diag(RIDGE * (rows**2).sum(axis=0))
    return np.asarray(np.linalg.lstsq(rows.T @ rows + held, rows.T @ (missed[some] * scale), rcond=None)[0])


def draw(needs: Floats, n_draws: int, *, rng: np.random.Generator, n_groups: int = 1) -> Draws:
    """About `n_draws` coalitions of 2 … n−1 clients, sizes in proportion to `needs`, (n − 2,); all, if there are fewer.

    The expected number m_s of a size is rounded up or down at random. A coalition that is one of c drawn of its size
    counts 1/c of the size's mean; where m_s < 1, 1/m_s. Either way the weighted sum over draws has the size's mean as
    its expectation. Coalitions of a size are consecutive parts of random permutations, so that clients appear about
    equally often. A fold is a random half of the permutations: draws of one fold are independent of the other's. Each
    of several groups has draws of its own.
    """
    n = len(needs) + 2
    counts = expected_counts(needs, n_draws)
    parts = [_draw_size(n, size, wanted, rng, n_groups) for size, wanted in enumerate(counts.tolist(), start=2)]
    fields = zip(*((p.coalitions, p.weights, p.folds, p.complete, p.groups) for p in parts), strict=True)
    return Draws(*(np.concatenate(field) for field in fields))


def expected_counts(needs: Floats, n_draws: int) -> Floats:
    """(n − 2,): m_s, adding up to `n_draws` or to all there are, a few more where `FEWEST_OF_SIZE` asks for it."""
    n = len(needs) + 2
    counts = np.array([float(math.comb(n, size)) for size in range(2, n)])
    complete = np.zeros(len(needs), dtype=bool)
    while True:
        left = max(n_draws - counts[complete].sum(), 0.0)
        found = np.where(complete, counts, needs * left / max(needs[~complete].sum(), 1e-300))
        full = ~complete & (found >= counts)
        if not full.any():
            return np.maximum(found, FEWEST_OF_SIZE)
        complete |= full


def _draw_size(n_members: int, size: int, wanted: float, rng: np.random.Generator, n_groups: int) -> Draws:
    if wanted >= math.comb(n_members, size):
        rows = np.tile(of_size(n_members, size), (n_groups, 1))
        each = len(rows) // n_groups
        folds, ones = rng.integers(0, 2, len(rows)), np.ones(len(rows), dtype=bool)
        return Draws(rows, np.full(len(rows), 1 / each), folds, ones, np.repeat(np.arange(n_groups), each))
    counts = int(wanted) + (rng.random(n_groups) < wanted % 1)  # of each group
    count = int(counts.sum())
    per_order = n_members // size  # coalitions that one permutation gives
    n_orders = -(-count // per_order)
    orders = rng.permuted(np.tile(np.arange(n_members), (n_orders, 1)), axis=1)
    rows = from_members(orders[:, : per_order * size].reshape(n_orders * per_order, size)[:count], n_members)
    groups = np.repeat(np.arange(n_groups), counts)
    folds = np.repeat(rng.integers(0, 2, n_orders), per_order)[:count]
    counted = counts[groups] if wanted >= 1 else np.full(count, wanted)
    return Draws(rows, 1 / counted, folds, np.zeros(count, dtype=bool), groups)
