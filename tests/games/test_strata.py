"""Stratified values: exact where all is measured, unbiased elsewhere, with standard errors that hold."""

import math
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedworth.cli.main import main
from fedworth.coalitions import coalitions_of
from fedworth.errors import ValuationError
from fedworth.games import strata
from fedworth.games.matrix import matrix_from_cells
from fedworth.games.matrix_file import load_utilities, save_utilities
from fedworth.games.observe import observe
from fedworth.games.planning.design import default_budget, draw_design, least_budget
from fedworth.games.planning.plan import plan_exact, plan_prefixes
from fedworth.games.smooth import fit, similarities, slopes, smooth
from fedworth.games.strata import strata_values
from fedworth.oracle.oracle import LoopOracle
from fedworth.oracle.weighting import participation
from fedworth.valuation.shapley import shapley_values
from fedworth.valuation.value import value

seeds = st.integers(0, 2**32 - 1)


def random_game(n, rng):
    """All 2^n utilities, without any structure."""
    utilities = rng.normal(size=2**n)
    utilities[0] = 0
    return utilities


def averaging_game(n, rng):
    """Minus the loss of averaged logits: what a federation's round looks like."""
    logits = rng.normal(size=(n, 12, 3)) + 2 * np.eye(3)[rng.integers(0, 3, n)][:, None]  # (n, samples, classes)
    coalitions = coalitions_of(np.arange(n), n)[1:]
    mixed = np.einsum("cn,nsk->csk", coalitions / coalitions.sum(axis=1)[:, None], logits)
    losses = np.log(np.exp(mixed).sum(axis=2)) - mixed[:, np.arange(12), np.arange(12) % 3]
    return np.concatenate([[0.0], math.log(3) - losses.mean(axis=1)])


def quadratic(overlaps, sizes, others, n_members):  # noqa: ARG001
    """A kernel for games that are known to be quadratic forms in the averaging weights: κ = (m_S · m_T)²."""
    return np.asarray((overlaps / (sizes * others)) ** 2)


def quadratic_game(n, rng):
    """mᵀQm in the averaging weights m."""
    form = rng.normal(size=(n, n))
    weights = coalitions_of(np.arange(n), n)[1:]
    weights = weights / weights.sum(axis=1)[:, None]
    return np.concatenate([[0.0], np.einsum("ci,ij,cj->c", weights, form, weights)])


def constant(overlaps, sizes, others, n_members):  # noqa: ARG001
    """A surrogate that knows the mean alone."""
    return np.ones(np.broadcast_shapes(overlaps.shape, sizes.shape, others.shape))


def drawn(utilities, budget, seed):
    """A design and its utilities."""
    n = len(utilities).bit_length() - 1
    design = draw_design(np.arange(n), n, budget, rng=np.random.default_rng(seed))
    return design, utilities[design @ (1 << np.arange(n))]


def many(utilities, budget, n_designs, **options):
    """Values and standard errors of many designs, (n_designs, n) each."""
    found = [strata_values(*drawn(utilities, budget, [9, seed]), **options) for seed in range(n_designs)]
    return np.array([e.values for e in found]), np.array([e.standard_errors for e in found])


@given(st.integers(1, 7), seeds)
def test_all_coalitions_give_the_exact_values(n, seed):
    utilities = random_game(n, np.random.default_rng(seed))
    found = strata_values(*drawn(utilities, 2**n - 1, seed))
    assert found.values == pytest.approx(shapley_values(utilities), abs=1e-12)
    assert (found.standard_errors == 0).all()
    assert found.n_evaluations == 2**n - 1


@given(st.integers(1, 8), st.integers(0, 60), seeds)
def test_values_share_out_exactly_the_grand_utility(n, more, seed):
    utilities = random_game(n, np.random.default_rng(seed))
    found = strata_values(*drawn(utilities, least_budget(n) + more, seed))
    assert found.values.sum() == pytest.approx(utilities[-1], abs=1e-8)
    assert found.covariance.sum() == pytest.approx(0, abs=1e-8)


@given(st.integers(2, 6), st.integers(0, 30), seeds, st.floats(-3, 3), st.floats(-3, 3))
def test_values_are_linear_in_the_utilities(n, more, seed, a, b):
    rng = np.random.default_rng(seed)
    first, second = random_game(n, rng), averaging_game(n, rng)
    v, w, both = (
        strata_values(*drawn(u, least_budget(n) + more, seed)).values for u in (first, second, a * first + b * second)
    )
    assert both == pytest.approx(a * v + b * w, abs=1e-8)


def test_no_members_have_no_values():
    assert strata_values(np.zeros((0, 0), dtype=bool), np.zeros(0)).values.shape == (0,)


@pytest.mark.parametrize("game", [random_game, averaging_game])
@pytest.mark.parametrize("kernel", [smooth, quadratic])
def test_estimates_are_unbiased(game, kernel):
    """The mean of R independent estimates is nearly normal around the truth with standard deviation σ/√R; that one of
    six clients is further than 4 of them off has chance 4e-4."""
    utilities = game(6, np.random.default_rng(3))
    values, _ = many(utilities, 32, 500, kernel=kernel)
    off = values.mean(axis=0) - shapley_values(utilities)
    assert (np.abs(off) <= 4 * values.std(axis=0, ddof=1) / math.sqrt(len(values))).all()


def test_estimates_are_unbiased_when_the_surrogate_is_trained_on_some_of_them(monkeypatch):
    """As above."""
    monkeypatch.setattr(strata, "MOST_TRAINED", 20)
    utilities = random_game(6, np.random.default_rng(4))
    values, _ = many(utilities, 40, 500)
    off = values.mean(axis=0) - shapley_values(utilities)
    assert (np.abs(off) <= 4 * values.std(axis=0, ddof=1) / math.sqrt(len(values))).all()


def test_equal_clients_are_equal_in_expectation():
    """As above, for the difference."""
    utilities = averaging_game(6, np.random.default_rng(5)).reshape(4, 2, 2, 2, 2)
    utilities = ((utilities + utilities.swapaxes(1, 4)) / 2).reshape(-1)  # clients 0 and 3 exchanged changes nothing
    assert shapley_values(utilities)[0] == pytest.approx(shapley_values(utilities)[3])
    gaps = np.diff(many(utilities, 30, 500)[0][:, [0, 3]], axis=1)
    assert abs(gaps.mean()) <= 4 * gaps.std(ddof=1) / math.sqrt(len(gaps))


@pytest.mark.parametrize("game", [random_game, averaging_game])
def test_standard_errors_are_as_large_as_the_errors(game):
    """z² has mean near 1. Errors of one design's clients add to nothing, so R designs of eight clients give at least R
    independent z²; Var z² ≤ 3 with few draws a stratum, and the mean is within 5 √(3/R) = 0.5 of what it should be,
    which is 0.93 to 1.14 as measured on other games. Intervals of 1.96 are to hold nine in ten."""
    utilities = game(8, np.random.default_rng(6))
    values, errors = many(utilities, 90, 300)
    z = (values - shapley_values(utilities)) / errors
    ratio = ((values - shapley_values(utilities)) ** 2).mean() / (errors**2).mean()
    assert 0.93 - 0.5 < ratio < 1.14 + 0.5
    assert (np.abs(z) < 1.96).mean() > 0.9


def test_quadratic_games_are_exact_with_a_quadratic_surrogate():
    utilities = quadratic_game(9, np.random.default_rng(7))
    true = shapley_values(utilities)
    found = strata_values(*drawn(utilities, 120, 0), kernel=quadratic)
    assert found.values == pytest.approx(true, abs=1e-4 * np.abs(true).max())
    assert (found.standard_errors < 1e-4 * np.abs(true).max()).all()


def test_the_surrogate_lowers_the_error_of_a_federation_like_game():
    utilities = averaging_game(10, np.random.default_rng(8))
    true = shapley_values(utilities)
    plain, quadratics, smooths = (
        float(np.sqrt(((many(utilities, 165, 20, kernel=k)[0] - true) ** 2).mean()))
        for k in (constant, quadratic, smooth)
    )
    assert smooths < quadratics < plain / 4


@pytest.mark.parametrize("kernel", [smooth, quadratic])
@given(n=st.integers(2, 7), data=st.data())
def test_contrasts_of_the_kernel_are_those_over_all_coalitions(kernel, n, data):
    size, other = data.draw(st.integers(1, n - 1)), data.draw(st.integers(1, n))
    anchor = (np.arange(n) < other)[None]
    coalitions = np.array([np.isin(np.arange(n), chosen) for chosen in combinations(range(n), size)])
    similar = similarities(coalitions, anchor, kernel)[:, 0]
    by_client = [similar[c].mean() - similar[~c].mean() for c in coalitions.T]
    slope = slopes(n, size, kernel)[other]
    expected = np.where(anchor[0], slope, -slope * other / max(n - other, 1))
    assert by_client == pytest.approx(expected, abs=1e-12)


def test_leaving_out_is_the_same_as_fitting_again():
    utilities = averaging_game(6, np.random.default_rng(10))
    design, seen = drawn(utilities, 35, 1)
    surrogate = fit(design, seen, 0.5)
    for k in (0, 17, 30):
        rest = np.arange(len(design)) != k
        again = fit(design[rest], seen[rest], 0.5)  # the kernel's height is the same everywhere, so is the noise
        missed = seen[k] - again.at(design[k : k + 1], again.coefficients[:, None])[0, 0]
        assert surrogate.errors_left_out[k] == pytest.approx(missed, rel=1e-6)
        assert surrogate.leaving_out(np.array([k]), 1)[rest] == pytest.approx(again.coefficients, rel=1e-6, abs=1e-6)


def test_the_estimate_is_that_of_the_proof():
    """One left-out surrogate after the other, each summed over all coalitions of the stratum."""
    n, size = 6, 3
    utilities = averaging_game(n, np.random.default_rng(11))
    design, seen = drawn(utilities, 35, 2)
    everyone = np.array([np.isin(np.arange(n), chosen) for chosen in combinations(range(n), size)])
    rows = np.flatnonzero(design.sum(axis=1) == size)
    shares = np.full(len(rows), 1 / len(everyone))
    total = np.zeros(n)
    for k, row in enumerate(rows):
        rest = np.arange(len(design)) != row
        again = fit(design[rest], seen[rest], utilities[-1])
        of_all = again.at(everyone, again.coefficients[:, None])[:, 0]
        missed = seen[rows] - again.at(design[rows], again.coefficients[:, None])[:, 0]
        weights = np.where(np.arange(len(rows)) == k, 1 - (len(rows) - 1) / len(everyone), shares)
        total += contrasts(everyone).T @ of_all / len(everyone) + contrasts(design[rows]).T @ (weights * missed)
    surrogate = fit(design, seen, utilities[-1])
    found, _ = strata._stratum(
        surrogate, np.arange(len(design)), design[rows], contrasts(design[rows]), seen[rows], rows
    )
    assert found == pytest.approx(total / len(rows), abs=1e-9)


def contrasts(coalitions):
    share = coalitions.mean(axis=1)[:, None]
    return (coalitions - share) / (share * (1 - share))


def test_a_hundred_members_are_valued():
    """U(S) the members' mean worth: A_{s,i} = (a_i − ā) n/(n−1) / s, so v_i = ā/n + (a_i − ā) H_{n−1}/(n−1). All are
    within 5 standard errors, with chance 1 − 6e-5 for a hundred normal ones, and these are small."""
    n = 100
    worth = np.random.default_rng(12).normal(size=n)
    design = draw_design(np.arange(n), n, 2000, rng=np.random.default_rng(13))
    found = strata_values(design, design @ worth / design.sum(axis=1))
    harmonic = sum(1 / s for s in range(1, n))
    expected = worth.mean() / n + (worth - worth.mean()) * harmonic / (n - 1)
    assert (np.abs(found.values - expected) < 5 * found.standard_errors).all()
    assert (found.standard_errors < 0.02 * expected.std()).all()


def test_the_same_design_gives_the_same_bytes():
    design, seen = drawn(averaging_game(8, np.random.default_rng(14)), 90, 3)
    first, again = (strata_values(design, seen) for _ in range(2))
    assert first.values.tobytes() == again.values.tobytes()
    assert first.covariance.tobytes() == again.covariance.tobytes()


@pytest.mark.parametrize("broken", [np.zeros(6), np.full(7, np.nan)])
def test_utilities_that_are_missing_are_refused(broken):
    design = draw_design(np.arange(3), 3, 7, rng=np.random.default_rng(0))
    with pytest.raises(ValuationError, match="expected a known one for each of 7 coalitions"):
        strata_values(design, broken)


def stratified_matrix(utilities, rows, budget=None):
    """Rounds with the same game, each with a design of its participants."""
    n, rng = rows.shape[1], np.random.default_rng(15)
    members = [np.flatnonzero(row) for row in rows]
    designs = tuple(draw_design(m, n, budget or default_budget(len(m)), rng=rng) for m in members)
    cells = [(design, utilities[design @ (1 << np.arange(n))]) for design in designs]
    return matrix_from_cells(tuple("abcdefgh"[:n]), rows, cells, round_designs=designs)


def test_fedsv_and_the_heard_round_come_from_the_designs_and_say_so():
    utilities = averaging_game(8, np.random.default_rng(16))
    rows = np.array([[True] * 8, [True, True, False, True, False, False, False, False]])
    matrix = stratified_matrix(utilities, rows)
    fedsv, heard = value(matrix, "fedsv"), value(matrix, "heard-round")
    assert fedsv.warnings == ("stratified Monte Carlo with a surrogate over 7 to 108 evaluations a round",)
    assert heard.warnings == ("stratified Monte Carlo with a surrogate over 108 evaluations",)
    members = np.flatnonzero(rows[1])
    second = np.zeros(8)
    second[members] = shapley_values(
        np.concatenate([[0.0], utilities[coalitions_of(members, 8)[1:] @ (1 << np.arange(8))]])
    )
    true = shapley_values(utilities)
    assert heard.values == pytest.approx(true, abs=0.05 * true.std())
    assert fedsv.values == pytest.approx(heard.values + second, abs=1e-12)
    assert fedsv.standard_errors == pytest.approx(heard.standard_errors)


def test_a_design_that_was_not_measured_whole_is_refused():
    matrix = stratified_matrix(averaging_game(6, np.random.default_rng(17)), np.ones((1, 6), dtype=bool))
    with pytest.raises(ValuationError, match="were not seen"):
        value(matrix.within(matrix.coalitions[:-3]), "fedsv")


def test_designs_are_read_as_they_were_written(tmp_path):
    rows = np.array([[True] * 5, [True, True, False, True, False]])
    matrix = stratified_matrix(averaging_game(5, np.random.default_rng(18)), rows)
    save_utilities(matrix, tmp_path / "u.npz")
    again = load_utilities(tmp_path / "u.npz")
    assert matrix.round_designs is not None
    assert again.round_designs is not None
    assert all(np.array_equal(a, b) for a, b in zip(matrix.round_designs, again.round_designs, strict=True))
    assert value(again, "fedsv").values.tobytes() == value(matrix, "fedsv").values.tobytes()


def test_small_rounds_of_a_federation_are_exact(tiny_ledger, tiny_task):
    """Five heard in the first round are estimated, two later exact."""
    rows, oracle = participation(tiny_ledger), LoopOracle(tiny_task)
    plan = plan_prefixes(rows, sampler="stratified", rng=np.random.default_rng(0))
    found = value(observe(tiny_ledger, oracle, plan), "fedsv-later")
    exact = value(observe(tiny_ledger, oracle, plan_exact(rows)), "fedsv-later")
    assert found.values == pytest.approx(exact.values, abs=1e-12)
    assert found.standard_errors == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ([], "stratified Monte Carlo with a surrogate over 3 to 22 evaluations a round"),
        (["--sampler", "permutations"], "Monte Carlo over 2 to 10 permutations a round"),
    ],
)
def test_the_command_line_measures_a_design_unless_told_otherwise(tiny_ledger, tmp_path, capsys, options, expected):
    out = str(tmp_path / "u.npz")
    assert (
        main(["observe", str(tiny_ledger.folder), "--permutations", "auto", *options, "--no-cache", "--out", out]) == 0
    )
    assert main(["value", out, "--method", "fedsv"]) == 0
    assert f"warning: {expected}" in capsys.readouterr().err
