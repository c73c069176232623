"""Reference results of an independent implementation, reproduced through the public functions and through files."""

import numpy as np
import pytest

from fedworth.coalitions import coalitions_of
from fedworth.completion.factors import FactorSettings, complete
from fedworth.completion.solver import Status, collapse_penalty_of
from fedworth.games.matrix import UtilityMatrix, matrix_from_cells
from fedworth.games.matrix_file import load_utilities
from fedworth.theory.fairness import completeness
from fedworth.valuation.baselines import heard_round, truth
from fedworth.valuation.comfedsv import comfedsv
from fedworth.valuation.fedsv import fedsv, rounds_of
from fedworth.valuation.permutations import permutation_values
from fedworth.valuation.shapley import shapley_values
from fedworth.valuation.value import value
from tests.support.games import factors_completion, matrix_of

NAMES = ("a", "b", "c", "d")


def exactly(expected):
    return pytest.approx(expected, rel=1e-9, abs=1e-12)


def memberships(integers, n_clients):
    """Coalitions given as integers, bit i for client i."""
    return (np.asarray(integers)[:, None] >> np.arange(n_clients) & 1).astype(bool)


def bring(path, utilities, n_clients, participants, **more):
    """Write a file as anyone with coalition values would."""
    np.savez(
        path,
        utilities=utilities,
        coalitions=coalitions_of(np.arange(n_clients), n_clients),
        participants=participants,
        **more,
    )
    return path


def seen_only(g):
    return np.where(g["obs"], g["U"], np.nan)


def g4e_participants(g):
    """g4e does not name its participants: they are the clients seen alone."""
    return g["obs"][:, 1 << np.arange(int(g["N"]))]


# g1: combinatorics


@pytest.fixture
def g1(golden):
    return golden("g1_combinatorics")


def test_the_shapley_values_of_each_round(g1):
    assert np.array([shapley_values(row) for row in g1["U"]]) == exactly(g1["out_shapley_per_round"])


def test_the_ground_truth(g1):
    assert truth(matrix_of(g1["U"], g1["sel"], is_truth=True)).values == exactly(g1["out_ground_truth"])


def test_exact_fedsv_by_round_and_summed(g1):
    matrix = matrix_of(g1["U"], g1["sel"])
    assert rounds_of(matrix)[0] == exactly(g1["out_fedsv_rounds"])
    assert fedsv(matrix).values == exactly(g1["out_fedsv"])


def test_monte_carlo_fedsv_on_the_given_permutations(g1):
    permutations = tuple(g1[f"round_perms_{t}"] for t in range(5))
    matrix = matrix_of(g1["U"], g1["sel"], round_permutations=permutations)
    assert rounds_of(matrix)[0] == exactly(g1["out_fedsv_mc_rounds"])
    assert fedsv(matrix).values == exactly(g1["out_fedsv_mc"])


def test_the_permutation_estimate_from_true_utilities(g1):
    found = truth(matrix_of(g1["U"], g1["sel"], is_truth=True, permutations=g1["perms"]))
    assert found.values == exactly(g1["out_mc_with_true_utilities"])


def heard_by_all(g, **permutations) -> UtilityMatrix:
    """Who took part does not enter ComFedSV from given factors; here everyone, so that everyone is valued."""
    return matrix_of(g["U"], np.ones_like(g["sel"]), **permutations)


def test_comfedsv_from_given_factors(g1):
    W, H = g1["W_full"], g1["H_full"]
    completion = factors_completion(NAMES, memberships(np.arange(16), 4), W, H)
    assert comfedsv(heard_by_all(g1), completion).values == exactly(g1["out_comfedsv_from_factors"])
    assert shapley_values((W @ H.T).sum(axis=0)) == exactly(g1["out_comfedsv_from_factors"])


def test_comfedsv_by_prefixes_from_given_factors(g1):
    W, H, sets = g1["W_prefix"], g1["H_prefix"], g1["prefix_sets"]
    completion = factors_completion(NAMES, memberships(sets, 4), W, H)
    found = comfedsv(heard_by_all(g1, permutations=g1["perms"]), completion)
    assert found.values == exactly(g1["out_comfedsv_mc_from_factors"])


def test_the_same_from_a_brought_file(g1, tmp_path):
    seen = np.where(~(memberships(np.arange(16), 4)[None] & ~g1["sel"][:, None]).any(axis=2), g1["U"], np.nan)
    matrix = load_utilities(bring(tmp_path / "seen.npz", seen, 4, g1["sel"]))
    assert value(matrix, "fedsv").values == exactly(g1["out_fedsv"])
    full = bring(tmp_path / "full.npz", g1["U"], 4, g1["sel"])
    assert value(load_utilities(full, is_truth=True), "truth").values == exactly(g1["out_ground_truth"])
    sampled = bring(tmp_path / "sampled.npz", g1["U"], 4, g1["sel"], permutations=g1["perms"])
    found = value(load_utilities(sampled, is_truth=True), "truth")
    assert found.values == exactly(g1["out_mc_with_true_utilities"])
    rounds = {f"round_permutations_{t}": g1[f"round_perms_{t}"] for t in range(5)}
    estimated = load_utilities(bring(tmp_path / "rounds.npz", seen, 4, g1["sel"], **rounds))
    assert value(estimated, "fedsv").values == exactly(g1["out_fedsv_mc"])


# g4: completions


@pytest.fixture
def uniform(golden):
    return golden("g4a_als_logreg")


@pytest.fixture
def counts(golden):
    return golden("g4e_als_weighted")


def completed(completion):
    """The completed matrix, its columns in the order of the coalitions' integers."""
    n_clients = len(completion.clients)
    return completion.estimates(memberships(np.arange(2**n_clients), n_clients))


@pytest.mark.parametrize("rank", [1, 2, 5, 6, 9])
def test_any_rank_reaches_the_certified_optimum_of_the_uniform_penalty(uniform, rank):
    matrix = matrix_of(uniform["U"], uniform["sel"])
    assert rank >= uniform["out_rank"]
    completion = complete(matrix, FactorSettings(rank, penalty=float(uniform["lam"]), penalty_kind="uniform"))
    assert completion.status is Status.CERTIFIED
    assert completion.spectral_ratio <= 1 + 1e-9
    estimates = completed(completion)
    assert estimates == pytest.approx(uniform["out_X"], rel=1e-9, abs=1e-12)
    assert completion.objective == exactly(float(uniform["out_objective"]))
    assert comfedsv(matrix, completion).values == pytest.approx(uniform["out_comfedsv"], rel=1e-9, abs=1e-12)
    assert completeness(uniform["U"], estimates) == pytest.approx(float(uniform["out_delta"]), rel=1e-9)


def test_the_penalties_at_which_everything_collapses(uniform):
    matrix = matrix_of(uniform["U"], uniform["sel"])
    assert collapse_penalty_of(matrix, "uniform") == exactly(float(uniform["lam_collapse"]))
    assert collapse_penalty_of(matrix, "counts") == exactly(float(uniform["lam_collapse_weighted"]))


def test_the_truth_behind_the_completion(uniform):
    matrix = matrix_of(uniform["U"], uniform["sel"], is_truth=True)
    assert truth(matrix).values == exactly(uniform["out_ground_truth"])


@pytest.mark.parametrize("rank", [3, 6, 9])
def test_the_optimum_of_the_counts_penalty(counts, rank):
    matrix = matrix_of(counts["U"], g4e_participants(counts))
    completion = complete(matrix, FactorSettings(rank, penalty=float(counts["lam"]), penalty_kind="counts"))
    assert completion.status is Status.CERTIFIED
    assert completed(completion) == pytest.approx(counts["out_X"], rel=1e-9, abs=1e-12)
    assert completion.objective == exactly(float(counts["out_objective"]))
    assert comfedsv(matrix, completion).values == pytest.approx(counts["out_comfedsv"], rel=1e-9, abs=1e-12)


def test_the_seen_cells_are_those_of_the_participants(uniform, counts):
    for g, participants in ((uniform, uniform["sel"]), (counts, g4e_participants(counts))):
        outside = (memberships(np.arange(64), 6)[None] & ~participants[:, None]).any(axis=2)
        assert np.array_equal(g["obs"] | ~outside, ~outside)


@pytest.mark.parametrize("kind", ["uniform", "counts"])
def test_the_completion_from_a_brought_file(golden, kind, tmp_path):
    g = golden("g4a_als_logreg" if kind == "uniform" else "g4e_als_weighted")
    participants = g["sel"] if kind == "uniform" else g4e_participants(g)
    matrix = load_utilities(bring(tmp_path / "brought.npz", seen_only(g), 6, participants))
    settings = FactorSettings(6, penalty=float(g["lam"]), penalty_kind=kind)
    found = value(matrix, "comfedsv", settings=settings)
    assert found.values == pytest.approx(g["out_comfedsv"], rel=1e-9, abs=1e-12)
    assert found.completion is not None
    assert found.completion["objective"] == exactly(float(g["out_objective"]))
    assert found.completion["status"] == Status.CERTIFIED


def test_the_heard_round_of_the_golden_federation(uniform):
    matrix = matrix_of(uniform["U"], uniform["sel"])
    assert heard_round(matrix).values == exactly(shapley_values(uniform["U"][0]))


def test_prefix_estimates_need_only_the_prefixes(g1):
    columns = [0, 1, 3, 7, 15]
    rows = [(memberships(columns, 4), row[columns]) for row in g1["U"]]
    permutations = np.array([[0, 1, 2, 3]])
    matrix = matrix_from_cells(NAMES, g1["sel"], rows, permutations=permutations, is_truth=True)
    expected, _ = permutation_values(g1["U"].sum(axis=0)[None, columns], permutations, 4)
    assert truth(matrix).values == exactly(expected)
