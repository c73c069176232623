"""Alternatives: other factors that could as well have been taken, so that a factor completion knows how sure it is.

In: a utility matrix and its factor completion. Out: the completion with `Alternatives`, of two kinds side by side:

    settings    the rank up and down, the penalty up and down, the other kind of penalty: mean square distance
    held out    the same settings with a part of the later cells hidden, one part after another: the jackknife,
                (n − 1)/n times the sum of the squared distances for n parts

What is far from the estimate in either way was decided by a choice, or by a few cells, and not by what was seen.
"""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from fedworth.arrays import stream
from fedworth.completion.complete import FactorSettings
from fedworth.completion.completion import Alternatives, FactorCompletion
from fedworth.completion.crossvalidation import folds_of
from fedworth.completion.kernels.layout import Factors
from fedworth.completion.problem import problem_of_cells
from fedworth.completion.solver import collapse_penalty, solve
from fedworth.errors import CompletionError
from fedworth.games.matrix import UtilityMatrix, needed_columns
from fedworth.names import PenaltyKind

RANK_STEP, PENALTY_STEP = 3, 10.0
N_FOLDS = 5
MOST_CELLS = 200_000
"""Beyond so many seen cells there are no alternatives: each costs as much as the completion itself."""

Pair = tuple[Factors, Factors]


def with_alternatives(matrix: UtilityMatrix, completion: FactorCompletion) -> FactorCompletion:
    """The same completion, with its alternatives if the matrix is not too large for them."""
    reduced = matrix.within(needed_columns(matrix))
    if len(reduced.utilities) > MOST_CELLS:
        return completion
    everything = np.ones(len(reduced.utilities), dtype=bool)
    by_settings = [_factors(reduced, everything, settings) for settings in neighbours(completion)]
    kept = _kept_parts(reduced)
    held_out = [_factors(reduced, part, _settings(completion)) for part in kept]
    weights = [1 / len(by_settings)] * len(by_settings) + [1 - 1 / max(len(kept), 1)] * len(kept)
    rounds, coalitions = zip(*by_settings, *held_out, strict=True)
    return replace(completion, alternatives=Alternatives(_stacked(rounds), _stacked(coalitions), np.array(weights)))


def neighbours(completion: FactorCompletion) -> list[FactorSettings]:
    """The settings around those of a completion."""
    own = _settings(completion)
    other_kind: PenaltyKind = "uniform" if own.penalty_kind == "counts" else "counts"
    return [
        replace(own, rank=max(1, own.rank - RANK_STEP)),
        replace(own, rank=own.rank + RANK_STEP),
        replace(own, relative_penalty=min(own.relative_penalty * PENALTY_STEP, 0.5)),
        replace(own, relative_penalty=own.relative_penalty / PENALTY_STEP),
        replace(own, penalty_kind=other_kind),
    ]


def _settings(completion: FactorCompletion) -> FactorSettings:
    kind, fraction = completion.penalty_kind, completion.relative_penalty
    return FactorSettings(rank=completion.rank, relative_penalty=fraction, penalty_kind=kind)


def _kept_parts(matrix: UtilityMatrix) -> list[NDArray[np.bool_]]:
    """What is left of the cells when one part of the later ones is hidden; none where too few were seen twice."""
    try:
        folds = folds_of(matrix, N_FOLDS, stream(0, "alternatives"))
    except CompletionError:
        return []
    return [~np.isin(np.arange(len(matrix.utilities)), hidden) for hidden in folds]


def _factors(matrix: UtilityMatrix, kept: NDArray[np.bool_], settings: FactorSettings) -> Pair:
    """The factors of some of the cells."""
    shape = (matrix.n_rounds, len(matrix.coalitions))
    cells = matrix.round_indices[kept], matrix.coalition_indices[kept], matrix.utilities[kept]
    problem = problem_of_cells(shape, *cells, settings.penalty_kind)
    penalty = settings.relative_penalty * collapse_penalty(problem)
    solution = solve(problem, settings.rank, penalty, max_sweeps=settings.max_sweeps)
    return solution.W, solution.H


def _stacked(factors: tuple[Factors, ...]) -> Factors:
    """(n, n_rows, largest rank): factors of smaller ranks are filled up with zeros, which change no product."""
    rank = max(part.shape[1] for part in factors)
    return np.stack([np.pad(part, ((0, 0), (0, rank - part.shape[1]))) for part in factors])
