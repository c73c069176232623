"""Sharing rules: ways to divide what all clients of a game achieve together.

    shapley         games.effort
    leave_one_out   v_i = U(all) − U(all∖i)
    semivalues      v_i = Σ_{S∌i} p(|S|) [U(S∪i) − U(S)]
      banzhaf         p(s) = 2^{−(n−1)}                          every coalition alike (Wang and Jia, 2023)
      beta_shapley    p(s) = B(s + β, n − 1 − s + α) / B(α, β)   α = 16, β = 1: small coalitions count most
                                                                 (Kwon and Zou, 2022; α = β = 1 is the Shapley value)
      to_large        p(s) = 1 / ((n − h) C(n−1, s)) for s ≥ h   only coalitions of at least h = ⌈(n − 1)/2⌉ others,
                                                                 all their sizes alike
    least_core      min e  with  Σ_{i∈S} v_i ≥ U(S) − e for all S,  Σ_i v_i = U(all)      (Yan and Procaccia, 2021)
    tmc             truncated permutations (Ghorbani and Zou, 2019)
    gtg             the same in guided orders, without rounds that changed little (Liu et al., 2022)

All but the least core (`NONLINEAR`) are linear in the game, so the shares of a sum of games are the sums of the shares.
Up to `MOST_ENUMERATED` clients semivalues and least core are exact; for more clients they rest on drawn coalitions.
"""

import math
from collections.abc import Callable

import numpy as np
from scipy.optimize import linprog, nnls
from scipy.special import betaln, gammaln

from fedworth.arrays import Floats, Memberships, Permutations, Utilities
from fedworth.coalitions import coalitions_of, from_members
from fedworth.errors import ValuationError
from fedworth.games.game import CountedGame, Game, Shares, SharingRule, all_but_one, everyone_of
from fedworth.games.shapley import MOST_ENUMERATED, exact_shares, n_clients_of, semivalues

ALPHA, BETA = 16.0, 1.0

PER_CLIENT = 10
"""About how many coalitions are drawn per client."""

FEWEST_ORDERS, MOST_ORDERS = 2, 200
LEFT_OUT = 1e-4
"""Total weight of the sizes that Beta-Shapley does not draw."""

SLACK = 1e-6
"""By how much a complaint may exceed e, as a part of the largest utility; e is known to a tolerance only."""

HELD_OUT = 5
"""One in this many of the least core's drawn coalitions only checks the payment."""

TRUNCATED = 0.05
"""`tmc` and `gtg` stop an order when its utility is this near to everyone's, as a part of it."""

SETTLED, LOOK_BACK, MOST_BATCHES = 0.05, 10, 200
"""`tmc` and `gtg` stop when values moved by less than this part in this many batches of n orders, or after the most."""


def leave_one_out(game: Game, _rng: np.random.Generator) -> Shares:
    """What is lost without the client; n + 1 evaluations."""
    n, counted = len(game.clients), CountedGame(game)
    found = all_but_one(counted)
    return Shares(found[0] - found[1:], np.zeros((n, n)), counted.n_evaluations)


def banzhaf(game: Game, rng: np.random.Generator) -> Shares:
    """What a client adds to a random coalition of the others; shares need not add up to the whole."""
    n = len(game.clients)
    if n <= MOST_ENUMERATED:
        return exact_shares(game, lambda utilities: semivalues(utilities, np.full(n, 2.0 ** (1 - n))))
    rows = rng.random((PER_CLIENT * n, n)) < 0.5  # every draw serves all clients: v_i = mean U(S∋i) − mean U(S∌i)
    counted = CountedGame(game)
    utilities = counted.utilities(rows)  # (n_draws, n_blocks)
    n_in = rows.sum(axis=0)  # (n,)
    weights = np.where(rows, 1 / n_in, -1 / (len(rows) - n_in))  # (n_draws, n)
    totals = utilities.sum(axis=1, keepdims=True)  # (n_draws, 1)
    means_in = (rows * totals).sum(axis=0) / n_in
    means_out = (~rows * totals).sum(axis=0) / (len(rows) - n_in)
    z = weights * (totals - np.where(rows, means_in, means_out))
    note = f"estimated from {len(rows):,} drawn coalitions"
    return Shares(weights.T @ utilities, z.T @ z, counted.n_evaluations, (note,))


def to_large(game: Game, rng: np.random.Generator) -> Shares:
    """What a client adds to coalitions of at least half of the others; shares need not add up to the whole.

    `games.effort` estimates it with the Shapley values where coalitions of models are sampled.
    """
    n = len(game.clients)
    if n <= MOST_ENUMERATED:
        return exact_shares(game, to_large_values)
    return _drawn_by_size(game, rng, (np.arange(n) >= n // 2) / (n - n // 2))


def to_large_values(utilities: Utilities) -> Floats:
    """(…, n): exact mean contributions to coalitions of at least half of the others, from 2^n utilities."""
    n = n_clients_of(utilities)
    counted = [0.0 if size < n // 2 else 1 / ((n - n // 2) * math.comb(n - 1, size)) for size in range(n)]
    return semivalues(utilities, np.array(counted))


def beta_shapley(game: Game, rng: np.random.Generator, *, alpha: float = ALPHA, beta: float = BETA) -> Shares:
    """Beta(α, β)-Shapley values; of many clients size by size, the sizes that count most drawn most."""
    n = len(game.clients)
    counts = size_weights(n, alpha, beta)
    if n <= MOST_ENUMERATED:
        weights = counts / np.array([math.comb(n - 1, size) for size in range(n)])
        return exact_shares(game, lambda utilities: semivalues(utilities, weights))
    return _drawn_by_size(game, rng, counts)


def _drawn_by_size(game: Game, rng: np.random.Generator, counts: Floats) -> Shares:
    """A semivalue from drawn coalitions, with w(s) = C(n−1, s) p(s), (n,), what coalitions of s others count together:

    v_i = Σ_s w(s) [mean U(size s+1, with i) − mean U(size s, without i)]
    """
    n, counted = len(game.clients), CountedGame(game)
    first = max(1, int(np.argmax(counts > 0)))
    last = int(np.argmax(1 - np.cumsum(counts) <= LEFT_OUT)) + 1  # larger coalitions count next to nothing
    parts = [_parts_of_orders(n, size, _n_orders(n, size, counts), rng) for size in range(first, last + 1)]
    measured = np.split(counted.utilities(np.concatenate(parts)), np.cumsum([len(rows) for rows in parts])[:-1])
    values, covariance = np.zeros((n, game.n_blocks)), np.zeros((n, n))
    for size, (rows, utilities) in enumerate(zip(parts, measured, strict=True), start=first):
        n_in = rows.sum(axis=0)
        without = counts[size] if size < last else 0.0
        weights = np.where(rows, counts[size - 1] / n_in, -without / np.maximum(len(rows) - n_in, 1))
        values += weights.T @ utilities
        if 1 < size < n:  # all coalitions of other sizes are measured
            totals = utilities.sum(axis=1, keepdims=True)
            z = weights * (totals - totals.mean()) * math.sqrt(len(rows) / (len(rows) - 1))
            covariance += z.T @ z
    note = f"estimated from {counted.n_evaluations:,} drawn coalitions of {first} to {last} clients"
    return Shares(values, covariance, counted.n_evaluations, (note,))


def size_weights(n: int, alpha: float, beta: float) -> Floats:
    """(n,): w(s) = C(n−1, s) p(s), what coalitions of s others count together; they add up to 1."""
    sizes = np.arange(n)
    chosen = gammaln(n) - gammaln(sizes + 1) - gammaln(n - sizes)
    return np.asarray(np.exp(chosen + betaln(sizes + beta, n - 1 - sizes + alpha) - betaln(alpha, beta)))


def _n_orders(n: int, size: int, counts: Floats) -> int:
    """Orders to cut into coalitions of a size: in proportion to what the size counts, and two or more."""
    if size in (1, n):
        return 1
    wanted = PER_CLIENT * n * float(max(counts[size - 1 : size + 1])) / math.ceil(n / min(size, n - size))
    return min(max(FEWEST_ORDERS, math.ceil(wanted)), MOST_ORDERS)


def _parts_of_orders(n: int, size: int, n_orders: int, rng: np.random.Generator) -> Memberships:
    """(n_coalitions, n): random orders cut into coalitions of a size, so that everyone is in one; the last wraps round.

    For more than half of the clients, orders are cut into the clients that stay out.
    """
    if n / 2 < size < n:
        return ~_parts_of_orders(n, n - size, n_orders, rng)
    per_order = math.ceil(n / size)
    places = (np.arange(per_order * size) % n).reshape(per_order, size)
    orders = rng.permuted(np.tile(np.arange(n), (n_orders, 1)), axis=1)
    return from_members(orders[:, places].reshape(-1, size), n)


def least_core(game: Game, rng: np.random.Generator) -> Shares:
    """The payment that minimises the largest complaint of any coalition; of several, the one nearest to equal shares.

    The rule is not linear: it is meant for the sum of all rounds' games. Payments are divided evenly over blocks. With
    many clients only drawn coalitions are constraints, the payment has no standard errors (NaN), and a note says how
    many held-out coalitions complain more.
    """
    n, counted = len(game.clients), CountedGame(game)
    everyone = float(everyone_of(counted).sum()) if n else 0.0
    if n <= MOST_ENUMERATED:
        rows = coalitions_of(np.arange(n), n)[1:-1]
        paid = least_core_of(rows, counted.utilities(rows).sum(axis=1), everyone)[0]
        return Shares(_over_blocks(paid, game), np.zeros((n, n)), counted.n_evaluations)
    rows = np.concatenate([rng.random((PER_CLIENT * n, n)) < 0.5, np.eye(n, dtype=bool)])
    held_out = (np.arange(len(rows)) % HELD_OUT == 0) & (rows.sum(axis=1) > 1)
    utilities = counted.utilities(rows).sum(axis=1)
    paid, complaint = least_core_of(rows[~held_out], utilities[~held_out], everyone)
    slack = 10 * SLACK * float(np.abs(np.append(utilities, everyone)).max())
    more = utilities[held_out] - rows[held_out] @ paid > complaint + slack
    note = (
        f"from {int((~held_out).sum()):,} drawn coalitions, whose largest complaint is {complaint:.3g}; "
        f"{more.mean():.0%} of {len(more):,} others complain more; no standard errors are known"
    )
    return Shares(_over_blocks(paid, game), np.full((n, n), np.nan), counted.n_evaluations, (note,))


NONLINEAR: frozenset[SharingRule] = frozenset({least_core})
"""Rules that must be applied to the sum of all rounds' games, not round by round."""


def _over_blocks(values: Floats, game: Game) -> Floats:
    return np.repeat(values[:, None] / game.n_blocks, game.n_blocks, axis=1)


def least_core_of(coalitions: Memberships, utilities: Utilities, everyone: float) -> tuple[Floats, float]:
    """The payment (n,) of `everyone` = U(all) under the constraints of these coalitions, and the complaint e."""
    n, scale = coalitions.shape[1], float(np.abs(np.append(utilities, everyone)).max())
    if n <= 1 or scale == 0:
        return np.full(n, everyone / max(n, 1)), 0.0
    members, equal = coalitions.astype(np.float64), everyone / n
    found = linprog(  # utilities are scaled: the solver's tolerance is absolute
        c=np.append(np.zeros(n), 1.0),  # the payments and e
        A_ub=-np.column_stack([members, np.ones(len(members))]),
        b_ub=-utilities / scale,
        A_eq=np.append(np.ones(n), 0.0)[None],
        b_eq=[everyone / scale],
        bounds=[(None, None)] * (n + 1),
        method="highs",
    )
    if found.x is None:
        raise ValuationError(f"least core: the linear programme was not solved ({found.message})")
    complaint = float(found.x[-1])
    wanted = (utilities - members.sum(axis=1) * equal) / scale - complaint - SLACK  # beyond equal shares
    return np.asarray(equal + scale * _smallest(members, wanted)), scale * complaint


def _smallest(members: Floats, wanted: Floats) -> Floats:
    """The smallest d with Σ d = 0 and members @ d ≥ wanted: Lawson and Hanson's least distance programme."""
    n = members.shape[1]
    basis = np.linalg.qr(np.column_stack([np.ones(n), np.eye(n)[:, : n - 1]]))[0][:, 1:]  # of all d that sum to 0
    rows = members @ basis
    weights, _ = nnls(np.vstack([rows.T, wanted]), np.append(np.zeros(n - 1), 1.0), maxiter=50 * len(rows))
    residual = np.append(rows.T @ weights, wanted @ weights - 1.0)
    if abs(residual[-1]) < 1e-14:
        raise ValuationError("least core: no payment was found; utilities differ too much in size; give other units")
    return np.asarray(basis @ (-residual[:-1] / residual[-1]))


def tmc(game: Game, rng: np.random.Generator) -> Shares:
    """Shapley values by truncated Monte Carlo: once a coalition is near everyone's utility, the rest adds nothing."""
    n = len(game.clients)
    return _truncated(game, lambda: rng.permuted(np.tile(np.arange(n), (n, 1)), axis=1))


def gtg(game: Game, rng: np.random.Generator, *, skip_below: float = 0.0) -> Shares:
    """The same in orders in which every client comes first once; a game with |U(all)| ≤ `skip_below` gives nothing."""
    n = len(game.clients)
    if n and abs(float(everyone_of(game).sum())) <= skip_below:
        return Shares(
            np.zeros((n, game.n_blocks)), np.zeros((n, n)), 1, ("left out: it changed the utility by little",)
        )
    others = np.array([np.delete(np.arange(n), i) for i in range(n)], dtype=np.int64).reshape(n, max(n - 1, 0))
    return _truncated(game, lambda: np.column_stack([np.arange(n), rng.permuted(others, axis=1)]))


def _truncated(game: Game, draw: Callable[[], Permutations]) -> Shares:
    """The mean over batches of n orders, until it has settled: Σ|v − v of 10 batches ago| ≤ 5 % of Σ|v|.

    The papers divide client by client, which never settles where a value is near zero.
    """
    n, counted = len(game.clients), CountedGame(game)
    if n == 0:
        return Shares(np.zeros((0, game.n_blocks)), np.zeros((0, 0)), 0)
    batches: list[Floats] = []  # each (n, n_blocks)
    past: list[Floats] = []
    notes: tuple[str, ...] = ("stopped at the most batches of orders; the values had not settled",)
    while len(batches) < MOST_BATCHES:
        batches.append(_marginals(counted, draw()) / n)
        past.append(np.mean(batches, axis=0).sum(axis=1))
        if len(past) > LOOK_BACK:
            moved = np.abs(past[-1] - past[-1 - LOOK_BACK]).sum()
            if moved <= SETTLED * np.abs(past[-1]).sum():
                notes = ()
                break
    covariance = np.atleast_2d(np.cov(np.sum(batches, axis=2).T)) / len(batches)
    return Shares(np.mean(batches, axis=0), covariance, counted.n_evaluations, notes)


def _marginals(game: Game, orders: Permutations) -> Floats:
    """(n, n_blocks): what each client adds, summed over the orders; all orders take a step in one call."""
    everyone = everyone_of(game)  # (n_blocks,)
    added = np.zeros((len(game.clients), game.n_blocks))
    reached = np.zeros((len(orders), game.n_blocks))  # the utility of each order so far
    rows = np.zeros(orders.shape, dtype=bool)
    for position in range(orders.shape[1]):
        missing = np.abs((everyone - reached).sum(axis=1))
        going = np.flatnonzero(missing > TRUNCATED * abs(everyone.sum()))
        rows[np.arange(len(orders)), orders[:, position]] = True
        utilities = game.utilities(rows[going])
        np.add.at(added, orders[going, position], utilities - reached[going])
        reached[going] = utilities
        reached[np.setdiff1d(np.arange(len(orders)), going)] = everyone
    return added
