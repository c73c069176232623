"""Complete. In: a partly seen utility matrix. Out: an estimate of every cell.

With permutations, the reduced problem of Algorithm 1 (prob:matrix_completion_reduced): the columns are the distinct
prefixes. Without, all coalitions. The penalty is absolute, or a fraction of λ_collapse, which makes it free of scale.
"""

from dataclasses import dataclass, replace

import numpy as np

from fedworth.completion.completion import FactorCompletion
from fedworth.completion.kernels.layout import Factors
from fedworth.completion.problem import Problem, problem_of
from fedworth.completion.solver import MAX_SWEEPS, Solution, collapse_penalty_of, solve
from fedworth.errors import CompletionError
from fedworth.games.matrix import UtilityMatrix, needed_columns
from fedworth.names import PenaltyKind, checked_name
from fedworth.threads import one_blas_thread
from fedworth.trail import fingerprint


@dataclass(frozen=True, slots=True)
class FactorSettings:
    """How to complete by factors.

    Args:
        rank: How many factors.
        penalty: The penalty, absolute.
        relative_penalty: The penalty, relative to the smallest that makes everything zero; used where no `penalty` is
            given.
        penalty_kind: `counts`: each factor is penalised once a seen cell; `uniform`, as the paper prints it.
        max_sweeps: When to give up.

    Example:
        completion = fedworth.complete(utilities, fedworth.FactorSettings(rank=3, relative_penalty=0.03))
    """

    rank: int = 5
    penalty: float | None = None
    relative_penalty: float = 0.01
    penalty_kind: PenaltyKind = "counts"
    max_sweeps: int = MAX_SWEEPS

    def __post_init__(self) -> None:
        checked_name("penalty kind", self.penalty_kind)
        if self.rank < 1 or self.max_sweeps < 1:
            raise CompletionError(f"rank {self.rank}, {self.max_sweeps} sweeps: expected 1 or more of each")


@one_blas_thread()
def complete(
    matrix: UtilityMatrix, settings: FactorSettings | None = None, *, start: Factors | None = None
) -> FactorCompletion:
    """The completion of a utility matrix by factors, as in the paper.

    Args:
        matrix: The measured utilities.
        settings: Rank and penalty.
        start: Round factors near the answer, such as those of the rounds before. They change how soon it is found, not
            what is found.

    Returns:
        Round factors and coalition factors, with the evidence of their fit.

    Example:
        completion = fedworth.complete(utilities, fedworth.FactorSettings(rank=3))
    """
    settings = settings or FactorSettings()
    if matrix.is_truth:
        raise CompletionError("the matrix holds the truth; complete its seen part, or value the truth itself")
    if start is not None and start.shape != (matrix.n_rounds, settings.rank):
        raise CompletionError(f"start of shape {start.shape}, expected ({matrix.n_rounds}, {settings.rank})")
    reduced = matrix.within(needed_columns(matrix))
    problem = problem_of(reduced, settings.penalty_kind)
    limit = collapse_penalty_of(reduced, settings.penalty_kind)
    penalty = settings.relative_penalty * limit if settings.penalty is None else settings.penalty
    solution = solve(problem, settings.rank, penalty, max_sweeps=settings.max_sweeps, start=start)
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
        residual=_residual(problem, solution),
        status=solution.status,
        stationarity=solution.certificate.stationarity,
        spectral_ratio=solution.certificate.spectral_ratio,
        n_sweeps=solution.n_sweeps,
        trail=None if matrix.trail is None else replace(matrix.trail, utilities=fingerprint(matrix)),
    )


def _residual(problem: Problem, solution: Solution) -> float:
    left = problem.residuals(solution.W, solution.H)
    return float(np.sqrt((left**2).sum() / (problem.values**2).sum()))
