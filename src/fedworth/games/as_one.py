"""Clients valued as one: a group plays as one player, and shares its value equally among those of it who play.

A client that answers under two names plays twice, and gains by it. With both names in one group it plays once, with the
mean of the two models at their joint weight. This is a game with a coalition structure (Owen 1977) whose groups share
equally: by symmetry, look-alikes have no claim to unequal parts.
"""

from collections.abc import Sequence

import numpy as np

from fedworth.arrays import Floats, Indices, Memberships
from fedworth.errors import UsageError, unknown_name
from fedworth.games.game import Game, Shares, SharingRule
from fedworth.games.shapley import most_enumerated

Groups = tuple[tuple[int, ...], ...]
"""Clients by index; each in one group at most."""


def groups_of(texts: Sequence[str], clients: tuple[str, ...]) -> Groups:
    """The groups in texts such as `a,b`; unknown clients, groups of one and clients in two groups are errors."""
    named = [text.split(",") for text in texts]
    listed = [name for names in named for name in names]
    for name in listed:
        if name not in clients:
            raise unknown_name("client", name, clients)
    if any(len(names) < 2 for names in named) or len(set(listed)) < len(listed):
        raise UsageError(
            f"--as-one {' --as-one '.join(texts)}: expected two clients or more with commas between them, each once"
        )
    return tuple(tuple(sorted(map(clients.index, names))) for names in named)


class GroupedGame:
    """A game in which each group of clients is one player; its index is that of the group's first client."""

    def __init__(self, game: Game, groups: Groups) -> None:
        leaders = np.array(game.clients)  # (n,): the player of each client of the inner game
        for group in groups:
            inside = np.isin(game.clients, group)
            leaders[inside] = game.clients[inside].min(initial=np.iinfo(np.int64).max)
        self.game, self.clients, self.n_blocks = game, np.unique(leaders), game.n_blocks
        self.members = np.asarray(self.clients[:, None] == leaders)  # (n_players, n): who belongs to which player
        self.most_enumerated = most_enumerated(game)

    def utilities(self, coalitions: Memberships) -> Floats:
        return self.game.utilities(coalitions @ self.members)


def sharing_as_one(rule: SharingRule, groups: Groups) -> SharingRule:
    """The rule that shares out a game among groups first, and then equally within each."""
    if not groups:
        return rule

    def share(game: Game, rng: np.random.Generator) -> Shares:
        grouped = GroupedGame(game, groups)
        shares = rule(grouped, rng)
        parts = (grouped.members / grouped.members.sum(axis=1, keepdims=True)).T  # (n, n_players)
        covariance = parts @ shares.sampling_covariance @ parts.T
        return Shares(parts @ shares.values, covariance, shares.n_evaluations, shares.notes)

    return share


def averaged(square: Floats, clients: Indices, groups: Groups) -> Floats:
    """The covariance of errors, (n, n) of these clients, if each group's errors are shared equally.

    The error of a group's value is taken to be the sum of its members'. Look-alikes are predicted from each other, so
    this is near the error of the group as one client.
    """
    mean = np.eye(len(clients))
    for group in groups:
        places = np.flatnonzero(np.isin(clients, group))
        mean[np.ix_(places, places)] = 1 / max(len(places), 1)
    return np.asarray(mean @ square @ mean.T)
