"""What every valuation must be held against: the truth where it is known, and two plain baselines.

`truth`: the map of ComFedSV on the true full matrix. `heard_round`: the Shapley value of the one round that heard
everyone; coalitions larger than the number of participants are seen there only, so ComFedSV leans on it heavily.
`leave_one_out`: Σ_t U_t(I_t) − U_t(I_t∖i) over the rounds that i took part in.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from fedworth.arrays import Memberships, Utilities
from fedworth.coalitions import coalitions_of, prefixes
from fedworth.errors import ValuationError
from fedworth.games.matrix import UtilityMatrix
from fedworth.games.round_values import RoundValues
from fedworth.names import MethodName
from fedworth.valuation.fedsv import games_note, seen_row, stratified_note, stratified_round
from fedworth.valuation.heard import heard_clients, spread
from fedworth.valuation.permutations import permutation_values
from fedworth.valuation.shapley import shapley_values
from fedworth.valuation.valuation import Valuation


def truth(matrix: UtilityMatrix, *, strict: bool = False) -> Valuation:
    """The values of the full matrix, every needed cell of which must be known."""

    if matrix.round_values is not None:
        return of_rounds(matrix, "truth", matrix.round_values, np.ones(matrix.n_rounds, dtype=bool), strict)

    def totals(coalitions: Memberships) -> Utilities:
        return np.asarray(np.sum([seen_row(matrix, t, coalitions) for t in range(matrix.n_rounds)], axis=0))

    return _of_game(matrix, "truth", totals, strict)


def heard_round(matrix: UtilityMatrix, *, strict: bool = False) -> Valuation:
    """The values of the first round in which all clients that were ever heard took part."""
    everyone = np.flatnonzero((matrix.participants | ~matrix.heard).all(axis=1))
    if len(everyone) == 0:
        most = int(matrix.participants.sum(axis=1).max(initial=0))
        raise ValuationError(
            f"no round heard everyone: at most {most} of {int(matrix.heard.sum())} clients took part in one; "
            "let the first round hear all clients"
        )
    if matrix.round_values is not None:
        return of_rounds(matrix, "heard-round", matrix.round_values, np.arange(matrix.n_rounds) == everyone[0], strict)
    if matrix.round_designs is not None:
        return _stratified(matrix, int(everyone[0]), strict)
    return _of_game(matrix, "heard-round", lambda coalitions: seen_row(matrix, int(everyone[0]), coalitions), strict)


def of_rounds(
    matrix: UtilityMatrix, method: MethodName, made: RoundValues, rounds: NDArray[np.bool_], strict: bool
) -> Valuation:
    """The values of some rounds, estimated round by round."""
    heard, warnings = heard_clients(matrix, strict=strict)
    values = spread(made.values[rounds].sum(axis=0)[heard], heard, matrix.n_clients)
    errors = spread(np.sqrt(made.variances[rounds].sum(axis=0))[heard], heard, matrix.n_clients)
    return Valuation(method, matrix.clients, values, errors, None, (*warnings, games_note(made)))


def _stratified(matrix: UtilityMatrix, round_index: int, strict: bool) -> Valuation:
    """The heard round's values from its design, which is FedSV's too."""
    heard, warnings = heard_clients(matrix, strict=strict)
    _, estimate = stratified_round(matrix, round_index)
    values = spread(estimate.values, heard, matrix.n_clients)
    errors = spread(estimate.standard_errors, heard, matrix.n_clients)
    note = stratified_note(f"{estimate.n_evaluations:,} evaluations")
    return Valuation("heard-round", matrix.clients, values, errors, None, (*warnings, note))


def leave_one_out(matrix: UtilityMatrix, *, strict: bool = False) -> Valuation:
    """What each round's participants lose without the client, summed over its rounds."""
    heard, warnings = heard_clients(matrix, strict=strict)
    values = np.zeros(matrix.n_clients)
    for round_index, row in enumerate(matrix.participants):
        members = np.flatnonzero(row)
        without = np.tile(row, (len(members), 1))
        without[np.arange(len(members)), members] = False
        utilities = seen_row(matrix, round_index, np.concatenate([row[None], without]))
        values[members] += utilities[0] - utilities[1:]
    return Valuation(
        "leave-one-out", matrix.clients, spread(values[heard], heard, matrix.n_clients), None, None, warnings
    )


def _of_game(
    matrix: UtilityMatrix, method: MethodName, game: Callable[[Memberships], Utilities], strict: bool
) -> Valuation:
    """The Shapley value of a game on coalitions, by the matrix's permutations or exactly."""
    heard, warnings = heard_clients(matrix, strict=strict)
    permutations = matrix.heard_permutations
    if permutations is None:
        values = spread(shapley_values(game(coalitions_of(heard, matrix.n_clients))), heard, matrix.n_clients)
        return Valuation(method, matrix.clients, values, None, None, warnings)
    utilities = game(prefixes(permutations, matrix.n_clients)).reshape(len(permutations), -1)
    values, errors = permutation_values(utilities, permutations, matrix.n_clients)
    return Valuation(
        method, matrix.clients, values, errors, None, (*warnings, f"Monte Carlo over {len(permutations)} permutations")
    )
