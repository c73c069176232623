"""ε-Shapley fairness, and Theorem 1 with its constants corrected."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from fedworth.errors import UsageError, ValuationError
from fedworth.theory.fairness import (
    completeness,
    fairness_bounds,
    fairness_report,
    null_clients,
    relative_difference,
    symmetric_pairs,
)

Array = NDArray[np.float64]
MODEST = st.floats(-1e6, 1e6)
SHAPES = st.tuples(st.integers(1, 3), st.integers(1, 5), st.integers(0, 2**32 - 1))  # rounds, clients, seed


def shapley(utilities: Array) -> Array:
    """Shapley values straight from the definition."""
    n_clients = len(utilities).bit_length() - 1
    values = np.zeros(n_clients)
    for i in range(n_clients):
        for coalition in range(len(utilities)):
            if not coalition >> i & 1:
                weight = 1 / (n_clients * math.comb(n_clients - 1, coalition.bit_count()))
                values[i] += weight * (utilities[coalition | 1 << i] - utilities[coalition])
    return values


def swapped(utilities: Array) -> Array:
    """The same game with clients 0 and 1 in each other's place."""
    coalitions = np.arange(utilities.shape[-1])
    others, first, second = coalitions & ~3, coalitions & 1, coalitions >> 1 & 1
    return utilities[..., others | first << 1 | second]


def soft_impute(utilities: Array, seen: NDArray[np.bool_], penalty: float, start: Array) -> Array:
    """The minimiser X of Σ_seen (U − X)² + 2λ‖X‖_*, which is WHᵀ at the optimum of the paper's problem."""
    completed = start
    for _ in range(100_000):
        left, singular, right = np.linalg.svd(np.where(seen, utilities, completed), full_matrices=False)
        new = left * np.maximum(singular - penalty, 0) @ right
        if np.abs(new - completed).max() < 1e-13:
            return np.asarray(new)
        completed = new
    raise AssertionError("soft-impute did not converge")


@pytest.mark.parametrize("n_clients", [3, 5, 6, 7])
def test_a_globally_optimal_completion_can_be_less_fair_than_theorem_1_prints(n_clients):
    # T = 2, U_1 ≡ 0, U_2(S) = 1 if S meets {0, 1}; everyone is heard in round 1, all but client 1 in round 2
    penalty, coalitions = 0.1, np.arange(2**n_clients)
    utilities = np.array([np.zeros(2**n_clients), coalitions & 3 != 0], dtype=float)
    seen = np.array([coalitions >= 0, coalitions & 2 == 0])
    start = np.random.default_rng(n_clients).normal(size=utilities.shape)
    completed = soft_impute(utilities, seen, penalty, start)
    residual = np.where(seen, utilities - completed, 0)
    assert np.linalg.norm(residual, 2) <= penalty * (1 + 1e-9)  # the certificate of global optimality

    total, values = utilities.sum(axis=0), shapley(completed.sum(axis=0))
    delta, gap = completeness(utilities, completed), fairness_report(total, values).symmetry_gap
    assert (0, 1) in symmetric_pairs(total)
    assert delta == pytest.approx(1, abs=1e-9)
    assert gap == pytest.approx(1 - penalty / 2 ** ((n_clients - 2) / 2), abs=1e-9)
    assert gap <= fairness_bounds(delta, n_clients).symmetry
    assert (gap > 4 * delta / n_clients) == (n_clients >= 5)


@given(SHAPES)
def test_values_move_by_at_most_twice_the_completeness(shape):
    n_rounds, n_clients, seed = shape
    rng = np.random.default_rng(seed)
    utilities, completed = rng.normal(size=(2, n_rounds, 2**n_clients))
    error = np.abs(shapley(utilities.sum(axis=0)) - shapley(completed.sum(axis=0))).max()
    assert error <= fairness_bounds(completeness(utilities, completed), n_clients).value_error + 1e-12


@given(SHAPES)
def test_symmetric_clients_differ_by_at_most_twice_the_completeness(shape):
    n_rounds, n_clients, seed = shape
    rng = np.random.default_rng(seed)
    utilities, completed = rng.normal(size=(2, n_rounds, 2 ** (n_clients + 1)))
    utilities = (utilities + swapped(utilities)) / 2
    bounds = fairness_bounds(completeness(utilities, completed), n_clients + 1)
    total, values = utilities.sum(axis=0), shapley(completed.sum(axis=0))
    assert symmetric_pairs(total)[:1] == ((0, 1),)
    assert fairness_report(total, values).symmetry_gap <= bounds.symmetry + 1e-12


@given(SHAPES)
def test_null_clients_get_less_than_twice_the_completeness_if_the_empty_coalition_is_exact(shape):
    n_rounds, n_clients, seed = shape
    rng = np.random.default_rng(seed)
    utilities, completed = rng.normal(size=(2, n_rounds, 2**n_clients))
    utilities = utilities[:, np.arange(2**n_clients) & ~1]  # client 0 adds nothing
    completed[:, 0] = utilities[:, 0]
    bounds = fairness_bounds(completeness(utilities, completed), n_clients)
    total, values = utilities.sum(axis=0), shapley(completed.sum(axis=0))
    assert 0 in null_clients(total)
    assert fairness_report(total, values).zero_element_gap <= bounds.zero_element + 1e-12


@given(SHAPES)
def test_values_of_parts_add_up_within_four_times_the_completeness(shape):
    n_rounds, n_clients, seed = shape
    rng = np.random.default_rng(seed)
    parts = rng.normal(size=(2, n_rounds, 2**n_clients))
    errors = rng.normal(size=(3, n_rounds, 2**n_clients))
    size = [completeness(error, np.zeros_like(error)) for error in errors]
    errors[0] *= (size[1] + size[2]) / size[0]  # so that δ₁ + δ₂ = δ
    whole, one, two = (u.sum(axis=0) for u in (parts.sum(axis=0) + errors[0], *(parts + errors[1:])))
    gap = np.abs(shapley(whole) - (shapley(one) + shapley(two))).max()
    assert gap <= fairness_bounds(size[1] + size[2], n_clients).additivity + 1e-9


@pytest.mark.parametrize("n_clients", [1, 2, 3, 6])
def test_twice_the_completeness_is_attained(n_clients):
    coalitions, true = np.arange(2**n_clients), np.zeros((1, 2**n_clients))
    against_client_0 = np.where(coalitions & 1, 1.0, -1.0)[None, :]
    assert completeness(true, against_client_0) == 1
    assert shapley(against_client_0[0])[0] == pytest.approx(fairness_bounds(1, n_clients).value_error)
    against_client_0[0, 0] = 0  # the empty coalition exact
    assert shapley(against_client_0[0])[0] == pytest.approx(fairness_bounds(1, n_clients).zero_element)


@pytest.mark.parametrize("n_clients", [2, 3, 6])
def test_the_symmetry_bound_is_attained(n_clients):
    only_one = np.array([0.0, 1.0, -1.0, 0.0])[np.arange(2**n_clients) & 3]
    values = shapley(only_one)
    assert values[0] - values[1] == pytest.approx(fairness_bounds(1, n_clients).symmetry)


def test_the_weights_of_theorem_1_sum_to_the_number_of_clients():
    for n in range(1, 12):
        sizes = [coalition.bit_count() for coalition in range(2 ** (n - 1))]  # all that a client can join
        assert sum(1 / math.comb(n - 1, size) for size in sizes) == pytest.approx(n)


@given(MODEST, MODEST)
def test_relative_difference_is_symmetric_and_between_zero_and_two(a, b):
    assert 0 <= relative_difference(a, b) <= 2
    assert relative_difference(a, b) == relative_difference(b, a) == relative_difference(-a, -b)
    assert relative_difference(a, a) == 0


def test_relative_difference_of_known_pairs():
    assert relative_difference(0.0, 0.0) == 0
    assert relative_difference(1.0, 0.5) == 0.5
    assert relative_difference(-1.0, -0.5) == 0.5  # the printed d is −1
    assert relative_difference(1.0, 0.0) == 1
    assert relative_difference(1e308, -1e308) == 2
    assert relative_difference(5e-324, -5e-324) == 2


def test_the_exact_shapley_value_is_fair():
    # U(S) = [0 or 1 in S] + [2 in S]; client 3 adds nothing
    utilities = np.array([float(c & 3 != 0) + float(c & 4 != 0) for c in range(16)])
    report = fairness_report(utilities, shapley(utilities))
    assert report.symmetric_pairs == ((0, 1),)
    assert report.null_clients == (3,)
    assert max(report.symmetry_gap, report.zero_element_gap) <= 1e-12


def test_a_report_names_the_pair_and_the_null_client_that_are_wronged():
    utilities = np.array([float(c & 3 != 0) for c in range(8)])  # 0 and 1 alike, 2 null
    values = np.array([0.7, 0.4, -0.2])
    report = fairness_report(utilities, values)
    assert (report.symmetric_pairs, report.null_clients) == (((0, 1),), (2,))
    assert report.symmetry_gap == pytest.approx(0.3)
    assert report.zero_element_gap == pytest.approx(0.2)  # the printed v(i) ≤ ε would accept −0.2 at any ε


def test_premises_nobody_meets_leave_no_gap():
    utilities = np.array([0.0, 1.0, 2.0, 4.0])
    assert fairness_report(utilities, np.array([3.0, -8.0])).symmetry_gap == 0
    assert fairness_report(utilities, np.array([3.0, -8.0])).zero_element_gap == 0


def test_equality_of_utilities_is_within_the_tolerance():
    utilities = np.array([0.0, 1.0, 1.0 + 1e-9, 2.0])
    assert symmetric_pairs(utilities) == ()
    assert symmetric_pairs(utilities, tolerance=1e-8) == ((0, 1),)
    assert null_clients(np.array([0.0, 1e-9]), tolerance=1e-8) == (0,)


def test_completeness_is_the_largest_column_sum_and_not_the_largest_row_sum():
    assert completeness(np.array([[1.0, 0.0, 1.0], [-2.0, 0.0, 0.0]]), np.zeros((2, 3))) == 3


def test_wrong_shapes_and_unseen_cells_are_refused():
    with pytest.raises(ValuationError, match=r"expected 2\^n utilities"):
        symmetric_pairs(np.zeros(6))
    with pytest.raises(ValuationError, match="not finite"):
        null_clients(np.array([0.0, np.nan]))
    with pytest.raises(ValuationError, match="one for each client"):
        fairness_report(np.zeros(4), np.zeros(3))
    with pytest.raises(ValuationError, match="shapes"):
        completeness(np.zeros((2, 4)), np.zeros((3, 4)))
    with pytest.raises(ValuationError, match="unseen"):
        completeness(np.zeros((1, 2)), np.array([[0.0, np.nan]]))
    with pytest.raises(ValuationError, match="finite"):
        relative_difference(1.0, math.inf)
    with pytest.raises(UsageError, match="delta"):
        fairness_bounds(-1.0, 3)
    with pytest.raises(UsageError, match="clients"):
        fairness_bounds(1.0, 0)
