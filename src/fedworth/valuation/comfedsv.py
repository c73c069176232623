"""ComFedSV (Definition 5): what a client would have added, had it always taken part.

    s_i = (1/N) Σ_t Σ_{S∌i} w_t·(h_{S∪i} − h_S) / C(N−1, |S|)          (eq. complete_sv)
    ŝ_i = (1/M) Σ_m Σ_t w_t·(h_{π_m(i)∪i} − h_{π_m(i)})                (eq. complete_ev_approx, Algorithm 1)

Both are linear in the completed matrix, so the rounds are summed first and one Shapley value is taken.
"""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from fedworth.arrays import Indices, Memberships, Permutations, Utilities
from fedworth.coalitions import coalitions_of, distinct, prefixes
from fedworth.completion.completion import Completion
from fedworth.errors import ValuationError
from fedworth.games import Estimate
from fedworth.games.matrix import UtilityMatrix
from fedworth.games.round_values import RoundValues
from fedworth.names import MethodName, Unseen, checked_name
from fedworth.valuation.baselines import of_rounds
from fedworth.valuation.heard import heard_clients, spread
from fedworth.valuation.permutations import permutation_covariance, permutation_values
from fedworth.valuation.shapley import shapley_values
from fedworth.valuation.uncertainty import Uncertainty, uncertainty
from fedworth.valuation.valuation import Valuation


def comfedsv(
    matrix: UtilityMatrix,
    completion: Completion,
    *,
    method: MethodName = "comfedsv",
    unseen: Unseen = "refuse",
    strict: bool = False,
) -> Valuation:
    """ComFedSV of every client: exact where the completion knows all coalitions, or the matrix has no permutations;
    else by these.

    A coalition that no round has shown is refused; with `unseen="zero"` it counts as 0, and the warnings say how many
    there are and whose values rest on them.
    """
    checked_name("treatment of unseen coalitions", unseen)
    if completion.clients != matrix.clients or completion.n_rounds != matrix.n_rounds:
        raise ValuationError("the completion is of another federation than the utilities; complete these ones")
    heard, warnings = heard_clients(matrix, strict=strict)
    if completion.by_rounds is not None:
        return _by_rounds(matrix, completion, completion.by_rounds, method, strict)
    permutations = matrix.heard_permutations
    if permutations is None or completion.is_whole:
        coalitions = coalitions_of(heard, matrix.n_clients)
        totals, is_zero = _totals(completion, coalitions, unseen)
        values = spread(shapley_values(totals), heard, matrix.n_clients)
        warnings += _zeros(coalitions, is_zero, heard, matrix.clients)  # every coalition enters every value
        known = _known(completion, coalitions, values, lambda games: spread(shapley_values(games), heard, len(values)))
        return Valuation(method, matrix.clients, values, None, completion.summary(), warnings, known)
    coalitions = prefixes(permutations, matrix.n_clients)
    totals, is_zero = _totals(completion, coalitions, unseen)
    values, errors = permutation_values(totals.reshape(len(permutations), -1), permutations, matrix.n_clients)
    warnings += _zeros(coalitions, is_zero, _touched(is_zero, permutations), matrix.clients)
    warnings += (
        f"Monte Carlo over {len(permutations)} permutations; standard errors do not cover the completion's own error, "
        "intervals do",
    )

    def by_permutations(games: Utilities) -> NDArray[np.float64]:
        drawn = games.reshape(len(games), len(permutations), -1)
        made = [permutation_values(game, permutations, matrix.n_clients)[0] for game in drawn]
        return np.array(made).reshape(len(games), matrix.n_clients)

    drawn = np.full((matrix.n_clients, matrix.n_clients), np.nan)
    drawn[np.ix_(heard, heard)] = permutation_covariance(totals.reshape(len(permutations), -1), permutations)
    known = _known(completion, coalitions, values, by_permutations, drawn)
    return Valuation(method, matrix.clients, values, errors, completion.summary(), warnings, known)


def _by_rounds(
    matrix: UtilityMatrix, completion: Completion, made: RoundValues, method: MethodName, strict: bool
) -> Valuation:
    """The sum over the rounds of everyone's values, with what predicting and drawing may have put them off."""
    found = of_rounds(matrix, method, made, np.ones(matrix.n_rounds, dtype=bool), strict)
    predicted = completion.value_covariance()
    known = None
    if predicted is not None:
        known = uncertainty(found.values, predicted + made.covariance, caveats=completion.doubts())
    return replace(found, completion=completion.summary(), uncertainty=known)


def comfedsv_estimate(matrix: UtilityMatrix, completion: Completion) -> Estimate:
    """ComFedSV of the heard clients by permutations, with the covariance of what was drawn."""
    permutations = matrix.heard_permutations
    if permutations is None:
        raise ValuationError("utilities of all coalitions: no permutation was drawn, so nothing varies")
    heard = heard_clients(matrix, strict=False)[0]
    totals = _totals(completion, prefixes(permutations, matrix.n_clients), "refuse")[0]
    drawn = totals.reshape(len(permutations), -1)
    values = permutation_values(drawn, permutations, matrix.n_clients)[0][heard]
    is_measured = np.asarray(matrix.coalitions.any(axis=1))[matrix.coalition_indices]  # the empty one's is known
    return Estimate(values, permutation_covariance(drawn, permutations), int(is_measured.sum()))


def _known(
    completion: Completion,
    coalitions: Memberships,
    values: NDArray[np.float64],
    values_of: Callable[[Utilities], NDArray[np.float64]],
    drawn: NDArray[np.float64] | None = None,
) -> Uncertainty | None:
    """What is known of the values' errors: the completion's, through the same map as the values (it is linear), and
    those of the draws; None where the completion does not know its own."""
    known = completion.has(coalitions)
    factors = completion.error_factors(coalitions[known])  # (n_known, n_factors)
    if factors is None:
        return None
    games = np.zeros((factors.shape[1], len(coalitions)))
    games[:, known] = factors.T
    moved = values_of(games)  # (n_factors, n_clients)
    covariance = moved.T @ moved + (0.0 if drawn is None else drawn)
    return uncertainty(values, covariance, caveats=completion.doubts())


def _totals(completion: Completion, coalitions: Memberships, unseen: Unseen) -> tuple[Utilities, NDArray[np.bool_]]:
    """The coalitions' utilities summed over the rounds, and which of them are zeros that were asked for.

    The empty coalition needs no zero of that kind: where a completion leaves it out, its utility is 0 by definition.
    """
    totals = np.zeros(len(coalitions))
    known = completion.has(coalitions)
    is_zero = np.asarray(~known & coalitions.any(axis=1))
    wanted = known | is_zero if unseen == "refuse" else known
    totals[wanted] = completion.totals(coalitions[wanted])
    return totals, is_zero


def _touched(is_zero: NDArray[np.bool_], permutations: Permutations) -> Indices:
    """The clients who join, or are joined at, a coalition that counts as zero."""
    zeros = is_zero.reshape(len(permutations), -1)  # (n_permutations, n + 1)
    return np.unique(permutations[zeros[:, :-1] | zeros[:, 1:]])


def _zeros(
    coalitions: Memberships, is_zero: NDArray[np.bool_], affected: Indices, clients: tuple[str, ...]
) -> tuple[str, ...]:
    """A warning that says how many zeros were asked for, and whose values rest on them."""
    if not is_zero.any():
        return ()
    rest = "the values of " + ", ".join(clients[k] for k in affected) + " rest"
    whose = "every value rests" if len(affected) == len(clients) else rest
    n_zeros, n_all = len(distinct(coalitions[is_zero])[0]), len(distinct(coalitions)[0])
    return (f"{n_zeros:,} of {n_all:,} coalitions were never seen and count as utility 0, as asked; {whose} on them",)
