"""Reference results of an independent implementation, reproduced through the public functions and through files."""

import numpy as np
import pytest

from fedworth.coalitions import coalitions_of
from fedworth.completion.factors import complete
from fedworth.completion.settings import FactorSettings
from fedworth.completion.solver import Status, collapse_penalty, problem_of
from fedworth.games.matrix import UtilityMatrix
from fedworth.games.permutations import permutation_shapley
from fedworth.games.shapley import shapley_values
from fedworth.theory.fairness import completeness
from fedworth.valuation.federation import value
from fedworth.valuation.settings import ValuationSettings
from tests.support.games import ArrayGame, factors_completion, matrix_of

NAMES = ("a", "b", "c", "d")


def exactly(expected):
    return pytest.approx(expected, rel=1e-9, abs=1e-12)


def memberships(integers, n_clients):
    """Coalitions given as integers, bit i for client i."""
    return (np.asarray(integers)[:, None] >> np.arange(n_clients) & 1).astype(bool)


def bring(path, utilities, n_clients, participants, **more):
    """Write a file as anyone with coalition values would."""
    coalitions = coalitions_of(np.arange(n_clients), n_clients)
    np.savez(path, utilities=utilities, coalitions=coalitions, participants=participants, **more)
    return path


def g4e_participants(g):
    """g4e does not name its participants: they are the clients seen alone."""
    return g["obs"][:, 1 << np.arange(int(g["N"]))]


def with_factors(g, **changes):
    return ValuationSettings(factors=FactorSettings(penalty=float(g["lam"]), **changes))


# g1: combinatorics


@pytest.fixture
def g1(golden):
    return golden("g1_combinatorics")


def test_the_shapley_values_of_each_round(g1):
    assert np.array([shapley_values(row) for row in g1["U"]]) == exactly(g1["out_shapley_per_round"])


def test_the_ground_truth_is_fedsv_with_everyone_in_every_round(g1):
    found = value(matrix_of(g1["U"], np.ones_like(g1["sel"])), "fedsv")
    assert found.values == exactly(g1["out_ground_truth"])


def test_exact_fedsv_by_round_and_summed(g1):
    found = value(matrix_of(g1["U"], g1["sel"]), "fedsv")
    assert found.by_round == exactly(g1["out_fedsv_rounds"])
    assert found.values == exactly(g1["out_fedsv"])


def test_monte_carlo_fedsv_on_the_given_permutations(g1):
    found = np.zeros_like(g1["out_fedsv_mc_rounds"])
    for t, present in enumerate(g1["sel"]):
        members = np.flatnonzero(present)
        inside = [
            sum(1 << int(members[b]) for b in range(len(members)) if c >> b & 1) for c in range(2 ** len(members))
        ]
        game = ArrayGame(g1["U"][t, inside], members)
        found[t, members] = permutation_shapley(game, g1[f"round_perms_{t}"]).totals
    assert found == exactly(g1["out_fedsv_mc_rounds"])
    assert found.sum(axis=0) == exactly(g1["out_fedsv_mc"])


def test_the_permutation_estimate_from_true_utilities(g1):
    found = permutation_shapley(ArrayGame(g1["U"].sum(axis=0)), g1["perms"])
    assert found.totals == exactly(g1["out_mc_with_true_utilities"])


def test_comfedsv_from_given_factors(g1):
    W, H = g1["W_full"], g1["H_full"]
    completion = factors_completion(NAMES, memberships(np.arange(16), 4), W, H)
    utilities = [completion.game(t).utilities(memberships(np.arange(16), 4))[:, 0] for t in range(len(W))]
    assert shapley_values(np.sum(utilities, axis=0)) == exactly(g1["out_comfedsv_from_factors"])


def test_comfedsv_by_prefixes_from_given_factors(g1):
    W, H, sets = g1["W_prefix"], g1["H_prefix"], g1["prefix_sets"]
    completion = factors_completion(NAMES, memberships(sets, 4), W, H)
    found = [permutation_shapley(completion.game(t), g1["perms"]).totals for t in range(len(W))]
    assert np.sum(found, axis=0) == exactly(g1["out_comfedsv_mc_from_factors"])


def test_the_same_from_a_brought_file(g1, tmp_path):
    seen = np.where(~(memberships(np.arange(16), 4)[None] & ~g1["sel"][:, None]).any(axis=2), g1["U"], np.nan)
    matrix = UtilityMatrix.load(bring(tmp_path / "seen.npz", seen, 4, g1["sel"]))
    assert value(matrix, "fedsv").values == exactly(g1["out_fedsv"])


# g4: completions


@pytest.fixture
def uniform(golden):
    return golden("g4a_als_logreg")


@pytest.fixture
def counts(golden):
    return golden("g4e_als_weighted")


def completed(completion):
    """The completed matrix, its columns in the order of the coalitions' integers."""
    n = len(completion.clients)
    games = [completion.game(t) for t in range(completion.n_rounds)]
    return np.stack([game.utilities(memberships(np.arange(2**n), n)).sum(axis=1) for game in games])


@pytest.mark.parametrize("rank", [1, 2, 5, 6, 9])
def test_any_rank_reaches_the_certified_optimum_of_the_uniform_penalty(uniform, rank):
    matrix = matrix_of(uniform["U"], uniform["sel"])
    assert rank >= uniform["out_rank"]
    completion = complete(matrix, FactorSettings(rank, penalty=float(uniform["lam"]), penalty_kind="uniform"))
    assert completion.status is Status.CERTIFIED
    assert completion.spectral_ratio <= 1 + 1e-9
    assert completed(completion) == exactly(uniform["out_X"])
    assert completion.objective == exactly(float(uniform["out_objective"]))
    assert shapley_values(completed(completion).sum(axis=0)) == exactly(uniform["out_comfedsv"])
    assert completeness(uniform["U"], completed(completion)) == pytest.approx(float(uniform["out_delta"]), rel=1e-9)


def test_the_penalties_at_which_everything_collapses(uniform):
    matrix = matrix_of(uniform["U"], uniform["sel"])
    assert collapse_penalty(problem_of(matrix, "uniform")) == exactly(float(uniform["lam_collapse"]))
    assert collapse_penalty(problem_of(matrix, "counts")) == exactly(float(uniform["lam_collapse_weighted"]))


@pytest.mark.parametrize("rank", [3, 6, 9])
def test_the_optimum_of_the_counts_penalty(counts, rank):
    matrix = matrix_of(counts["U"], g4e_participants(counts))
    completion = complete(matrix, FactorSettings(rank, penalty=float(counts["lam"]), penalty_kind="counts"))
    assert completion.status is Status.CERTIFIED
    assert completed(completion) == exactly(counts["out_X"])
    assert completion.objective == exactly(float(counts["out_objective"]))
    assert shapley_values(completed(completion).sum(axis=0)) == exactly(counts["out_comfedsv"])


@pytest.mark.parametrize("kind", ["uniform", "counts"])
def test_the_completion_from_a_brought_file(golden, kind, tmp_path):
    g = golden("g4a_als_logreg" if kind == "uniform" else "g4e_als_weighted")
    participants = g["sel"] if kind == "uniform" else g4e_participants(g)
    seen = np.where(g["obs"], g["U"], np.nan)
    matrix = UtilityMatrix.load(bring(tmp_path / "brought.npz", seen, 6, participants))
    found = value(matrix, "comfedsv", with_factors(g, rank=6, penalty_kind=kind))
    assert found.values == exactly(g["out_comfedsv"])
    assert found.completion is not None
    assert found.completion["objective"] == exactly(float(g["out_objective"]))
    assert found.completion["status"] == Status.CERTIFIED


def test_the_all_clients_round_of_the_golden_federation(uniform):
    matrix = matrix_of(uniform["U"], uniform["sel"])
    assert value(matrix, "all-clients-round").values == exactly(shapley_values(uniform["U"][0]))
