"""The Shapley value of one round's game: the surrogate's in closed form, plus draws of what it misses.

    v = φ(g) + Σ_S z(S),    z_i(S) = ω_S c_i(S) (U − g)(S) / n,    c_i(S) = ([i ∈ S] − s/n) / (s/n (1 − s/n))

with ω_S the weight of a draw (`draws`). The mean of c U over a size is that over coalitions with i minus that over the
others, so for any fixed g the expectation of v is the value of U. The coefficients of g are fitted on the draws; hence
there are two: g for the draws of one fold is fitted on those of the other, which are independent of them, and φ(g) is
the mean of both. Sizes 1 and n are exact, and so are those taken whole.

    covariance = Σ_S z(S) z(S)ᵀ     over what was drawn
"""

import numpy as np

from fedworth.arrays import Floats, Utilities
from fedworth.coalitions import distinct
from fedworth.errors import UsageError
from fedworth.games.draws import Draws, draw
from fedworth.games.estimate import Estimate
from fedworth.games.round_game import RoundGame
from fedworth.games.surrogate import PLAIN, Described, Surrogate, flat_surrogate, measure_surrogate

PER_MEMBER = 10
"""Evaluations a member: the default budget of a round."""

LEAST_PER_MEMBER = 7
"""Below so many, draws are worse than the surrogate alone."""

N_FIXED = 4
"""Evaluations a member that the surrogate takes: alone, and at three points of its ray."""

FEWEST_FITTED = 20
"""Draws of a fold below which coefficients are not fitted."""


def default_budget(n_members: int) -> int:
    """What a round of n members takes: 10 n evaluations, or all coalitions if these are no more."""
    return PER_MEMBER * n_members if n_members > 5 else 2**n_members - 1


def sampled_values(
    game: RoundGame, *, budget: int | None = None, lone: Utilities | None = None, rng: np.random.Generator
) -> Estimate:
    """The values of a round's members with about `budget` evaluations (default: 10 a member).

    If that is enough for all coalitions, the values are exact. `lone` are the lone clients' utilities where something
    better is known of them than the game's own.
    """
    n = game.n
    budget = default_budget(n) if budget is None else budget
    is_exact = 2**n - 1 <= budget
    n_fixed = n + int(n > 1) if is_exact else N_FIXED * n + 1
    _refuse_too_few(n, budget, is_exact)
    draws = draw(n, budget - n_fixed, rng=rng)
    rows, places = distinct(np.concatenate([np.eye(n, dtype=bool), np.ones((1, n), dtype=bool), draws.coalitions]))
    found_rows, rays = (game(rows), None) if is_exact else game.with_rays(rows)  # in one go: coalitions share work
    measured = found_rows[places]
    alone, everyone = measured[:n], float(measured[n])
    surrogate = flat_surrogate(everyone, alone) if is_exact else measure_surrogate(game, everyone, alone, rays)
    n_evaluations = len(rows) + (0 if is_exact else n_fixed - n - 1)
    found = sampled(surrogate, draws, measured[n + 1 :], n_evaluations=n_evaluations)
    return found if lone is None else with_lone(found, lone - alone)


def sampled(surrogate: Surrogate, draws: Draws, utilities: Utilities, *, n_evaluations: int) -> Estimate:
    """The estimate from a surrogate and the utilities of draws."""
    described = surrogate.described(draws.coalitions)
    fits = [_fit(described, draws, utilities, fold) for fold in (1, 0)]  # for the draws of fold 0, of fold 1
    missed = np.stack([utilities - described.at(k) for k in fits])  # (2, n_draws)
    mine = np.where(draws.whole, missed.mean(axis=0), missed[draws.folds, np.arange(len(draws))])
    n = surrogate.n
    share = draws.coalitions.sum(axis=1, keepdims=True) / n
    z = (draws.coalitions - share) / (share * (1 - share)) * (draws.weights * mine / n)[:, None]  # (n_draws, n)
    values = np.mean([surrogate.values(k) for k in fits], axis=0) + z.sum(axis=0)
    drawn = z[~draws.whole]
    return Estimate(values, drawn.T @ drawn, n_evaluations)


def _refuse_too_few(n: int, budget: int, is_exact: bool) -> None:
    least = LEAST_PER_MEMBER * n
    if not is_exact and budget < least:
        expected = f"expected at least {least:,}, {LEAST_PER_MEMBER} a client"
        raise UsageError(f"a budget of {budget:,} evaluations for {n} clients: {expected}")


def _fit(described: Described, draws: Draws, utilities: Utilities, fold: int) -> Floats:
    """Coefficients from the draws of one fold, and from all that was taken whole."""
    some = (draws.folds == fold) | draws.whole
    return described[some].fitted(utilities[some]) if some.sum() >= FEWEST_FITTED else PLAIN


def with_lone(found: Estimate, more: Utilities) -> Estimate:
    """The estimate where lone clients are worth so much more: the layer of size 1 is linear in them."""
    n = len(more)
    contrasts = more - (more.sum() - more) / max(n - 1, 1)
    return Estimate(found.values + contrasts / n, found.covariance, found.n_evaluations)
