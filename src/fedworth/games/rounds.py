"""Many clients: the value of every round's game from few evaluations, round after round.

In: a game for each round, among its participants, or among everyone where all have a model. Out: `RoundValues`. A
round's draws come from a stream of its own, so a round's values do not depend on how many others there are: what was
estimated of the first rounds stays when a federation goes on.

Where the loss has logits and the server averages, by rays and pairs (`sampled`); otherwise by strata.
"""

from collections.abc import Callable

import numpy as np

from fedworth.arrays import Utilities, stream
from fedworth.games.estimate import Estimate
from fedworth.games.old_sampled import default_budget, sampled_values, with_lone
from fedworth.games.planning.design import draw_design, least_budget
from fedworth.games.round_game import RoundGame
from fedworth.games.round_values import RoundValues
from fedworth.games.strata import strata_values
from fedworth.oracle.oracle import threads_of
from fedworth.storage import Progress, silent

MOST_EXACT = 8
"""Members up to which all coalitions are measured."""

STRATA_PER_MEMBER = 20
"""Evaluations a member where there are no logits: strata need more."""


def estimate_rounds(
    game_of: Callable[[int], RoundGame],
    n_rounds: int,
    n_clients: int,
    *,
    lone: Utilities | None = None,
    earlier: RoundValues | None = None,
    progress: Progress = silent,
) -> RoundValues:
    """The values of the members of each round's game.

    `lone`, (n_rounds, n_clients), are lone clients' utilities where something better is known than the game's own. The
    rounds of `earlier` values, of the same games, are not estimated again.
    """
    values, variances = np.zeros((n_rounds, n_clients)), np.zeros((n_rounds, n_clients))
    covariance, n_evaluations, n_known = np.zeros((n_clients, n_clients)), 0, 0
    if earlier is not None and len(earlier.values) <= n_rounds and earlier.values.shape[1] == n_clients:
        n_known = len(earlier.values)
        values[:n_known], variances[:n_known] = earlier.values, earlier.variances
        covariance, n_evaluations = earlier.covariance.copy(), earlier.n_evaluations
    for round_index in range(n_known, n_rounds):
        game = game_of(round_index)
        known = None if lone is None else lone[round_index, game.members]
        with threads_of(game.oracle):
            found = _estimate(game, known, stream(0, "games", round_index))
        values[round_index, game.members] = found.values
        variances[round_index, game.members] = found.standard_errors**2
        covariance[np.ix_(game.members, game.members)] += found.covariance
        n_evaluations += found.n_evaluations
        progress("valuing rounds", round_index + 1, n_rounds)
    return RoundValues(values, variances, covariance, n_evaluations)


def _estimate(game: RoundGame, lone: Utilities | None, rng: np.random.Generator) -> Estimate:
    if game.n == 0:
        return Estimate(np.zeros(0), np.zeros((0, 0)), 0)
    if game.has_surrogate or game.n <= MOST_EXACT:
        budget = 2**game.n - 1 if game.n <= MOST_EXACT else default_budget(game.n)
        return sampled_values(game, budget=budget, lone=lone, rng=rng)
    budget = max(STRATA_PER_MEMBER * game.n, least_budget(game.n))
    design = draw_design(np.arange(game.n), game.n, budget, rng=rng)
    measured = game(design)
    found = strata_values(design, measured)
    if lone is None:
        return found
    alone = np.zeros(game.n)
    is_lone = design.sum(axis=1) == 1  # all of them are in a design
    alone[np.argmax(design[is_lone], axis=1)] = measured[is_lone]
    return with_lone(found, lone - alone)
