"""FedSV (Definition 2, after Wang et al. 2020): what a client earned in the rounds it took part in.

In round t the participants I_t share U_t(I_t) by the Shapley value of U_t within I_t; absent clients get 0; rounds are
summed. Exact from all coalitions of I_t, or Monte Carlo: from permutations of I_t, about K ln K of them a round, or
from a stratified design with as many evaluations.
"""

import numpy as np
from numpy.typing import NDArray

from fedworth.arrays import Permutations, Utilities
from fedworth.coalitions import coalitions_of, names, prefixes
from fedworth.errors import ValuationError
from fedworth.games import Estimate, strata_values
from fedworth.games.matrix import UtilityMatrix
from fedworth.games.round_values import RoundValues
from fedworth.names import MethodName
from fedworth.valuation.heard import heard_clients, spread
from fedworth.valuation.permutations import permutation_values
from fedworth.valuation.shapley import shapley_values
from fedworth.valuation.uncertainty import uncertainty
from fedworth.valuation.valuation import Valuation


def fedsv(matrix: UtilityMatrix, *, without_heard: bool = False, strict: bool = False) -> Valuation:
    """FedSV of every client: exact, or Monte Carlo where the matrix was measured for it.

    `without_heard` leaves out the rounds that heard everyone, which favour nobody.
    """
    heard, warnings = heard_clients(matrix, strict=strict)
    earned, variances = rounds_of(matrix)
    rounds = ~_hears_everyone(matrix) if without_heard else np.ones(matrix.n_rounds, dtype=bool)
    method: MethodName = "fedsv-later" if without_heard else "fedsv"
    errors = None
    if variances is not None:
        warnings += (_basis(matrix),)
        errors = np.sqrt(variances[rounds].sum(axis=0))[heard]
        errors = spread(errors, heard, matrix.n_clients)
    values = spread(earned[rounds].sum(axis=0)[heard], heard, matrix.n_clients)
    known = None if errors is None else uncertainty(values, np.diag(errors**2))
    return Valuation(method, matrix.clients, values, errors, None, warnings, known)


def rounds_of(matrix: UtilityMatrix) -> tuple[NDArray[np.float64], NDArray[np.float64] | None]:
    """(n_rounds, n_clients): what each client earned in each round, 0 where absent; and its variance if estimated."""
    if matrix.round_values is not None:
        return matrix.round_values.values, matrix.round_values.variances
    earned = np.zeros((matrix.n_rounds, matrix.n_clients))
    if matrix.round_permutations is None and matrix.round_designs is None:
        _refuse_prefixes_alone(matrix)
        for round_index in range(matrix.n_rounds):
            earned[round_index] = _exact_round(matrix, round_index)
        return earned, None
    variances = np.zeros((matrix.n_rounds, matrix.n_clients))
    for round_index, permutations in enumerate(matrix.round_permutations or ()):
        earned[round_index], variances[round_index] = _estimated_round(matrix, round_index, permutations)
    for round_index in range(len(matrix.round_designs or ())):
        members, estimate = stratified_round(matrix, round_index)
        earned[round_index, members], variances[round_index, members] = estimate.values, estimate.standard_errors**2
    return earned, variances


def _refuse_prefixes_alone(matrix: UtilityMatrix) -> None:
    """Refuse cells that were measured for ComFedSV's permutations alone, unless they are all coalitions anyway."""
    if matrix.permutations is None:
        return
    n_seen = np.bincount(matrix.round_indices, minlength=matrix.n_rounds)  # (n_rounds,)
    sizes = matrix.participants.sum(axis=1)  # (n_rounds,)
    short = np.flatnonzero(n_seen < 2.0**sizes)
    if len(short):
        t = int(short[0])
        raise ValuationError(
            f"round {t}: {n_seen[t]:,} of 2^{sizes[t]} coalitions were seen, those of ComFedSV's permutations; FedSV "
            "needs some of its own: observe without --no-fedsv, or with a larger budget"
        )


def _exact_round(matrix: UtilityMatrix, round_index: int) -> NDArray[np.float64]:
    members = np.flatnonzero(matrix.participants[round_index])
    values = np.zeros(matrix.n_clients)
    if len(members):
        coalitions = coalitions_of(members, matrix.n_clients)
        values[members] = shapley_values(seen_row(matrix, round_index, coalitions))
    return values


def _estimated_round(
    matrix: UtilityMatrix, round_index: int, permutations: Permutations
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    if permutations.shape[1] == 0:
        return np.zeros(matrix.n_clients), np.zeros(matrix.n_clients)
    coalitions = prefixes(permutations, matrix.n_clients)
    utilities = seen_row(matrix, round_index, coalitions).reshape(len(permutations), -1)
    values, errors = permutation_values(utilities, permutations, matrix.n_clients)
    absent = ~matrix.participants[round_index]
    values[absent], errors[absent] = 0.0, 0.0
    return values, errors**2


def stratified_round(matrix: UtilityMatrix, round_index: int) -> tuple[NDArray[np.int64], Estimate]:
    """A round's participants and the estimate of their values from the round's design."""
    if matrix.round_designs is None:
        raise ValuationError(f"round {round_index} has no design; observe it with --sampler stratified")
    design, members = matrix.round_designs[round_index], np.flatnonzero(matrix.participants[round_index])
    return members, strata_values(design[:, members], seen_row(matrix, round_index, design))


def stratified_note(n_evaluations: str) -> str:
    """Which estimator a value comes from, and what it cost."""
    return f"stratified Monte Carlo with a surrogate over {n_evaluations}"


def games_note(made: RoundValues) -> str:
    """Which estimator values round by round come from, and what they cost."""
    return (
        f"each round's values are estimated, from {made.n_evaluations / len(made.values):,.0f} evaluations on average"
    )


def _basis(matrix: UtilityMatrix) -> str:
    if matrix.round_values is not None:
        return games_note(matrix.round_values)
    if matrix.round_designs is not None:
        counts = [len(design) for design in matrix.round_designs]
        return stratified_note(f"{min(counts):,} to {max(counts):,} evaluations a round")
    counts = [len(permutations) for permutations in matrix.round_permutations or ()]
    return f"Monte Carlo over {min(counts)} to {max(counts)} permutations a round"


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
