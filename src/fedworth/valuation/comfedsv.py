"""ComFedSV (Definition 5): what a client would have added, had it always taken part.

    s_i = (1/N) Σ_t Σ_{S∌i} w_t·(h_{S∪i} − h_S) / C(N−1, |S|)          (eq. complete_sv)
    ŝ_i = (1/M) Σ_m Σ_t w_t·(h_{π_m(i)∪i} − h_{π_m(i)})                (eq. complete_ev_approx, Algorithm 1)

Both are linear in the completed matrix, so the rounds are summed first and one Shapley value is taken.
"""

import numpy as np
from numpy.typing import NDArray

from fedworth.arrays import Memberships, Permutations, Utilities
from fedworth.completion.completion import Completion
from fedworth.errors import ValuationError, unknown_name
from fedworth.utility.coalitions import prefixes, subsets
from fedworth.utility.matrix import UtilityMatrix
from fedworth.valuation.players import heard_players, spread
from fedworth.valuation.shapley import permutation_values, shapley_values
from fedworth.valuation.valuation import Valuation

UNSEEN = ("refuse", "zero")


def comfedsv(
    matrix: UtilityMatrix, completion: Completion, *, unseen: str = "refuse", strict: bool = False
) -> Valuation:
    """ComFedSV of every client: by permutations where the matrix has them, else exact over all coalitions.

    A coalition that no round has shown is refused; with `unseen="zero"` it counts as 0, and the warnings say how many
    there are and whose values rest on them.
    """
    if unseen not in UNSEEN:
        raise unknown_name("treatment of unseen coalitions", unseen, UNSEEN)
    if completion.clients != matrix.clients or completion.n_rounds != matrix.n_rounds:
        raise ValuationError("the completion is of another federation than the utilities; complete these ones")
    players, warnings = heard_players(matrix, strict=strict)
    permutations = matrix.heard_permutations
    if permutations is None:
        coalitions = subsets(players, matrix.n_clients)
        totals, notes = _totals(completion, coalitions, unseen)
        values = spread(shapley_values(totals), players, matrix.n_clients)
        return Valuation("comfedsv", matrix.clients, values, None, completion.summary(), warnings + notes)
    values, errors, notes = _estimate(completion, permutations, unseen)
    notes += (
        f"Monte Carlo over {len(permutations)} permutations; standard errors do not cover the completion's own error",
    )
    return Valuation("comfedsv", matrix.clients, values, errors, completion.summary(), warnings + notes)


def _estimate(
    completion: Completion, permutations: Permutations, unseen: str
) -> tuple[NDArray[np.float64], NDArray[np.float64], tuple[str, ...]]:
    n_clients = len(completion.clients)
    totals, notes = _totals(completion, prefixes(permutations, n_clients), unseen)
    values, errors = permutation_values(totals.reshape(len(permutations), -1), permutations, n_clients)
    return values, errors, notes


def _totals(completion: Completion, coalitions: Memberships, unseen: str) -> tuple[Utilities, tuple[str, ...]]:
    """The coalitions' utilities summed over the rounds; the empty one's is 0 by definition."""
    is_empty = ~coalitions.any(axis=1)
    known = completion.has(coalitions) | is_empty
    if known.all() or unseen == "refuse":
        totals = np.zeros(len(coalitions))
        totals[~is_empty] = completion.totals(coalitions[~is_empty])
        return totals, ()
    totals = np.zeros(len(coalitions))
    known &= ~is_empty
    totals[known] = completion.totals(coalitions[known])
    return totals, (_zeros(coalitions, known | is_empty, completion.clients),)


def _zeros(coalitions: Memberships, known: NDArray[np.bool_], clients: tuple[str, ...]) -> str:
    missing = coalitions[~known]
    affected = np.flatnonzero(missing.any(axis=0))
    whose = (
        "every value rests"
        if len(affected) == len(clients)
        else (f"the values of {', '.join(clients[k] for k in affected)} rest")
    )
    n_missing, n_all = len(np.unique(missing, axis=0)), len(np.unique(coalitions, axis=0))
    return f"{n_missing:,} of {n_all:,} coalitions were never seen and count as utility 0, as asked; {whose} on them"
