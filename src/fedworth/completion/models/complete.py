"""Complete by models. In: the seen utilities, a ledger and an oracle. Out: an estimate of every cell.

    seen cells                 as seen
    an absent client alone     by the lone process
    any other coalition        measured, on the models that were heard and those predicted of the absent; of each
                               round a few are measured again by the plain loop, as when utilities are observed

A round that nobody answered adds nothing: all of its cells are 0.

Of more than twelve clients not every cell is measured: each round's game of everyone is valued from few evaluations.

The variance of an estimated cell is g_t² s_k² Σ_{i ∈ S absent} ρ_ti, with s_k the held-out error at the coalition's
size k and ρ_ti the variance of i's predicted answer over that of the held-out ones.
"""

from dataclasses import replace

import numpy as np

from fedworth.arrays import Floats, Memberships, Utilities
from fedworth.coalitions import coalitions_of
from fedworth.completion.models.completion import ModelCompletion
from fedworth.completion.models.errors import member_errors
from fedworth.completion.models.holdouts import HoldOuts, held_points, hold_outs, is_far_alone
from fedworth.completion.models.lone_process import Lone, lone_utilities
from fedworth.completion.models.predicted import PredictedLedger, predict_absent
from fedworth.errors import CompletionError
from fedworth.games import RoundGame, estimate_rounds
from fedworth.games.matrix import UtilityMatrix
from fedworth.games.round_values import RoundValues
from fedworth.ledger.ledger import Ledger
from fedworth.names import Weighting
from fedworth.oracle.batches import Batch
from fedworth.oracle.oracle import Oracle, TaskOracle, n_threads_of, threads_of
from fedworth.oracle.recheck import measured
from fedworth.oracle.server import server_of
from fedworth.oracle.weighting import participation, round_weights
from fedworth.storage import Progress, silent
from fedworth.threads import one_blas_thread
from fedworth.trail import fingerprint

MOST_ENUMERATED = 12
"""Clients up to which all of their coalitions are measured in every round."""


@one_blas_thread()
def complete_by_models(
    ledger: Ledger,
    oracle: TaskOracle,
    seen: UtilityMatrix,
    *,
    weighting: Weighting | None = None,
    as_average: bool = False,
    earlier: ModelCompletion | None = None,
    progress: Progress = silent,
) -> ModelCompletion:
    """Predict what absent clients would have answered, and measure every coalition of the heard clients in every
    round.

    Args:
        ledger: The recorded federation.
        oracle: Measures coalitions of heard and predicted models.
        seen: The utilities of the participants' coalitions, from `observe`.
        weighting: How a coalition's models are averaged; as fits the federation if it is not given.
        as_average: Take the server for one that averages, although its models say otherwise.
        earlier: A completion of the first rounds: they stay as they were, unless new clients were heard since.
        progress: Called with what is being done, how many parts are done and how many there are.

    Returns:
        An estimate of every cell, with its variance.

    Example:
        completion = fedworth.complete_by_models(ledger, oracle, fedworth.observe(ledger, oracle))
    """
    _refuse_others(ledger, seen)
    with threads_of(oracle):
        return _complete(ledger, oracle, seen, weighting or ledger.default_weighting, as_average, earlier, progress)


def _complete(
    ledger: Ledger,
    oracle: TaskOracle,
    seen: UtilityMatrix,
    weighting: Weighting,
    as_average: bool,
    earlier: ModelCompletion | None,
    progress: Progress,
) -> ModelCompletion:
    predicted = predict_absent(ledger, oracle.task, n_threads=n_threads_of(oracle))
    measuring = server_of(ledger, oracle, weighting, as_average=as_average).oracle
    lone = heard_alone(predicted, measuring, seen, weighting)
    earlier = earlier if earlier is not None and np.array_equal(earlier.heard, predicted.heard) else None
    errors = hold_outs(predicted, measuring, seen, lone, weighting=weighting)
    trail = None if seen.trail is None else replace(seen.trail, utilities=fingerprint(seen))
    if len(predicted.heard) > MOST_ENUMERATED:
        before = None if earlier is None else earlier.by_rounds
        by_rounds = everyones_values(predicted, measuring, lone, weighting, earlier=before, progress=progress)
        nobody = np.zeros((0, len(ledger.clients)), dtype=bool)
        made = _completion(predicted, nobody, np.zeros((seen.n_rounds, 0)), lone, errors, by_rounds.n_evaluations)
        return replace(made, by_rounds=by_rounds, trail=trail)
    coalitions = coalitions_of(predicted.heard, len(ledger.clients))
    cells, n_evaluations = np.empty((seen.n_rounds, len(coalitions))), 0
    for round_index, row in enumerate(cells):
        if earlier is not None and round_index < earlier.n_rounds:
            row[:] = earlier.cells[round_index]
            continue
        n_evaluations += _fill(row, predicted, measuring, seen, lone, coalitions, round_index, weighting)
        progress("completing rounds", round_index + 1, seen.n_rounds)
    return replace(_completion(predicted, coalitions, cells, lone, errors, n_evaluations), trail=trail)


def _refuse_others(ledger: Ledger, seen: UtilityMatrix) -> None:
    if seen.is_truth:
        raise CompletionError("the matrix holds the truth; complete its seen part, or value the truth itself")
    if seen.clients != ledger.clients or not np.array_equal(seen.participants, participation(ledger)):
        raise CompletionError(f"{ledger.folder}: utilities of another federation; observe this ledger")
    if seen.trail is not None and seen.trail.head != ledger.chain:
        raise CompletionError(f"{ledger.folder}: utilities of another ledger, or of this one when it had other rounds")


def everyones_values(
    predicted: PredictedLedger,
    oracle: Oracle,
    lone: Lone,
    weighting: Weighting,
    *,
    earlier: RoundValues | None = None,
    progress: Progress = silent,
) -> RoundValues:
    """Each round's values of everyone, on models heard and predicted, estimated; lone clients by the lone process."""
    n_rounds, n_clients = predicted.known.shape

    def game_of(round_index: int) -> RoundGame:
        weights, names = round_weights(predicted.ledger, round_index, weighting), predicted.ledger.clients
        if not predicted.answers.answered[round_index]:
            nobody = np.zeros(0, dtype=np.int64)
            return RoundGame(oracle, predicted.answers.rounds[round_index], nobody, weights, weighting, names)
        return RoundGame(oracle, predicted.open_round(round_index), predicted.heard, weights, weighting, names)

    return estimate_rounds(game_of, n_rounds, n_clients, lone=lone.utilities, earlier=earlier, progress=progress)


def heard_alone(predicted: PredictedLedger, oracle: Oracle, seen: UtilityMatrix, weighting: Weighting) -> Lone:
    """Everyone's lone utilities; those of participants as seen, or measured where they were not yet."""
    singles = np.eye(seen.n_clients, dtype=bool)
    heard = np.stack([seen.row(t, singles) for t in range(seen.n_rounds)])  # (n_rounds, n_clients)
    for round_index, present in enumerate(seen.participants):
        missing = np.flatnonzero(present & np.isnan(heard[round_index]))
        if len(missing):
            weights = round_weights(predicted.ledger, round_index, weighting)
            wanted = Batch(round_index, missing, singles[missing], weights, weighting, predicted.ledger.clients)
            heard[round_index, missing] = measured(oracle, predicted.answers.rounds[round_index], wanted).utilities
    return lone_utilities(heard, predicted.likeness, predicted.process.rounds, predicted.process.clients)


def _fill(
    row: Utilities,
    predicted: PredictedLedger,
    oracle: Oracle,
    seen: UtilityMatrix,
    lone: Lone,
    coalitions: Memberships,
    round_index: int,
    weighting: Weighting,
) -> int:
    """Write one round's utilities into `row`; how many of them had to be measured."""
    if not predicted.answers.answered[round_index]:
        row[:] = 0.0
        return 0
    row[:] = seen.row(round_index, coalitions)
    row[~coalitions.any(axis=1)] = 0.0
    is_lone = np.isnan(row) & (coalitions.sum(axis=1) == 1) & is_far_alone(weighting)
    row[is_lone] = lone.utilities[round_index, np.argmax(coalitions[is_lone], axis=1)]
    unseen = np.flatnonzero(np.isnan(row))
    if len(unseen):
        weights = round_weights(predicted.ledger, round_index, weighting)
        wanted = Batch(round_index, unseen, coalitions[unseen], weights, weighting, predicted.ledger.clients)
        row[unseen] = measured(oracle, predicted.open_round(round_index), wanted).utilities
    return len(unseen)


def _completion(
    predicted: PredictedLedger,
    coalitions: Memberships,
    cells: Utilities,
    lone: Lone,
    errors: HoldOuts,
    n_evaluations: int,
) -> ModelCompletion:
    heard, members = predicted.heard, member_errors(predicted, lone, errors)
    relative = _relative_variances(predicted)  # ρ, (n_rounds, n_clients)
    variances = np.zeros(cells.shape)
    if len(errors.points):
        sizes = np.maximum(coalitions.sum(axis=1), 1) - 1
        variances = (lone.scale[:, None] * errors.by_size[sizes]) ** 2 * (relative @ coalitions.T)
    return ModelCompletion(
        clients=predicted.answers.clients,
        coalitions=coalitions,
        cells=cells,
        cell_variances=variances,
        heard=heard,
        member_covariance=members.covariance,
        size_shares=members.size_shares,
        relative_variances=relative[:, heard].sum(axis=0) / np.maximum((relative[:, heard] > 0).sum(axis=0), 1),
        n_rounds_heard=predicted.answers.participants[:, heard].sum(axis=0),
        lone_noise=lone.process.noise,
        n_answers=len(predicted.points),
        n_held_out=len(errors.points),
        n_evaluations=n_evaluations + errors.n_evaluations,
        everyone_heard=bool(predicted.answers.participants[:, heard].all(axis=1).any()),
        compared_by=predicted.likeness.compared_by,
    )


def _relative_variances(predicted: PredictedLedger) -> Floats:
    if len(held_points(predicted)) == 0:
        return np.zeros(predicted.known.shape)
    return np.nan_to_num(predicted.variances, nan=0.0) / _mean_variance(predicted)


def _mean_variance(predicted: PredictedLedger) -> float:
    return float(predicted.process.left_out_variances(held_points(predicted)).mean())
