"""How sure a factor completion is. In: a utility matrix and its factors. Out: the factors, knowing their errors.

The factors cannot say it themselves: of a coalition larger than a round's participants they know one round, rescaled,
and so do all factors of other ranks and penalties; intervals from these alone held 30 to 70 % of the true values, not
90. So the errors are those of a second estimate, which knows its own: the completion by a kernel, whose variances
come from held-out clients. The error of an estimate x is taken as (x − y) plus that of the second one, y:

    E (x − u)(x − u)ᵀ = (x − y)(x − y)ᵀ + Cov(y − u)

Of too many coalitions for that, alternatives say how sure the factors are, and that this is too little.
"""

from dataclasses import replace

from fedworth.completion.alternatives import with_alternatives
from fedworth.completion.by_kernel import MOST_TOGETHER, complete_by_kernel
from fedworth.completion.completion import FactorCompletion
from fedworth.errors import CompletionError
from fedworth.games.matrix import UtilityMatrix


def with_errors(matrix: UtilityMatrix, completion: FactorCompletion) -> FactorCompletion:
    """The same completion, with its errors as far as they can be known."""
    if len(completion.coalitions) <= MOST_TOGETHER:
        try:
            return replace(completion, reference=complete_by_kernel(matrix))
        except CompletionError:  # nobody's utility was seen, or nobody heard
            return completion
    return with_alternatives(matrix, completion)
