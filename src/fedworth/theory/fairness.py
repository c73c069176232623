"""How fair values are: the gaps of the paper's ε-Shapley fairness, and what Theorem 1 (corrected) allows.

Values are (n_clients,), utilities (2^N,) those of the whole training, U(S) = Σ_t U_t(S); bit i of a coalition's integer
stands for client i. Definition 1 asks for

    ε-symmetry      |v_i − v_j| ≤ ε         if U(S∪i) = U(S∪j) for all S without i and j
    ε-zero element  |v_i| ≤ ε               if U(S∪i) = U(S) for all S without i
    ε-additivity    |v_i − (v¹_i + v²_i)| ≤ ε   if U = U¹ + U²

(the print drops the modulus of the zero element). Theorem 1 claims these with ε = 4δ/N if the completed matrix is
within δ of the true one, ‖U − WHᵀ‖₁ ≤ δ. The weights 1/C(N−1,|S|) sum to N, not to 1, so ε = 4δ is right and 4δ/N is
not; `fairness_bounds` gives the sharper constant of each property.
"""

import math
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from fedworth.arrays import Floats, Utilities
from fedworth.errors import UsageError, ValuationError
from fedworth.games.shapley import n_clients_of

Pairs = tuple[tuple[int, int], ...]

EQUAL_UTILITIES = 1e-12
"""Utilities that differ by less count as equal: sums over identical clients may differ in their last bits."""


def relative_difference(a: float, b: float) -> float:
    """d = |a − b| / max(|a|, |b|), between 0 and 2; 0 if both are 0.

    The paper divides by max{a, b} (equation relative_difference), which is no scale if values are negative.
    """
    if not (math.isfinite(a) and math.isfinite(b)):
        raise ValuationError(f"values {a} and {b}: expected two finite numbers")
    scale = max(abs(a), abs(b))
    return 0.0 if scale == 0 else abs(a / scale - b / scale)  # divided first: a − b may overflow


@dataclass(frozen=True, slots=True)
class FairnessReport:
    """Symmetric and null clients, and the largest gaps of their values."""

    symmetric_pairs: Pairs
    null_clients: tuple[int, ...]
    symmetry_gap: float
    zero_element_gap: float


@dataclass(frozen=True, slots=True)
class FairnessBounds:
    """The largest possible gaps if the completion is within δ of the truth."""

    value_error: float
    symmetry: float
    zero_element: float
    additivity: float


def fairness_report(utilities: Utilities, values: Floats, *, tolerance: float = EQUAL_UTILITIES) -> FairnessReport:
    """How far values are from giving the same to symmetric clients and nothing to null clients."""
    n_clients = n_clients_of(utilities, 1)
    if values.shape != (n_clients,) or not np.isfinite(values).all():
        raise ValuationError(
            f"values of shape {values.shape}: expected {n_clients} finite numbers, one for each client"
        )
    pairs, nulls = symmetric_pairs(utilities, tolerance=tolerance), null_clients(utilities, tolerance=tolerance)
    return FairnessReport(
        symmetric_pairs=pairs,
        null_clients=nulls,
        symmetry_gap=max((abs(float(values[i] - values[j])) for i, j in pairs), default=0.0),
        zero_element_gap=max((abs(float(values[i])) for i in nulls), default=0.0),
    )


def symmetric_pairs(utilities: Utilities, *, tolerance: float = EQUAL_UTILITIES) -> Pairs:
    """Pairs (i, j), i < j, that add the same utility to every coalition without them."""
    coalitions, pairs = np.arange(len(utilities)), []
    for i, j in combinations(range(n_clients_of(utilities, 1)), 2):
        without = coalitions[(coalitions >> i | coalitions >> j) & 1 == 0]  # (2^(N-2),)
        if (np.abs(utilities[without | 1 << i] - utilities[without | 1 << j]) <= tolerance).all():
            pairs.append((i, j))
    return tuple(pairs)


def null_clients(utilities: Utilities, *, tolerance: float = EQUAL_UTILITIES) -> tuple[int, ...]:
    """Clients that add no utility to any coalition."""
    coalitions, found = np.arange(len(utilities)), []
    for i in range(n_clients_of(utilities, 1)):
        without = coalitions[coalitions >> i & 1 == 0]  # (2^(N-1),)
        if (np.abs(utilities[without | 1 << i] - utilities[without]) <= tolerance).all():
            found.append(i)
    return tuple(found)


def completeness(utilities_true: Utilities, utilities_completed: Utilities) -> float:
    """δ = ‖U − WHᵀ‖₁, the largest absolute column sum (the paper's definition of δ-completed)."""
    if utilities_true.shape != utilities_completed.shape or utilities_true.ndim != 2 or utilities_true.size == 0:
        shapes = f"{utilities_true.shape} and {utilities_completed.shape}"
        raise ValuationError(f"utility matrices of shapes {shapes}: expected the same (n_rounds, n_coalitions)")
    delta = float(np.abs(utilities_true - utilities_completed).sum(axis=0).max())
    if not math.isfinite(delta):
        raise ValuationError("a utility matrix has unseen or infinite cells; completeness needs every cell")
    return delta


def fairness_bounds(delta: float, n_clients: int) -> FairnessBounds:
    """Theorem 1, corrected: what a completion within δ of the truth guarantees.

    The symmetry gap is less than twice the value error, since the weights 1/((N−1) C(N−2,|S|)) of U(S∪i) − U(S∪j) sum
    to 1. The zero element assumes that the empty coalition is exact, U_t(∅) = w_t·h_∅ = 0, as at the optimum.
    Additivity assumes, as the theorem does, that the parts are completed within δ₁ + δ₂ ≤ δ.
    """
    if not (math.isfinite(delta) and delta >= 0):
        raise UsageError(f"delta is {delta}, expected a finite number of at least 0")
    if n_clients < 1:
        raise UsageError(f"{n_clients} clients: expected at least 1")
    return FairnessBounds(2 * delta, 2 * delta, (2 - 1 / n_clients) * delta, 4 * delta)
