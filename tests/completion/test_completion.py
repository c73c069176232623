"""The completion: an estimate for every seen column and no other, and the same bytes twice."""

import dataclasses
import io

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedworth.coalitions import coalitions_of
from fedworth.completion.als import Status
from fedworth.completion.complete import FactorSettings, complete
from fedworth.completion.completion import FactorCompletion
from fedworth.completion.completion_file import load_completion, load_factors, save_completion
from fedworth.completion.problem import problem_of
from fedworth.completion.solver import collapse_penalty_of
from fedworth.errors import ArtefactError, CompletionError, UnseenError, UsageError
from fedworth.games.matrix import needed_columns
from tests.support.games import factors_completion, federation, large_federation, low_rank, matrix_of, participation


def equal(one: FactorCompletion, two: FactorCompletion) -> bool:
    return all(np.array_equal(getattr(one, f.name), getattr(two, f.name)) for f in dataclasses.fields(one))


def test_the_default_is_rank_5_and_a_hundredth_of_the_collapse_penalty_by_counts():
    _, matrix = federation(0)
    completion = complete(matrix)
    limit = collapse_penalty_of(matrix, "counts")
    assert (completion.rank, completion.penalty_kind) == (5, "counts")
    assert completion.penalty == pytest.approx(0.01 * limit, rel=1e-12)
    assert completion.relative_penalty == pytest.approx(0.01, rel=1e-12)
    assert completion.status is Status.CERTIFIED


def test_an_absolute_penalty_is_taken_as_it_is():
    _, matrix = federation(0)
    completion = complete(matrix, FactorSettings(penalty=0.2, penalty_kind="uniform"))
    assert completion.penalty == 0.2
    assert completion.relative_penalty == pytest.approx(0.2 / collapse_penalty_of(matrix, "uniform"), rel=1e-12)


def test_the_summary_says_what_was_reached():
    _, matrix = federation(1)
    completion = complete(matrix, FactorSettings(rank=2))
    problem = problem_of(matrix, "counts")
    W, H = completion.round_factors, completion.coalition_factors
    assert completion.objective == pytest.approx(problem.objective(W, H, completion.penalty), rel=1e-12)
    left = problem.residuals(W, H)
    assert completion.residual == pytest.approx(np.linalg.norm(left) / np.linalg.norm(problem.values), rel=1e-12)
    keys = {"rank", "penalty", "penalty_kind", "objective", "status", "stationarity", "spectral_ratio"}
    assert keys <= set(completion.summary())


def test_estimates_are_the_product_of_the_factors_and_totals_their_sum():
    _, matrix = federation(2)
    completion = complete(matrix)
    X = completion.round_factors @ completion.coalition_factors.T
    wanted = matrix.coalitions[[7, 3, 3]]
    assert np.array_equal(completion.estimates(wanted), X[:, [7, 3, 3]])
    assert completion.totals(wanted) == pytest.approx(X[:, [7, 3, 3]].sum(axis=0), rel=1e-12)
    assert completion.variances(wanted) is None
    assert completion.n_rounds == 6


def test_the_true_cells_of_a_low_rank_matrix_are_found():
    rng = np.random.default_rng(3)
    truth = low_rank(20, 5, 1, rng)
    matrix = matrix_of(truth, participation(20, 5, 3, rng))
    completion = complete(matrix, FactorSettings(rank=1, relative_penalty=1e-4))
    found = completion.estimates(coalitions_of(np.arange(5), 5))
    assert np.linalg.norm(found - truth) < 0.02 * np.linalg.norm(truth)


def test_a_coalition_that_no_round_has_shown_is_refused():
    utilities, _ = federation(4)
    participants = np.zeros((6, 5), dtype=bool)
    participants[:, :2], participants[3:, 2] = True, True
    completion = complete(matrix_of(utilities, participants))
    everyone = np.ones((1, 5), dtype=bool)
    assert completion.has(everyone).tolist() == [False]
    with pytest.raises(UnseenError, match=r"1 of 1 coalitions were never seen, the first \{a, b, c, d, e\}.*--unseen"):
        completion.estimates(everyone)
    with pytest.raises(UnseenError):
        completion.totals(everyone)


def test_with_permutations_only_their_prefixes_are_completed():
    utilities, matrix = federation(5)
    permutations = np.array([[0, 1, 2, 3, 4], [4, 3, 2, 1, 0], [0, 1, 2, 4, 3]])
    reduced = matrix_of(utilities, matrix.participants, permutations=permutations)
    completion = complete(reduced)
    assert len(completion.coalitions) == len(needed_columns(reduced)) == 1 + 2 + 2 + 2 + 3 + 1  # ∅ to everyone
    assert completion.has(needed_columns(reduced)).all()


def test_the_truth_is_not_completed():
    utilities, matrix = federation(6)
    truth = matrix_of(utilities, matrix.participants, is_truth=True)
    with pytest.raises(CompletionError, match="holds the truth"):
        complete(truth)
    assert equal(complete(truth.seen_part()), complete(matrix))


def test_a_matrix_of_zeros_is_refused():
    with pytest.raises(CompletionError, match="nothing to complete from"):
        complete(matrix_of(np.zeros((2, 4)), [[True, True], [True, False]]))


def test_a_penalty_beyond_the_collapse_is_refused():
    _, matrix = federation(7)
    for too_much in (FactorSettings(relative_penalty=1.0), FactorSettings(penalty=1e9)):
        with pytest.raises(CompletionError, match="λ_collapse"):
            complete(matrix, too_much)


def test_too_few_sweeps_are_reported():
    _, matrix = federation(8)
    completion = complete(matrix, FactorSettings(relative_penalty=1e-4, max_sweeps=1))
    assert completion.status is Status.MAX_SWEEPS
    assert completion.summary()["status"].startswith("stopped at max_sweeps")


@pytest.mark.parametrize("bad", [{"rank": 0}, {"max_sweeps": 0}])
def test_settings_without_a_rank_or_a_sweep_are_refused(bad):
    with pytest.raises(CompletionError, match="expected 1 or more"):
        FactorSettings(**bad)


def test_an_unknown_penalty_kind_is_refused_with_the_nearest_name():
    with pytest.raises(UsageError, match="did you mean 'counts'"):
        FactorSettings(penalty_kind="count")  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["uniform", "counts"])
def test_two_runs_give_equal_bytes(kind, tmp_path):
    for name in ("one", "two"):
        save_completion(complete(federation(9)[1], FactorSettings(penalty_kind=kind)), tmp_path / name)
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()


@settings(max_examples=20)
@given(st.integers(0, 1000))
def test_a_completion_comes_back_from_disk_as_it_was(tmp_path_factory, seed):
    completion = complete(federation(seed, n_rounds=3, n_clients=3)[1], FactorSettings(rank=2))
    path = tmp_path_factory.mktemp("completion") / "completion.npz"
    save_completion(completion, path)
    assert equal(load_factors(path), completion)


@pytest.mark.parametrize("name", ["rank", "round_factors", "status"])
def test_a_file_that_is_not_a_completion_is_refused(name, tmp_path):
    path = tmp_path / "completion.npz"
    save_completion(complete(federation(10)[1]), path)
    with np.load(path) as file:
        arrays = {key: file[key] for key in file.files if key != name}
    np.savez(path, allow_pickle=False, **arrays)
    with pytest.raises(ArtefactError, match=f"not a completion.*{name}"):
        load_completion(path)
    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=False, **(arrays | {name: np.array("what")}))
    path.write_bytes(buffer.getvalue())
    with pytest.raises(ArtefactError):
        load_completion(path)


def test_factors_of_the_wrong_shape_or_not_finite_are_refused():
    coalitions, W, H = coalitions_of(np.arange(2), 2), np.ones((3, 2)), np.ones((4, 2))
    factors_completion(("a", "b"), coalitions, W, H)
    with pytest.raises(ArtefactError, match="factors of shapes"):
        factors_completion(("a", "b"), coalitions, W, H[:3])
    with pytest.raises(ArtefactError, match="factors of shapes"):
        factors_completion(("a", "b"), coalitions, W, np.ones((4, 3)))
    with pytest.raises(ArtefactError, match="not finite"):
        factors_completion(("a", "b"), coalitions, W * np.nan, H)


def test_a_large_reduced_matrix_is_completed():
    matrix = large_federation(50, 15, 50, 100)
    completion = complete(matrix)
    assert completion.status is Status.CERTIFIED  # the default rank, 5, is enough for these orders
    assert completion.stationarity < 1e-8
    assert completion.has(needed_columns(matrix)).all()
    assert completion.residual < 0.2


def test_a_start_of_another_shape_is_refused():
    with pytest.raises(CompletionError, match="start of shape"):
        complete(federation(10)[1], start=np.zeros((1, 5)))
