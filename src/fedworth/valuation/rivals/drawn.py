"""The Shapley value's siblings among many clients: estimated from drawn coalitions, with standard errors.

    banzhaf       every client in or out by the toss of a coin; v_i = mean U(S∋i) − mean U(S∌i)     (MSR, Wang and Jia)
    beta-shapley  v_i = Σ_s w(s) [mean U(size s+1, with i) − mean U(size s, without i)],  w(s) = C(n−1, s) p(s)
    least core    the linear programme with the drawn coalitions' constraints alone            (Yan and Procaccia)

Each draw serves all clients. For Beta-Shapley an order of all clients is cut into coalitions of one size, so that every
client is in one of them (the last goes on with the order's first clients). Every piece is a random coalition of its
size, so the means are unbiased. Sizes that count less than 10⁻⁴ together are left out.

A fifth of the least core's draws is kept apart: how many of those object by more than e says what the others may.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.special import betaln, gammaln

from fedworth.arrays import Floats, Memberships, stream
from fedworth.games.matrix import UtilityMatrix
from fedworth.names import ConceptName, checked_name
from fedworth.valuation.heard import heard_clients, spread
from fedworth.valuation.rivals.concepts import ALPHA, BETA, SLACK, least_core_of
from fedworth.valuation.rivals.counted import CountedGame
from fedworth.valuation.valuation import Valuation

PER_CLIENT = 10
"""Coalitions drawn a client, about."""

FEWEST_ORDERS, MOST_ORDERS = 2, 200
LEFT_OUT = 1e-4
"""What all sizes together count that are not drawn."""

KEPT_APART = 5
"""One in so many of the least core's draws is not used for the payment."""


@dataclass(frozen=True)
class Drawn:
    """Values from drawn coalitions, their standard errors where there are any, and what a reader must know."""

    values: Floats  # (n,)
    standard_errors: Floats | None
    note: str


def drawn_banzhaf(game: CountedGame, *, rng: np.random.Generator) -> Drawn:
    """Maximum sample reuse: every drawn coalition says something of every client."""
    rows = _tossed(game.n, rng)
    utilities = game(rows)
    apart, errors = np.empty(game.n), np.empty(game.n)
    for client, is_in in enumerate(rows.T):
        sides = utilities[is_in], utilities[~is_in]
        apart[client] = sides[0].mean() - sides[1].mean()
        errors[client] = math.sqrt(sum(side.var(ddof=1) / len(side) for side in sides))
    return Drawn(apart, errors, f"estimated from {len(rows):,} drawn coalitions")


def drawn_beta_shapley(
    game: CountedGame, alpha: float = ALPHA, beta: float = BETA, *, rng: np.random.Generator
) -> Drawn:
    """Size by size, the sizes that count most drawn most."""
    n, counts = game.n, size_weights(game.n, alpha, beta)
    sizes = _sizes_that_count(counts)
    pieces = {size: _pieces(n, size, _n_orders(n, size, counts), rng) for size in sizes}
    everything = game(np.concatenate(list(pieces.values())))
    values, variances, first = np.zeros(n), np.zeros(n), 0
    for size, rows in pieces.items():
        utilities, first = everything[first : first + len(rows)], first + len(rows)
        centre = utilities.mean()
        with_one, without = counts[size - 1], counts[size] if size < sizes[-1] else 0.0
        n_in = rows.sum(axis=0)
        n_out = len(rows) - n_in
        inside = (rows.T @ (utilities - centre)) / n_in
        outside = (~rows.T @ (utilities - centre)) / np.maximum(n_out, 1)
        values += with_one * (centre + inside) - without * (centre + outside)
        varies = utilities.var(ddof=1) if 1 < size < n else 0.0  # of one client alone, and of all, nothing was drawn
        variances += varies * (with_one**2 / n_in + without**2 / np.maximum(n_out, 1))
    note = f"estimated from {game.n_evaluations:,} drawn coalitions of {sizes[0]} to {sizes[-1]} clients"
    return Drawn(values, np.sqrt(variances), note)


def drawn_least_core(game: CountedGame, *, rng: np.random.Generator) -> Drawn:
    """The payment to which no drawn coalition objects by more than must be; of the others most do not."""
    n = game.n
    rows = np.concatenate([_tossed(n, rng), np.eye(n, dtype=bool)])
    is_apart = (np.arange(len(rows)) % KEPT_APART == 0) & (rows.sum(axis=1) > 1)
    utilities, whole = game(rows), game.whole
    values, objection = least_core_of(rows[~is_apart].astype(np.float64), utilities[~is_apart], whole)
    slack = 10 * SLACK * float(np.abs(np.append(utilities, whole)).max())
    more = utilities[is_apart] - rows[is_apart] @ values > objection + slack
    note = (
        f"of {int((~is_apart).sum()):,} drawn coalitions none objects by more than {objection:.3g}; of {len(more):,} "
        f"others {more.mean():.0%} do: with so many clients the least core is known by draws alone, and has no "
        "standard errors"
    )
    return Drawn(values, None, note)


def size_weights(n: int, alpha: float, beta: float) -> Floats:
    """(n,): w(s) = C(n−1, s) p(s), what coalitions of s others count together; they add up to 1."""
    sizes = np.arange(n)
    chosen = gammaln(n) - gammaln(sizes + 1) - gammaln(n - sizes)
    return np.asarray(np.exp(chosen + betaln(sizes + beta, n - 1 - sizes + alpha) - betaln(alpha, beta)))


def _sizes_that_count(counts: Floats) -> list[int]:
    """Sizes 1, 2, … of coalitions up to the last whose means count."""
    left = 1 - np.cumsum(counts)
    return list(range(1, int(np.argmax(left <= LEFT_OUT)) + 2))


def _n_orders(n: int, size: int, counts: Floats) -> int:
    """Orders to cut: the draws shared out by what a size counts, and so many that nobody's mean is of one draw."""
    if size in (1, n):
        return 1
    wanted = PER_CLIENT * n * float(counts[size - 1]) / math.ceil(n / min(size, n - size))
    return min(max(FEWEST_ORDERS, math.ceil(wanted)), MOST_ORDERS)


def _pieces(n: int, size: int, n_orders: int, rng: np.random.Generator) -> Memberships:
    """(n_coalitions, n): each order cut into coalitions of this size, the last from its end to its start; of coalitions
    of more than half, it is cut into those that stay out."""
    if n / 2 < size < n:
        return ~_pieces(n, n - size, n_orders, rng)
    per_order = math.ceil(n / size)
    places = (np.arange(per_order * size) % n).reshape(per_order, size)
    orders = rng.permuted(np.tile(np.arange(n), (n_orders, 1)), axis=1)
    rows = np.zeros((n_orders, per_order, n), dtype=bool)
    for order, made in zip(orders, rows, strict=True):
        np.put_along_axis(made, order[places], True, axis=1)
    return rows.reshape(-1, n)


def _tossed(n: int, rng: np.random.Generator) -> Memberships:
    """(PER_CLIENT n, n): every client in or out by the toss of a coin."""
    return rng.random((PER_CLIENT * n, n)) < 0.5


DRAWN: dict[ConceptName, Callable[..., Drawn]] = {
    "banzhaf": drawn_banzhaf,
    "beta-shapley": drawn_beta_shapley,
    "least-core": drawn_least_core,
}


def draw_concept(matrix: UtilityMatrix, game: CountedGame, name: ConceptName, *, seed: int = 0) -> Valuation:
    """What each client is worth in a game of the heard clients too large to list, by another way to share it out."""
    checked_name("way to share out a game", name)
    heard, warnings = heard_clients(matrix, strict=False)
    made = DRAWN[name](game, rng=stream(seed, "drawn", *name.encode()))
    errors = None if made.standard_errors is None else spread(made.standard_errors, heard, matrix.n_clients)
    values = spread(made.values, heard, matrix.n_clients)
    return Valuation(name, matrix.clients, values, errors, None, (*warnings, made.note))
