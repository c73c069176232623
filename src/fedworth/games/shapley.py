"""Exact Shapley values of a game, and the interactions of its pairs.

    v_i  = (1/n) Σ_{S∌i} [U(S∪i) − U(S)] / C(n−1, |S|)
    I_ij = Σ_{S∌i,j} |S|! (n−|S|−2)! / (n−1)! [U(S∪ij) − U(S∪i) − U(S∪j) + U(S)]      (Grabisch and Roubens, 1999)

`games.effort.shapley` samples coalitions where measuring all of them takes long. At most `MOST_ENUMERATED` clients are
enumerated, or as many as a game itself says (`most_enumerated`).

Functions of plain arrays take the utilities of all 2^n coalitions in the order of the coalitions' integers: bit i
stands for client i.
"""

import math
from collections.abc import Callable

import numpy as np

from fedworth.arrays import Floats, Utilities
from fedworth.coalitions import coalitions_of
from fedworth.errors import TooManyError, ValuationError
from fedworth.games.game import Game, Shares

MOST_ENUMERATED = 12
"""Clients up to which all coalitions of a game are measured."""


def most_enumerated(game: Game) -> int:
    """Clients up to which all coalitions of this game are measured."""
    return int(getattr(game, "most_enumerated", MOST_ENUMERATED))


def exact_shares(game: Game, values_of: Callable[[Utilities], Floats]) -> Shares:
    """The shares that a rule gives by the utilities of all coalitions of a game, (n_blocks, 2^n) → (n_blocks, n)."""
    n = len(game.clients)
    if n == 0:
        return Shares(np.zeros((0, game.n_blocks)), np.zeros((0, 0)), 0)
    return Shares(values_of(np.ascontiguousarray(all_utilities(game).T)).T, np.zeros((n, n)), 2**n - 1)


def all_utilities(game: Game) -> Floats:
    """(2^n, n_blocks): the utilities of all coalitions, in the order of their integers."""
    n = len(game.clients)
    return game.utilities(coalitions_of(np.arange(n), n))


def shapley_values(utilities: Utilities) -> Floats:
    """(…, n): the exact values of a game given by its 2^n utilities, or of each of several games, (…, 2^n)."""
    n = n_clients_of(utilities)
    return semivalues(utilities, np.array([1 / (n * math.comb(n - 1, size)) for size in range(n)]))


def semivalues(utilities: Utilities, weights: Floats) -> Floats:
    """(…, n): Σ_{S∌i} p(|S|) [U(S∪i) − U(S)], with p(s) = weights[s]; the Shapley value has p(s) = 1/(n C(n−1, s))."""
    n = n_clients_of(utilities)
    sizes = np.bitwise_count(np.arange(2 ** max(n - 1, 0), dtype=np.uint32))  # |S| of every S without the client
    values, games = np.empty((*utilities.shape[:-1], n)), utilities.shape[:-1]
    for client in range(n):
        halves = utilities.reshape(*games, 2 ** (n - 1 - client), 2, 2**client)  # (…, higher bits, own bit, lower bits)
        added = (halves[..., 1, :] - halves[..., 0, :]).reshape(*games, len(sizes))
        values[..., client] = added @ weights[sizes]
    return values


def interactions(game: Game) -> Floats:
    """(n, n): the Shapley interaction index of every pair of clients, of the utilities' sums over blocks.

    Negative: together the two add less than apart, as copies do. Positive: each is worth more with the other there.
    """
    n = len(game.clients)
    if n > MOST_ENUMERATED:
        raise TooManyError(
            f"interactions of {n} clients need all {2**n:,} coalitions; expected at most {MOST_ENUMERATED} clients"
        )
    return interaction_values(all_utilities(game).sum(axis=1))


def interaction_values(utilities: Utilities) -> Floats:
    """(n, n): the index of every pair from the 2^n utilities; symmetric, 0 on the diagonal."""
    n = n_clients_of(utilities, 1)
    if n < 2:
        raise ValuationError("interactions of pairs: one client alone has none; expected n ≥ 2 clients")
    weights = np.array([math.factorial(s) * math.factorial(n - s - 2) / math.factorial(n - 1) for s in range(n - 1)])
    sizes = np.bitwise_count(np.arange(2 ** (n - 2), dtype=np.uint32))
    found = np.zeros((n, n))
    for j in range(1, n):
        for i in range(j):
            corners = utilities.reshape(-1, 2, 2 ** (j - i - 1), 2, 2**i)  # (…, bit j, …, bit i, …)
            both = corners[:, 1, :, 1] - corners[:, 1, :, 0] - corners[:, 0, :, 1] + corners[:, 0, :, 0]
            found[i, j] = found[j, i] = weights[sizes] @ both.reshape(-1)
    return found


def n_clients_of(games: Utilities, most_dimensions: int = 2) -> int:
    """How many clients play, in one game or in each of several."""
    n = games.shape[-1].bit_length() - 1 if games.ndim else 0
    if not 1 <= games.ndim <= most_dimensions or games.shape[-1] != 2**n or n < 1:
        raise ValuationError(f"a game of shape {games.shape}: expected 2^n utilities for n ≥ 1 clients")
    if not np.isfinite(games).all():
        raise ValuationError(f"{int((~np.isfinite(games)).sum()):,} utilities are not finite, expected all known")
    return n
