"""How fair a valuation is: gaps of the paper's ε-Shapley fairness, and what Theorem 1 (corrected) allows.

In: values (n_clients,), and the utilities (2^N,) of the whole training, U(S) = Σ_t U_t(S), where bit i of a
column's integer stands for client i. Out: gaps, the largest absolute differences. Definition 1 asks for

    ε-symmetry      |v_i − v_j| ≤ ε         if U(S∪i) = U(S∪j) for all S without i and j
    ε-zero element  |v_i| ≤ ε               if U(S∪i) = U(S) for all S without i
    ε-additivity    |v_i − (v¹_i + v²_i)| ≤ ε   if U = U¹ + U²

(the print leaves out the modulus of the zero element). Theorem 1 promises these with ε = 4δ/N when the
completed matrix is within δ of the true one, ‖U − WHᵀ‖₁ ≤ δ. The weights 1/C(N−1,|S|) sum to N, not to 1, so
4δ is right and 4δ/N is not; `fairness_bounds` gives the sharper constant of each property.
"""

import math
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from fedworth.arrays import Utilities
from fedworth.errors import UsageError, ValuationError

Values = NDArray[np.float64]
Pairs = tuple[tuple[int, int], ...]

EQUAL_UTILITIES = 1e-12
"""Utilities this near count as equal: identical clients agree only to the last bits of a sum."""


def relative_difference(a: float, b: float) -> float:
    """d = |a − b| / max(|a|, |b|), between 0 and 2; 0 if both are 0.

    The paper divides by max{a, b} (equation relative_difference), which is no scale once values are negative.
    """
    if not (math.isfinite(a) and math.isfinite(b)):
        raise ValuationError(f"values {a} and {b}: expected two finite numbers")
    scale = max(abs(a), abs(b))
    return 0.0 if scale == 0 else abs(a / scale - b / scale)  # divided first: a − b may overflow


@dataclass(frozen=True, slots=True)
class FairnessReport:
    """Which premises of ε-Shapley fairness the utilities meet, and how far off the values then are."""

    symmetric_pairs: Pairs
    null_clients: tuple[int, ...]
    symmetry_gap: float
    zero_element_gap: float


@dataclass(frozen=True, slots=True)
class FairnessBounds:
    """The most that each gap can be when the completion is within δ of the truth."""

    value_error: float
    symmetry: float
    zero_element: float
    additivity: float


def fairness_report(utilities: Utilities, values: Values, *, tolerance: float = EQUAL_UTILITIES) -> FairnessReport:
    """How far values are from treating equal clients alike and null clients as null."""
    return FairnessReport(
        symmetric_pairs=symmetric_pairs(utilities, tolerance=tolerance),
        null_clients=null_clients(utilities, tolerance=tolerance),
        symmetry_gap=symmetry_gap(utilities, values, tolerance=tolerance),
        zero_element_gap=zero_element_gap(utilities, values, tolerance=tolerance),
    )


def symmetric_pairs(utilities: Utilities, *, tolerance: float = EQUAL_UTILITIES) -> Pairs:
    """Pairs (i, j), i < j, that add the same utility to every coalition without them."""
    n_clients = _n_clients(utilities)
    coalitions = np.arange(len(utilities))
    pairs = []
    for i, j in combinations(range(n_clients), 2):
        without = coalitions[(coalitions >> i | coalitions >> j) & 1 == 0]  # (2^(N-2),)
        if _are_equal(utilities[without | 1 << i], utilities[without | 1 << j], tolerance):
            pairs.append((i, j))
    return tuple(pairs)


def null_clients(utilities: Utilities, *, tolerance: float = EQUAL_UTILITIES) -> tuple[int, ...]:
    """Clients that add no utility to any coalition."""
    n_clients = _n_clients(utilities)
    coalitions = np.arange(len(utilities))
    found = []
    for i in range(n_clients):
        without = coalitions[coalitions >> i & 1 == 0]  # (2^(N-1),)
        if _are_equal(utilities[without | 1 << i], utilities[without], tolerance):
            found.append(i)
    return tuple(found)


def symmetry_gap(utilities: Utilities, values: Values, *, tolerance: float = EQUAL_UTILITIES) -> float:
    """Largest |v_i − v_j| over the symmetric pairs; 0 if there are none."""
    _check_values(values, _n_clients(utilities))
    pairs = symmetric_pairs(utilities, tolerance=tolerance)
    return max((abs(float(values[i] - values[j])) for i, j in pairs), default=0.0)


def zero_element_gap(utilities: Utilities, values: Values, *, tolerance: float = EQUAL_UTILITIES) -> float:
    """Largest |v_i| over the null clients; 0 if there are none."""
    _check_values(values, _n_clients(utilities))
    return max((abs(float(values[i])) for i in null_clients(utilities, tolerance=tolerance)), default=0.0)


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

    Symmetry is better than twice the value error, as the weights 1/((N−1) C(N−2,|S|)) of U(S∪i) − U(S∪j) sum
    to 1. The zero element supposes that the empty coalition is exact, U_t(∅) = w_t·h_∅ = 0, as it is at the
    optimum. Additivity supposes, as the theorem does, that the parts are completed within δ₁ + δ₂ ≤ δ.
    """
    if not (math.isfinite(delta) and delta >= 0):
        raise UsageError(f"delta is {delta}, expected a finite number of at least 0")
    if n_clients < 1:
        raise UsageError(f"{n_clients} clients: expected at least 1")
    return FairnessBounds(2 * delta, 2 * delta, (2 - 1 / n_clients) * delta, 4 * delta)


def _n_clients(utilities: Utilities) -> int:
    n_clients = utilities.size.bit_length() - 1
    if utilities.ndim != 1 or utilities.size < 2 or utilities.size != 1 << n_clients:
        raise ValuationError(f"utilities of shape {utilities.shape}: expected (2^N,), one for each coalition")
    if not np.isfinite(utilities).all():
        raise ValuationError("some coalitions have no finite utility; fairness needs them all")
    return n_clients


def _check_values(values: Values, n_clients: int) -> None:
    if values.shape != (n_clients,) or n_clients == 0 or not np.isfinite(values).all():
        raise ValuationError(f"values of shape {values.shape}: expected {n_clients} finite ones, one a client")


def _are_equal(first: Utilities, second: Utilities, tolerance: float) -> bool:
    return bool(np.all(np.abs(first - second) <= tolerance))
