"""FedSV (Definition 2, after Wang et al. 2020): what a client earned in the rounds it took part in.

In round t the participants I_t share U_t(I_t) by the Shapley value of U_t within I_t; absent clients get 0; rounds are
summed. Exact from all coalitions of I_t, or Monte Carlo from permutations of I_t, about K ln K of them a round.
"""

import numpy as np
from numpy.typing import NDArray

from fedworth.arrays import Permutations, Utilities
from fedworth.errors import ValuationError
from fedworth.utility.coalitions import names, prefixes, subsets
from fedworth.utility.matrix import UtilityMatrix
from fedworth.valuation.players import heard_players, spread
from fedworth.valuation.shapley import permutation_values, shapley_values
from fedworth.valuation.valuation import Valuation


def fedsv(matrix: UtilityMatrix, *, without_heard: bool = False, strict: bool = False) -> Valuation:
    """FedSV of every client: exact, or Monte Carlo where the matrix was measured for it.

    `without_heard` leaves out the rounds that heard everyone, which favour nobody.
    """
    players, warnings = heard_players(matrix, strict=strict)
    earned, variances = rounds_of(matrix)
    rounds = ~_hears_everyone(matrix) if without_heard else np.ones(matrix.n_rounds, dtype=bool)
    method = "fedsv-later" if without_heard else "fedsv"
    errors = None
    if variances is not None:
        counts = [len(orders) for orders in matrix.round_permutations or ()]
        warnings += (f"Monte Carlo over {min(counts)} to {max(counts)} permutations a round",)
        errors = np.sqrt(variances[rounds].sum(axis=0))[players]
        errors = spread(errors, players, matrix.n_clients)
    values = spread(earned[rounds].sum(axis=0)[players], players, matrix.n_clients)
    return Valuation(method, matrix.clients, values, errors, None, warnings)


def rounds_of(matrix: UtilityMatrix) -> tuple[NDArray[np.float64], NDArray[np.float64] | None]:
    """(n_rounds, n_clients): what each client earned in each round, 0 where absent; and its variance if estimated."""
    earned = np.zeros((matrix.n_rounds, matrix.n_clients))
    if matrix.round_permutations is None:
        for round_index in range(matrix.n_rounds):
            earned[round_index] = _exact_round(matrix, round_index)
        return earned, None
    variances = np.zeros((matrix.n_rounds, matrix.n_clients))
    for round_index, orders in enumerate(matrix.round_permutations):
        earned[round_index], variances[round_index] = _estimated_round(matrix, round_index, orders)
    return earned, variances


def _exact_round(matrix: UtilityMatrix, round_index: int) -> NDArray[np.float64]:
    members = np.flatnonzero(matrix.participants[round_index])
    values = np.zeros(matrix.n_clients)
    if len(members):
        coalitions = subsets(members, matrix.n_clients)
        values[members] = shapley_values(seen_row(matrix, round_index, coalitions))
    return values


def _estimated_round(
    matrix: UtilityMatrix, round_index: int, orders: Permutations
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    if orders.shape[1] == 0:
        return np.zeros(matrix.n_clients), np.zeros(matrix.n_clients)
    coalitions = prefixes(orders, matrix.n_clients)
    utilities = seen_row(matrix, round_index, coalitions).reshape(len(orders), -1)
    values, errors = permutation_values(utilities, orders, matrix.n_clients)
    absent = ~matrix.participants[round_index]
    values[absent], errors[absent] = 0.0, 0.0
    return values, errors**2


def seen_row(matrix: UtilityMatrix, round_index: int, coalitions: NDArray[np.bool_]) -> Utilities:
    """One round's utilities of these coalitions, all of which must have been seen."""
    utilities = matrix.row(round_index, coalitions)
    unseen = np.flatnonzero(np.isnan(utilities))
    if len(unseen):
        first = names(coalitions[unseen[0]], matrix.clients)
        raise ValuationError(
            f"round {round_index}: {len(unseen):,} of {len(coalitions):,} coalitions that the value rests on "
            f"were not seen, the first {first}; observe them too"
        )
    return utilities


def _hears_everyone(matrix: UtilityMatrix) -> NDArray[np.bool_]:
    """(n_rounds,): rounds in which all clients that were ever heard took part."""
    return np.asarray((matrix.participants | ~matrix.heard).all(axis=1))
