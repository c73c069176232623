"""The completion by a kernel, held against the process written out cell by cell; and what it may not do."""

from dataclasses import replace
from functools import cache
from itertools import permutations

import numpy as np
import pytest

from fedworth.coalitions import coalitions_of
from fedworth.completion.by_kernel import KernelCompletion, complete_by_kernel
from fedworth.completion.by_kernel.complete import points_of, utility_likeness
from fedworth.completion.by_kernel.completion import NEVER_TOGETHER
from fedworth.completion.completion_file import load_completion, save_completion
from fedworth.completion.doubt import Doubt, heard_once
from fedworth.errors import ArtefactError, CompletionError, UnseenError
from fedworth.valuation.value import value
from tests.support.games import matrix_of, participation

N, T = 4, 5
EVERY = coalitions_of(np.arange(N), N)
A, B, R, NOISE = (0.5, 0.1, 0.1, 0.03), (0.1, 0.5, 0.3, 0.1), (0.1, 0.1, 0.03, 0.01), 0.001


@cache
def truth():
    """Means of four points on the plane, each round judged from another place; client 3 is a copy of client 0."""
    rng = np.random.default_rng(0)
    points = rng.normal(size=(N, 2))
    points[3] = points[0]
    shares = EVERY / np.maximum(EVERY.sum(axis=1), 1)[:, None]
    aims = rng.normal(size=2) + 0.3 * rng.normal(size=(T, 2))
    return np.stack([(aim**2).sum() - ((aim - shares @ points) ** 2).sum(axis=1) for aim in aims])


@cache
def seen(everyone=True):
    present = participation(T, N, 2, np.random.default_rng(1))
    present[1:] = [[1, 0, 1, 0], [0, 1, 0, 1], [0, 1, 1, 0], [1, 0, 0, 1]]
    return matrix_of(truth()[0 if everyone else 1 :], present[0 if everyone else 1 :])


@cache
def made(everyone=True):
    return complete_by_kernel(seen(everyone))


def k(one, other, likeness):
    """The covariance of two cells (t, S), as the module's docstring has it."""
    (t, s), (u, q) = one, other
    share = [EVERY[c] / max(EVERY[c].sum(), 1) for c in (s, q)]
    alike = share[0] @ likeness @ share[1]
    near = np.exp(-((t - u) ** 2) / 200)
    return sum(alike**p * (A[p] + B[p] * near + R[p] * (t == u)) for p in range(4)) + NOISE * (one == other)


def dense(completion):
    """Every cell's estimate and covariance, by the formulas, all cells at once."""
    cells = [(t, c) for t in range(T) for c in range(1, 2**N)]
    known = [cells.index((t, c)) for t, c in cells if set(np.flatnonzero(EVERY[c])) <= present_in(t)]
    K = np.array([[k(one, other, completion.likeness) for other in cells] for one in cells])
    g = np.array([completion.scale[t] for t, _ in cells])
    told = np.array([truth()[cell] for cell in cells])[known] / g[known]
    weights = K[:, known] @ np.linalg.inv(K[np.ix_(known, known)])
    estimates, covariance = weights @ told * g, (K - weights @ K[known]) * np.outer(g, g)
    estimates[known] = told * g[known]
    covariance[known], covariance[:, known] = 0, 0
    return cells, estimates, covariance * completion.widening


def present_in(t):
    return set(np.flatnonzero(seen().participants[t]))


def test_estimates_variances_and_errors_of_sums_are_those_of_the_dense_posterior():
    cells, estimates, covariance = dense(made())
    ours, variances = made().estimates(EVERY), made().variances(EVERY)
    places = tuple(zip(*cells, strict=True))
    np.testing.assert_allclose(ours[places], estimates, atol=1e-9)
    np.testing.assert_allclose(variances[places], np.diag(covariance), atol=1e-9)
    adds = np.array([[cell[1] == c for cell in cells] for c in range(2**N)], dtype=float)
    L = made().error_factors(EVERY)
    np.testing.assert_allclose(L @ L.T, adds @ covariance @ adds.T, atol=1e-8)
    np.testing.assert_allclose(made().totals(EVERY), adds @ estimates, atol=1e-9)


def test_what_was_seen_stays_as_seen_and_is_certain():
    for t in range(T):
        known = ~np.isnan(seen().row(t, EVERY))
        assert (made().estimates(EVERY)[t, known] == truth()[t, known]).all()
        assert (made().variances(EVERY)[t, known] == 0).all()
        assert (made().variances(EVERY)[t, ~known] > 0).all()


def test_left_out_points_are_what_a_process_without_them_says():
    whole = made().process
    held = np.flatnonzero((whole.rounds == 1) & whole.coalitions[:, 2])
    kept = np.setdiff1d(np.arange(len(whole.rounds)), held)
    rest = replace(whole, rounds=whole.rounds[kept], coalitions=whole.coalitions[kept], utilities=whole.utilities[kept])
    errors, variances = whole.left_out(held)
    expected = rest.mean(whole.coalitions[held])[1]
    np.testing.assert_allclose(errors, whole.utilities[held] - expected, atol=1e-9)
    np.testing.assert_allclose(variances, rest.variances(whole.coalitions[held])[1], atol=1e-9)


def test_a_copy_is_alike_and_worth_as_much_and_the_values_are_near_the_truth():
    likeness, compared_by = utility_likeness(seen())
    assert likeness[0, 3] == pytest.approx(1)
    assert likeness[0, 1] < 0.99
    assert compared_by == "utilities of the rounds that heard everyone"
    found = value(seen(), "comfedsv", completion=made())
    true = value(matrix_of(truth(), seen().participants, is_truth=True), "truth").values
    assert found.values[0] == pytest.approx(found.values[3], abs=0.01 * np.ptp(true))
    assert np.abs(found.values - true).max() < 0.2 * np.ptp(true)
    assert found.uncertainty is not None
    assert (found.uncertainty.deviations > 0).all()
    assert found.completion == made().summary()


def test_without_a_round_that_heard_everyone_all_are_equally_unlike():
    assert made(everyone=False).compared_by.startswith("nothing")
    off = made(everyone=False).likeness[~np.eye(N, dtype=bool)]
    assert (off == off[0]).all()
    assert 0 < off[0] < 1
    assert np.isfinite(value(seen(everyone=False), "comfedsv", completion=made(everyone=False)).values).all()


def test_intervals_are_as_wide_as_held_out_clients_say():
    """The mean squared error of held-out clients over what the process expects, widened by Student's t, 7 degrees."""
    process, squares, variances = made().process, [], []
    for t in range(1, T):
        for client in sorted(present_in(t)):
            held = np.flatnonzero((process.rounds == t) & process.coalitions[:, client])
            errors, expected = process.left_out(held)
            squares.append((errors**2).mean())
            variances.append(expected.mean())
    assert made().n_held_out == len(squares) == 8
    assert made().widening == pytest.approx(sum(squares) / sum(variances) * (1.894579 / 1.644854) ** 2, rel=1e-5)


def test_who_was_never_heard_has_no_estimate_and_who_was_once_is_named():
    present = seen().participants.copy()
    present[:, 1], present[1:, 2] = False, False
    completion = complete_by_kernel(matrix_of(truth(), present))
    assert completion.has(EVERY).tolist() == (~EVERY[:, 1]).tolist()
    with pytest.raises(UnseenError, match=r"no estimate, the first \{b\}"):
        completion.estimates(EVERY)
    assert completion.doubts() == (heard_once("c"),)


def test_where_no_two_were_ever_heard_together_everyone_is_doubted():
    present = np.eye(N, dtype=bool)[[0, 1, 2, 3, 0]]
    completion = complete_by_kernel(matrix_of(truth(), present))
    assert completion.doubts() == (Doubt(None, NEVER_TOGETHER), *(heard_once(name) for name in "bcd"))


def test_the_truth_and_what_cannot_be_listed_are_refused():
    with pytest.raises(CompletionError, match="holds the truth"):
        complete_by_kernel(matrix_of(truth(), seen().participants, is_truth=True))
    nobody = matrix_of(np.zeros((1, 2)), np.zeros((1, 1), dtype=bool))
    with pytest.raises(CompletionError, match="no utility of anyone"):
        complete_by_kernel(nobody)


def test_of_too_many_to_list_values_rest_on_prefixes(monkeypatch):
    """All 24 orders of four clients give the exact value."""
    drawn = replace(seen(), permutations=np.array(list(permutations(range(N)))))
    exact = value(drawn, "comfedsv", completion=complete_by_kernel(drawn))
    monkeypatch.setattr("fedworth.completion.by_kernel.completion.MOST_WHOLE", 3)
    by_orders = value(drawn, "comfedsv", completion=complete_by_kernel(drawn))
    assert exact.standard_errors is None
    assert by_orders.standard_errors is not None
    np.testing.assert_allclose(by_orders.values, exact.values, rtol=1e-9)
    monkeypatch.setattr("fedworth.completion.by_kernel.completion.MOST_TOGETHER", 7)
    np.testing.assert_allclose(complete_by_kernel(drawn).totals(EVERY), made().totals(EVERY), rtol=1e-9)
    assert complete_by_kernel(drawn).error_factors(EVERY) is None


def test_of_many_cells_lone_clients_and_some_others_are_taken(monkeypatch):
    monkeypatch.setattr("fedworth.completion.by_kernel.complete.MOST_POINTS", 12)
    points = points_of(seen())
    sizes = seen().coalitions.sum(axis=1)[seen().coalition_indices[points]]
    assert len(points) == 12
    assert (sizes == 1).sum() >= 6
    assert sizes.min() == 1


def test_a_file_brings_back_the_same_completion(tmp_path):
    save_completion(made(), tmp_path / "kernel.npz")
    back = load_completion(tmp_path / "kernel.npz")
    assert isinstance(back, KernelCompletion)
    assert (back.estimates(EVERY) == made().estimates(EVERY)).all()
    assert back.summary() == made().summary()
    with pytest.raises(ArtefactError, match="likeness of shape"):
        replace(made(), likeness=np.eye(2))


def test_a_round_that_nobody_answered_adds_nothing():
    present = np.array([[1, 1, 1, 1], [1, 0, 1, 0], [0, 0, 0, 0], [0, 1, 1, 0], [1, 0, 0, 1]], dtype=bool)
    completion = complete_by_kernel(matrix_of(truth(), present))
    assert (completion.estimates(EVERY)[2] == 0).all()
    assert (completion.variances(EVERY)[2] == 0).all()
    assert (completion.estimates(EVERY)[1, 1:] != 0).all()
