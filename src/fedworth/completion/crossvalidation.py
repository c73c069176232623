"""Choosing rank and penalty by what they say of seen cells that were hidden from them.

Hidden are cells of rounds that did not hear everyone, since those are like the cells to be completed, and only while
their column and their round keep another cell. The error is relative: ‖U − X‖ / ‖U‖ over the hidden cells.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from fedworth.arrays import Indices
from fedworth.completion.complete import FactorSettings
from fedworth.completion.problem import problem_of_cells
from fedworth.completion.solver import collapse_penalty, solve
from fedworth.errors import CompletionError
from fedworth.games.matrix import UtilityMatrix, needed_columns
from fedworth.names import PenaltyKind

RANKS = (1, 2, 3, 5, 8)
RELATIVE_PENALTIES = (0.1, 0.03, 0.01, 0.003, 0.001)
N_FOLDS = 5
TRIAL_SWEEPS = 500


@dataclass(frozen=True)
class Choice:
    """The settings that predict hidden cells best, and how well each candidate did."""

    settings: FactorSettings
    error: float
    n_hidden: int
    candidates: tuple[tuple[int, float, float], ...]  # (rank, relative penalty, held-out error)


def choose_factors(
    matrix: UtilityMatrix,
    *,
    penalty_kind: PenaltyKind = "counts",
    ranks: Sequence[int] = RANKS,
    relative_penalties: Sequence[float] = RELATIVE_PENALTIES,
    n_folds: int = N_FOLDS,
    rng: np.random.Generator,
) -> Choice:
    """The rank and relative penalty with the least held-out error; the smaller rank among equals.

    Args:
        matrix: The measured utilities.
        penalty_kind: `counts` (each factor is penalised once a seen cell) or `uniform`, as the paper prints it.
        ranks: The ranks to try.
        relative_penalties: The penalties to try, relative to the smallest that makes everything zero.
        n_folds: Into how many parts the seen cells are cut; each is held out once.
        rng: Draws the parts.

    Returns:
        The settings with the least error on cells held out, and that error.

    Example:
        choice = fedworth.choose_factors(utilities, rng=numpy.random.default_rng(0))
        fedworth.complete(utilities, choice.settings)
    """
    reduced = matrix.within(needed_columns(matrix))
    folds = folds_of(reduced, n_folds, rng)
    candidates = []
    for rank in ranks:
        for fraction in relative_penalties:
            settings = FactorSettings(rank=rank, relative_penalty=fraction, penalty_kind=penalty_kind)
            candidates.append((rank, fraction, _error(reduced, folds, settings)))
    rank, fraction, error = min(candidates, key=lambda candidate: (candidate[2], candidate[0]))
    settings = FactorSettings(rank=rank, relative_penalty=fraction, penalty_kind=penalty_kind)
    return Choice(settings, error, sum(len(hidden) for hidden in folds), tuple(candidates))


def held_out_error(
    matrix: UtilityMatrix, settings: FactorSettings, *, n_folds: int = N_FOLDS, rng: np.random.Generator
) -> float:
    """The relative error of these settings on seen cells that were hidden from them."""
    reduced = matrix.within(needed_columns(matrix))
    return _error(reduced, folds_of(reduced, n_folds, rng), settings)


def folds_of(matrix: UtilityMatrix, n_folds: int, rng: np.random.Generator) -> list[Indices]:
    """Disjoint sets of cells to hide, each leaving something in the columns and rounds of its cells."""
    everyone = matrix.participants.sum(axis=1) == matrix.heard.sum()  # (n_rounds,)
    n_in_column = np.bincount(matrix.coalition_indices, minlength=len(matrix.coalitions))
    may_hide = ~everyone[matrix.round_indices] & matrix.coalitions[matrix.coalition_indices].any(axis=1)
    may_hide &= n_in_column[matrix.coalition_indices] > 1
    order = rng.permutation(np.flatnonzero(may_hide))
    folds = [_predictable(matrix, fold) for fold in np.array_split(order, n_folds)]
    folds = [fold for fold in folds if len(fold)]
    if not folds:
        raise CompletionError("too few cells were seen twice to hold any out; give --rank and a penalty yourself")
    return folds


def _predictable(matrix: UtilityMatrix, hidden: Indices) -> Indices:
    """Those hidden cells whose column keeps a seen cell."""
    kept = np.ones(len(matrix.utilities), dtype=bool)
    kept[hidden] = False
    left = np.bincount(matrix.coalition_indices[kept], minlength=len(matrix.coalitions))
    return np.sort(hidden[left[matrix.coalition_indices[hidden]] > 0])


def _error(matrix: UtilityMatrix, folds: list[Indices], settings: FactorSettings) -> float:
    """‖U − X‖ / ‖U‖ over all hidden cells."""
    misses: list[NDArray[np.float64]] = []
    truths: list[NDArray[np.float64]] = []
    for hidden in folds:
        kept = np.ones(len(matrix.utilities), dtype=bool)
        kept[hidden] = False
        rows, columns = matrix.round_indices, matrix.coalition_indices
        shape = (matrix.n_rounds, len(matrix.coalitions))
        problem = problem_of_cells(shape, rows[kept], columns[kept], matrix.utilities[kept], settings.penalty_kind)
        fraction = settings.relative_penalty * collapse_penalty(problem)
        penalty = fraction if settings.penalty is None else settings.penalty
        trial = replace(settings, max_sweeps=min(settings.max_sweeps, TRIAL_SWEEPS))
        solution = solve(problem, trial.rank, penalty, max_sweeps=trial.max_sweeps)
        estimate = np.einsum("ij,ij->i", solution.W[rows[hidden]], solution.H[columns[hidden]])
        misses.append(matrix.utilities[hidden] - estimate)
        truths.append(matrix.utilities[hidden])
    scale = np.linalg.norm(np.concatenate(truths))
    if scale == 0:
        raise CompletionError("all cells that could be held out are 0; give --rank and a penalty yourself")
    return float(np.linalg.norm(np.concatenate(misses)) / scale)
