"""How low the rank of the utility matrix is: the paper's two propositions, and what is measured.

rank_ε(X) is the least rank of a Z with ‖Z − X‖_max ≤ ε (the paper's ε-rank). Proposition 1:

    rank_ε(U) ≤ ⌈((2 + η¹L₂) L₁ Σ_{t<T} ‖w^t − w^{t+1}‖ + (η¹ − η^T) L₁²) / ε⌉

Proposition 2 bounds the path length by (2/μ) log T. Its proof takes the length of a step as η^t, but it can be η^t L₁,
so the path is at most (2L₁/μ) log T and the first term has one more factor L₁ than in print. Both bounds are at least 1
(the print gives 0 for equal rows) and at most min(T, 2^N).

In practice Proposition 1 gives thousands before that cap, where the numeric ε-rank is 2–5: the propositions explain
why the matrix is nearly of low rank, but they cannot choose the rank of a completion.
"""

import math

import numpy as np
from numpy.typing import NDArray

from fedworth.arrays import Utilities
from fedworth.errors import UsageError, ValuationError
from fedworth.simulation.settings import Schedule


def path_length(models: NDArray[np.float64]) -> float:
    """Σ‖w^t − w^{t+1}‖ along the global models at the start of each round, (n_rounds, n_parameters)."""
    steps = np.diff(_checked_matrix(models), axis=0)  # (n_rounds - 1, n_parameters)
    return float(np.linalg.norm(steps, axis=1).sum())


def rank_bound_lipschitz(
    *,
    path_length: float,
    lipschitz: float,
    smoothness: float,
    eta_first: float,
    eta_last: float,
    epsilon: float,
    n_rounds: int,
    n_clients: int,
) -> int:
    """Proposition 1: bounds the ε-rank of an L₁-Lipschitz, L₂-smooth run with non-increasing learning rates."""
    _require_positive(lipschitz=lipschitz, smoothness=smoothness, epsilon=epsilon)
    if not (math.isfinite(path_length) and path_length >= 0):
        raise UsageError(f"path_length is {path_length}, expected a finite length of at least 0")
    if not 0 < eta_last <= eta_first:
        raise UsageError(f"learning rates run from {eta_first} to {eta_last}, expected positive and non-increasing")
    if n_rounds < 1 or n_clients < 1:
        raise UsageError(f"{n_rounds} rounds of {n_clients} clients: expected at least one of each")
    travelled = (2 + eta_first * smoothness) * lipschitz * path_length
    bound = (travelled + (eta_first - eta_last) * lipschitz**2) / epsilon
    most = min(n_rounds, 2 ** min(n_clients, n_rounds.bit_length()))
    return most if bound >= most else max(1, math.ceil(bound))


def rank_bound_strongly_convex(
    *, mu: float, lipschitz: float, smoothness: float, epsilon: float, n_rounds: int, n_clients: int
) -> int:
    """Proposition 2, with its missing factor L₁: the same when the loss is μ-strongly convex too."""
    _require_positive(mu=mu, lipschitz=lipschitz, smoothness=smoothness)
    if mu > smoothness:
        raise UsageError(f"mu {mu} exceeds smoothness {smoothness}: no loss is more convex than it is smooth")
    eta = Schedule("proposition-2", convexity=mu, smoothness=smoothness).at
    return rank_bound_lipschitz(
        path_length=2 * lipschitz * math.log(max(n_rounds, 1)) / mu,
        lipschitz=lipschitz,
        smoothness=smoothness,
        eta_first=eta(0),
        eta_last=eta(max(n_rounds, 1) - 1),
        epsilon=epsilon,
        n_rounds=n_rounds,
        n_clients=n_clients,
    )


def rank_upper_svd(matrix: Utilities, epsilon: float) -> int:
    """The ε-rank is at most this: the fewest singular triples that leave no cell more than ε off."""
    _require_positive(epsilon=epsilon)
    residual = _checked_matrix(matrix).copy()  # (n_rounds, n_coalitions)
    left, singular, right = np.linalg.svd(residual, full_matrices=False)
    for rank, (u, sigma, v) in enumerate(zip(left.T, singular, right, strict=True)):
        if np.abs(residual).max() <= epsilon:
            return rank
        residual -= sigma * np.outer(u, v)
    return len(singular)


def rank_upper_cover(matrix: Utilities, epsilon: float) -> int:
    """The ε-rank is at most this: the fewest max-norm balls of radius ε that hold consecutive rows each.

    The balls' centres are the rows of a Z; they are few where successive rows are near, as the propositions
    prove. Rows fit a ball when no column spreads over more than 2ε; filling each ball gives the fewest.
    """
    _require_positive(epsilon=epsilon)
    rows = _checked_matrix(matrix)
    low, high, n_balls = rows[0], rows[0], 1
    for row in rows[1:]:
        low, high = np.minimum(low, row), np.maximum(high, row)  # (n_coalitions,)
        if (high - low).max() > 2 * epsilon:
            low, high, n_balls = row, row, n_balls + 1
    return min(n_balls, len(rows[0]))  # there are no more balls than rows


def rank_lower(matrix: Utilities, epsilon: float) -> int:
    """The ε-rank is at least this: #{σ_k > ε√(T·2^N)}.

    ‖X − Z‖_max ≤ ε makes ‖X − Z‖₂ ≤ ε√(T·2^N), and by Weyl's inequality no singular value moves by more.
    Those that rounding alone can produce do not count.
    """
    _require_positive(epsilon=epsilon)
    rows = _checked_matrix(matrix)
    singular = np.linalg.svd(rows, compute_uv=False)  # (min(n_rounds, n_coalitions),)
    rounding = singular[0] * max(rows.shape) * np.finfo(np.float64).eps
    return int(np.count_nonzero(singular > max(epsilon * math.sqrt(rows.size), rounding)))


def _checked_matrix(matrix: NDArray[np.float64]) -> NDArray[np.float64]:
    if matrix.ndim != 2 or matrix.size == 0:
        raise ValuationError(f"array of shape {matrix.shape}: expected two dimensions, none of them empty")
    if not np.isfinite(matrix).all():
        raise ValuationError("the array has entries that are not finite; a rank needs every cell")
    return matrix


def _require_positive(**numbers: float) -> None:
    for name, number in numbers.items():
        if not (math.isfinite(number) and number > 0):
            raise UsageError(f"{name} is {number}, expected a finite number above 0")
