"""Values round by round: what each round added to each client's value.

    FedSV      the Shapley value of U_t within I_t, 0 for the absent
    ComFedSV   the Shapley value of the completed row of round t over all heard clients

Both are sums over rounds, so the rows add up to the values. A completed matrix of more cells than `MOST_CELLS` is not
taken apart.
"""

import numpy as np
from numpy.typing import NDArray

from fedworth.coalitions import coalitions_of, prefixes
from fedworth.completion.completion import Completion
from fedworth.games.matrix import UtilityMatrix
from fedworth.valuation.fedsv import rounds_of
from fedworth.valuation.heard import heard_clients, spread
from fedworth.valuation.permutations import permutation_values
from fedworth.valuation.shapley import shapley_values

Floats = NDArray[np.float64]

MOST_CELLS = 2**26


def fedsv_by_round(matrix: UtilityMatrix) -> Floats:
    """(n_rounds, n_clients): what each client earned in each round; NaN for clients never heard."""
    return np.where(matrix.heard, rounds_of(matrix)[0], np.nan)


def comfedsv_by_round(matrix: UtilityMatrix, completion: Completion) -> Floats | None:
    """(n_rounds, n_clients): what each client would have added in each round, in all its value; coalitions without an
    estimate count as 0, as in a valuation that was asked for them. None if there are too many cells."""
    if completion.by_rounds is not None:
        return np.where(matrix.heard, completion.by_rounds.values, np.nan)
    heard, n_clients = heard_clients(matrix, strict=False)[0], matrix.n_clients
    permutations = None if completion.is_whole else matrix.heard_permutations
    coalitions = coalitions_of(heard, n_clients) if permutations is None else prefixes(permutations, n_clients)
    if len(coalitions) * matrix.n_rounds > MOST_CELLS:
        return None
    known = completion.has(coalitions)
    games = np.zeros((matrix.n_rounds, len(coalitions)))
    games[:, known] = completion.estimates(coalitions[known])
    if permutations is None:
        return spread(shapley_values(games), heard, n_clients)
    shape = (len(permutations), -1)
    return np.stack([permutation_values(game.reshape(shape), permutations, n_clients)[0] for game in games])


def gains(matrix: UtilityMatrix) -> Floats | None:
    """(n_rounds,): U_t(I_t), what each round's participants gained together; None if one was not measured."""
    found = np.array([matrix.row(t, row[None])[0] if row.any() else 0.0 for t, row in enumerate(matrix.participants)])
    return None if np.isnan(found).any() else found
