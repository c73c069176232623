"""Completion by factors, as in the paper: U_t(S) ≈ w_t·h_S, round factors × coalition factors.

With permutations this is the reduced problem of Algorithm 1 (prob:matrix_completion_reduced): the columns are the
distinct prefixes. Without, they are all coalitions of the heard clients. `solver` has the problem and its solution.

A coalition that no round has shown has no factor: under the penalty it would be 0, an invented utility. Asking for it
is an error, unless zeros are asked for by name (`unseen="zero"`).

**Errors.** Factors do not know their own error. `with_errors` adds alternatives: factors of other ranks, penalties and
penalty kinds, and factors of the matrix with a part of the seen cells held out (jackknife). The variance of an estimate
x is Σ_a weight_a (x_a − x)²; alternatives are kept as √weight_a (x_a − x) of the sums over rounds. Intervals from these
are too narrow, since every factorisation knows a coalition larger than a round's participants from one round only; a
caveat says so. Where models are recorded, `valuation.methods.comfedsv` takes the distance from the values by models
instead.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.sparse import csr_array

from fedworth.arrays import Floats, Indices, Memberships, Permutations, stream
from fedworth.coalitions import locate, names
from fedworth.completion.completion import Caveat
from fedworth.completion.settings import FactorSettings
from fedworth.completion.solver import (
    Factors,
    Problem,
    Solution,
    Status,
    best_columns,
    collapse_penalty,
    problem_of,
    problem_of_cells,
    solve,
)
from fedworth.errors import CompletionError, UnseenError
from fedworth.games.game import MOST_LOOKED_UP
from fedworth.games.matrix import UtilityMatrix
from fedworth.games.permutations import permutation_shapley
from fedworth.games.shapley import exact_shares, shapley_values
from fedworth.names import PenaltyKind, Unseen, checked_name
from fedworth.threads import one_blas_thread

TOO_NARROW = (
    "the intervals of ComFedSV by factors are too narrow: they only say how far other ranks, penalties and held-out "
    "cells move the values, and in simulated federations 90 % intervals of this kind contained 30 to 70 % of the true "
    "values"
)
UNKNOWN = (
    "the errors of ComFedSV by factors are unknown, and no interval covers them: no other factors were made to compare "
    "with (beyond 200,000 seen cells this takes too long)"
)

RANK_STEP, PENALTY_STEP = 3, 10.0  # between a completion and its alternatives
N_FOLDS = 5
MOST_CELLS = 200_000
"""With more seen cells there are no alternatives: each costs as much as the completion itself."""

AT_ONCE = 256
"""Coalitions whose factors by block are solved for at once."""

RANKS = (1, 2, 3, 5, 8)
RELATIVE_PENALTIES = (0.1, 0.03, 0.01, 0.003, 0.001)
TRIAL_SWEEPS = 500


@dataclass(frozen=True)
class FactorCompletion:
    """The utility matrix as round factors × coalition factors.

    Example:
        factors = fedworth.complete(utilities)
        print(factors.status, factors.round_factors.shape)
    """

    clients: tuple[str, ...]
    coalitions: Memberships  # (n_coalitions, n_clients), all seen in some round
    round_factors: Factors  # (n_rounds, rank)
    coalition_factors: Factors  # (n_coalitions, rank)
    rank: int
    penalty: float
    relative_penalty: float
    penalty_kind: PenaltyKind
    objective: float
    residual: float  # root mean square over the seen cells, relative to that of the cells
    status: Status
    stationarity: float
    spectral_ratio: float
    n_sweeps: int
    heard: Indices  # (n_heard,): clients that took part in some round
    block_factors: Floats | None = None  # (n_coalitions, rank, n_blocks), which sum to coalition_factors; None: 1 block
    permutations: Permutations | None = None  # of the heard clients, if only their prefixes were completed
    alternatives: Floats | None = None  # (n_alternatives, n_coalitions): weighted distances of `totals`; see the module
    unseen: Unseen = "refuse"  # what a coalition that no round has shown counts as
    n_seen: int = 0  # utilities that were measured for it
    n_unseen: int = 0  # coalitions that no round has shown, which count as 0 if `unseen` says so

    @property
    def n_rounds(self) -> int:
        """How many rounds the matrix has."""
        return len(self.round_factors)

    @property
    def totals(self) -> Floats:
        """(n_coalitions,): utilities summed over the rounds."""
        return np.asarray(self.coalition_factors @ self.round_factors.sum(axis=0))

    def game(self, round_index: int) -> "FactorGame":
        """The game of one round among the heard clients."""
        blocks = self.coalition_factors[:, :, None] if self.block_factors is None else self.block_factors
        return FactorGame(self, self.round_factors[round_index] @ blocks)

    def covariance(self) -> Floats | None:
        """(n_heard, n_heard): of the errors of the Shapley values summed over rounds, from the alternatives."""
        if self.alternatives is None:
            return None
        game = FactorGame(self, self.alternatives.T)  # one block per alternative: values are linear
        if self.permutations is None:
            values = exact_shares(game, shapley_values).values
        else:
            values = permutation_shapley(game, self.permutations).values
        return np.asarray(values @ values.T)

    def error_ratios(self, parts: Floats) -> None:
        """Unknown: no cell is held out by block."""

    @property
    def caveats(self) -> Sequence[Caveat]:
        """That the intervals are too narrow, or that there are none."""
        return (Caveat((), UNKNOWN if self.alternatives is None else TOO_NARROW),)

    def summary(self) -> dict[str, Any]:
        """How the factors were found and how well they fit the seen cells."""
        return {
            "kind": "factors",
            "rank": self.rank,
            "penalty": self.penalty,
            "relative_penalty": self.relative_penalty,
            "penalty_kind": self.penalty_kind,
            "objective": self.objective,
            "residual": self.residual,
            "status": str(self.status),
            "is_converged": self.status in (Status.CERTIFIED, Status.CONVERGED),
            "stationarity": self.stationarity,
            "spectral_ratio": self.spectral_ratio,
            "n_sweeps": self.n_sweeps,
        }

    def places(self, coalitions: Memberships) -> Indices:
        """(n,): the row of each coalition among `coalitions`; one that no round has shown is an error, or −1."""
        rows = locate(coalitions, self.coalitions)
        unseen = np.flatnonzero((rows < 0) & coalitions.any(axis=1))
        if len(unseen) and self.unseen == "refuse":
            first = names(coalitions[unseen[0]], self.clients)
            raise UnseenError(
                f"{len(unseen):,} of {len(rows):,} coalitions were never seen, the first {first}; their utilities "
                "cannot be estimated: let one round ask everyone, or ask for zeros by name with --unseen zero"
            )
        return rows


class FactorGame:
    """A game whose utilities, (n_coalitions, n_blocks), are given for the coalitions of a completion."""

    most_enumerated = MOST_LOOKED_UP

    def __init__(self, completion: FactorCompletion, known: Floats) -> None:
        self.completion, self.known = completion, known
        self.clients, self.n_blocks = completion.heard, int(known.shape[1])

    def utilities(self, coalitions: Memberships) -> Floats:
        """(n_coalitions, n_blocks): utilities of coalitions, (n_coalitions, n_heard).

        The empty coalition is a seen column of every fitted completion, where its factors are 0; elsewhere it is 0.
        """
        rows = np.zeros((len(coalitions), len(self.completion.clients)), dtype=bool)
        rows[:, self.clients] = coalitions
        places = self.completion.places(rows)
        found = np.asarray(self.known[places])
        found[places < 0] = 0.0
        return found


@one_blas_thread()
def complete(
    matrix: UtilityMatrix, settings: FactorSettings | None = None, *, unseen: Unseen = "refuse"
) -> FactorCompletion:
    """The completion of a utility matrix by factors, as in the paper.

    Args:
        matrix: The measured utilities.
        settings: Rank and penalty.
        unseen: What a coalition that no round has shown counts as: `refuse` (an error), or `zero`.

    Returns:
        Round factors and coalition factors, and how well they fit.

    Example:
        completion = fedworth.complete(utilities, fedworth.FactorSettings(rank=3))
    """
    settings, unseen = settings or FactorSettings(), checked_name("treatment of unseen coalitions", Unseen, unseen)
    needed = matrix.needed_coalitions()
    reduced = matrix.within(needed)
    problem = problem_of(reduced, settings.penalty_kind)
    limit = collapse_penalty(problem)
    penalty = settings.relative_penalty * limit if settings.penalty is None else settings.penalty
    solution = solve(problem, settings.rank, penalty, max_sweeps=settings.max_sweeps)
    left = problem.residuals(solution.W, solution.H)
    if not np.isfinite(left).all():
        raise CompletionError(
            "the factors are not finite: the utilities differ too much in size; leave out the extreme ones"
        )
    return FactorCompletion(
        clients=matrix.clients,
        coalitions=reduced.coalitions,
        round_factors=solution.W,
        coalition_factors=solution.H,
        rank=settings.rank,
        penalty=penalty,
        relative_penalty=penalty / limit,
        penalty_kind=settings.penalty_kind,
        objective=solution.objective,
        residual=float(np.sqrt((left**2).sum() / (problem.values**2).sum())),
        status=solution.status,
        stationarity=solution.certificate.stationarity,
        spectral_ratio=solution.certificate.spectral_ratio,
        n_sweeps=solution.n_sweeps,
        heard=np.flatnonzero(matrix.heard),
        block_factors=_block_factors(reduced, problem, solution),
        permutations=matrix.heard_permutations,
        unseen=unseen,
        n_seen=len(matrix.utilities) - matrix.n_rounds,
        n_unseen=len(needed) - len(reduced.coalitions),
    )


def _block_factors(matrix: UtilityMatrix, problem: Problem, solution: Solution) -> Floats | None:
    """(n_coalitions, rank, n_blocks): each block's column factors, with the round factors of the total held fixed.

    The ridge problems of the columns are linear in the utilities, so the blocks sum to the factors of the total.
    """
    if matrix.n_blocks == 1:
        return None
    places = matrix.coalition_indices, np.arange(len(matrix.utilities))
    grams = best_columns(problem, solution.W, solution.penalty)[1]  # (n_coalitions, rank, rank)
    pulls = np.empty((len(grams), solution.W.shape[1], matrix.n_blocks))
    for k, factor in enumerate(solution.W.T):
        pulls[:, k] = csr_array((factor[matrix.round_indices], places)) @ matrix.utilities
    for start in range(0, len(grams), AT_ONCE):  # in place, since there may be hundreds of blocks
        some = slice(start, start + AT_ONCE)
        pulls[some] = np.linalg.solve(grams[some], pulls[some])
    return pulls


# Errors


@one_blas_thread()
def with_errors(matrix: UtilityMatrix, completion: FactorCompletion) -> FactorCompletion:
    """The same completion with alternatives, unless the matrix is too large for them.

    The settings around the completion's own count by their mean squared distance; held-out parts by the jackknife,
    (n − 1)/n times the sum of the squared distances for n parts.
    """
    reduced = matrix.within(matrix.needed_coalitions())
    n_seen = len(reduced.utilities)
    if n_seen > MOST_CELLS:
        return completion
    own = FactorSettings(
        completion.rank, relative_penalty=completion.relative_penalty, penalty_kind=completion.penalty_kind
    )
    everything = np.arange(n_seen)
    by_settings = [_fit(reduced, everything, settings) for settings in neighbours(own)]
    try:
        folds = folds_of(reduced, stream(0, "alternatives"))
    except CompletionError:  # too few cells were seen twice to hold any out
        folds = []
    held_out = [_fit(reduced, np.delete(everything, hidden), own) for hidden in folds]
    weights = [1 / len(by_settings)] * len(by_settings) + [1 - 1 / max(len(folds), 1)] * len(folds)
    totals = np.stack([found.H @ found.W.sum(axis=0) for found in (*by_settings, *held_out)])
    return replace(completion, alternatives=np.sqrt(weights)[:, None] * (totals - completion.totals))


def neighbours(own: FactorSettings) -> list[FactorSettings]:
    """The settings around given ones: each differs in one thing."""
    return [
        replace(own, rank=max(1, own.rank - RANK_STEP)),
        replace(own, rank=own.rank + RANK_STEP),
        replace(own, relative_penalty=min(own.relative_penalty * PENALTY_STEP, 0.5)),
        replace(own, relative_penalty=own.relative_penalty / PENALTY_STEP),
        replace(own, penalty_kind="uniform" if own.penalty_kind == "counts" else "counts"),
    ]


def _fit(matrix: UtilityMatrix, kept: Indices, settings: FactorSettings) -> Solution:
    """The factors of some of the cells."""
    shape = (matrix.n_rounds, len(matrix.coalitions))
    cells = matrix.round_indices[kept], matrix.coalition_indices[kept], matrix.totals[kept]
    problem = problem_of_cells(shape, *cells, settings.penalty_kind)
    penalty = settings.relative_penalty * collapse_penalty(problem) if settings.penalty is None else settings.penalty
    return solve(problem, settings.rank, penalty, max_sweeps=settings.max_sweeps)


# Choice of rank and penalty


def choose_factors(
    matrix: UtilityMatrix,
    *,
    penalty_kind: PenaltyKind = "counts",
    ranks: Sequence[int] = RANKS,
    relative_penalties: Sequence[float] = RELATIVE_PENALTIES,
    rng: np.random.Generator,
) -> FactorSettings:
    """The rank and relative penalty with the least held-out error; the smaller rank among equals.

    Cells of rounds with absent clients are held out, since they are like the cells to be completed, and only if
    their column keeps another cell.
    """
    reduced = matrix.within(matrix.needed_coalitions())
    folds = folds_of(reduced, rng)
    candidates = [
        FactorSettings(rank=rank, relative_penalty=part, penalty_kind=penalty_kind)
        for rank in sorted(ranks)
        for part in relative_penalties
    ]
    return min(candidates, key=lambda settings: _error(reduced, folds, settings))


def held_out_error(matrix: UtilityMatrix, settings: FactorSettings, *, rng: np.random.Generator) -> float:
    """The relative error of these settings on held-out cells, ‖U − X‖ / ‖U‖."""
    reduced = matrix.within(matrix.needed_coalitions())
    return _error(reduced, folds_of(reduced, rng), settings)


def folds_of(matrix: UtilityMatrix, rng: np.random.Generator) -> list[Indices]:
    """Disjoint sets of cells to hold out; the column of each cell keeps another cell."""
    everyone = matrix.participants.sum(axis=1) == matrix.heard.sum()  # (n_rounds,)
    columns, n_columns = matrix.coalition_indices, len(matrix.coalitions)
    may_hide = ~everyone[matrix.round_indices] & matrix.coalitions[columns].any(axis=1)
    may_hide &= np.bincount(columns, minlength=n_columns)[columns] > 1
    folds = []
    for hidden in np.array_split(rng.permutation(np.flatnonzero(may_hide)), N_FOLDS):
        left = np.bincount(np.delete(columns, hidden), minlength=n_columns)
        hidden = np.sort(hidden[left[columns[hidden]] > 0])
        folds += [hidden] if len(hidden) else []
    if not folds:
        raise CompletionError("too few cells were seen twice to hold any out; give --rank and a penalty yourself")
    return folds


def _error(matrix: UtilityMatrix, folds: list[Indices], settings: FactorSettings) -> float:
    """‖U − X‖ / ‖U‖ over all held-out cells."""
    trial = replace(settings, max_sweeps=min(settings.max_sweeps, TRIAL_SWEEPS))
    utilities, misses, truths = matrix.totals, [], []
    for hidden in folds:
        found = _fit(matrix, np.delete(np.arange(len(utilities)), hidden), trial)
        W, H = found.W[matrix.round_indices[hidden]], found.H[matrix.coalition_indices[hidden]]
        misses.append(utilities[hidden] - np.einsum("ck,ck->c", W, H))
        truths.append(utilities[hidden])
    scale = np.linalg.norm(np.concatenate(truths))
    if scale == 0:
        raise CompletionError("all cells that could be held out are 0; give --rank and a penalty yourself")
    return float(np.linalg.norm(np.concatenate(misses)) / scale)
