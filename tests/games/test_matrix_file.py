"""Utility matrices on disk: both formats read back what was meant, and nothing else is accepted."""

from dataclasses import fields

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedworth.coalitions import coalitions_of
from fedworth.errors import ArtefactError, UtilityError
from fedworth.games.matrix import UtilityMatrix, matrix_from_cells
from fedworth.games.matrix_file import load_utilities, save_utilities
from fedworth.games.squares import draw_permutations

COALITIONS = np.array([[1, 0], [0, 1], [1, 1]], dtype=bool)
PARTICIPANTS = np.array([[True, True], [True, False]])
UTILITIES = np.array([[1.0, np.nan, 3.0], [0.5, np.nan, np.nan]])


def bring(folder, **changes):
    """A file as someone else would write it; None leaves an array out."""
    arrays = {"utilities": UTILITIES, "coalitions": COALITIONS, "participants": PARTICIPANTS, **changes}
    np.savez(folder / "brought.npz", **{key: array for key, array in arrays.items() if array is not None})
    return folder / "brought.npz"


def written(folder, **changes):
    """A file as `observe` would write it, then tampered with."""
    save_utilities(load_utilities(bring(folder)), folder / "written.npz")
    with np.load(folder / "written.npz") as file:
        arrays = {**{name: file[name] for name in file.files}, **changes}
    np.savez(folder / "written.npz", **{key: array for key, array in arrays.items() if array is not None})
    return folder / "written.npz"


def same(a: UtilityMatrix, b: UtilityMatrix) -> bool:
    return all(_same(getattr(a, field.name), getattr(b, field.name)) for field in fields(UtilityMatrix))


def _same(a: object, b: object) -> bool:
    if isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
        return a.dtype == b.dtype and np.array_equal(a, b)
    if isinstance(a, tuple) and isinstance(b, tuple):
        return len(a) == len(b) and all(_same(x, y) for x, y in zip(a, b, strict=True))
    return a == b


@st.composite
def matrices(draw):
    n_clients, n_rounds = draw(st.integers(1, 5)), draw(st.integers(1, 4))
    is_truth, with_permutations, with_round_permutations = draw(st.booleans()), draw(st.booleans()), draw(st.booleans())
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    participants = rng.random((n_rounds, n_clients)) < 0.6
    rows = []
    for row in participants:
        within = coalitions_of(np.arange(n_clients) if is_truth else np.flatnonzero(row), n_clients)
        kept = within[rng.random(len(within)) < 0.6]
        rows.append((kept, rng.normal(size=len(kept)) * kept.any(axis=1)))
    permutations = draw_permutations(np.arange(n_clients), 3, rng=rng) if with_permutations else None
    by_round = tuple(draw_permutations(np.flatnonzero(row), 2, rng=rng) for row in participants)
    names = tuple(draw(st.lists(st.text("abcé😀", min_size=1), min_size=n_clients, max_size=n_clients, unique=True)))
    return matrix_from_cells(
        names,
        participants,
        rows,
        permutations=permutations,
        round_permutations=by_round if with_round_permutations else None,
        is_truth=is_truth,
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("utilities")


@given(matrix=matrices())
def test_a_written_matrix_is_read_back_whole_with_equal_bytes_on_two_saves(matrix, folder):
    save_utilities(matrix, folder / "a.npz")
    save_utilities(matrix, folder / "b.npz")
    assert (folder / "a.npz").read_bytes() == (folder / "b.npz").read_bytes()
    assert same(load_utilities(folder / "a.npz"), matrix)


@given(matrix=matrices())
def test_a_brought_matrix_means_the_same_as_the_written_one(matrix, folder):
    path = bring(
        folder,
        utilities=matrix.dense(),
        coalitions=matrix.coalitions,
        participants=matrix.participants,
        clients=np.array(matrix.clients),
        permutations=matrix.permutations,
    )
    found = load_utilities(path, is_truth=matrix.is_truth)
    assert found.clients == matrix.clients
    assert np.array_equal(found.participants, matrix.participants)
    assert _same(found.permutations, matrix.permutations)
    for round_index in range(matrix.n_rounds):
        np.testing.assert_array_equal(
            found.row(round_index, matrix.coalitions), matrix.row(round_index, matrix.coalitions)
        )
    assert len(found.utilities) == len(matrix.utilities)


def test_a_brought_file_needs_neither_names_nor_the_empty_coalition(tmp_path):
    found = load_utilities(bring(tmp_path))
    assert found.clients == ("0", "1")
    assert not found.coalitions[0].any()
    assert (found.dense()[:, 0] == 0).all()
    assert len(found.utilities) == 3 + 2


def test_an_unseen_empty_coalition_is_known_all_the_same(tmp_path):
    coalitions = np.array([[0, 0], [1, 0]], dtype=bool)
    found = load_utilities(bring(tmp_path, coalitions=coalitions, utilities=np.array([[np.nan, 1.0], [0.0, 2.0]])))
    np.testing.assert_array_equal(found.dense(), [[0, 1], [0, 2]])


@pytest.mark.parametrize("dtype", [np.int8, np.int32, np.uint8, np.uint64])
def test_permutations_may_be_brought_as_any_whole_numbers(tmp_path, dtype):
    found = load_utilities(bring(tmp_path, permutations=np.array([[1, 0]], dtype=dtype)))
    assert found.permutations is not None
    assert found.permutations.dtype == np.int64


def test_the_truth_must_be_asked_for_in_a_brought_file(tmp_path):
    path = bring(tmp_path, utilities=np.array([[1.0, 2.0, 3.0], [0.5, 0.5, 1.0]]))
    with pytest.raises(UtilityError, match=r"brought\.npz: round 1, coalition \{1\}: seen, though not all"):
        load_utilities(path)
    assert load_utilities(path, is_truth=True).is_truth


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"utilities": None}, "no array 'utilities'; found"),
        ({"coalitions": None}, "no array 'coalitions'"),
        ({"participants": None}, "no array 'participants'"),
        ({"utilities": UTILITIES.astype(np.float32)}, r"float32 of shape \(2, 3\), expected float64"),
        ({"utilities": UTILITIES.T}, r"shape \(3, 2\), expected float64 of shape \(2, 3\)"),
        ({"utilities": UTILITIES * np.inf}, r"utilities\[0, 0\] is inf"),
        ({"coalitions": COALITIONS.astype(int)}, "coalitions is int64"),
        ({"coalitions": COALITIONS[0]}, r"coalitions is bool of shape \(2,\)"),
        ({"coalitions": COALITIONS[[0, 1, 1]]}, "two rows are the same set of clients"),
        ({"coalitions": np.eye(3, dtype=bool)}, "as many clients in both"),
        ({"participants": PARTICIPANTS.astype(float)}, "participants is float64"),
        ({"participants": PARTICIPANTS[:0], "utilities": UTILITIES[:0]}, "expected one round or more"),
        ({"clients": np.array(["a"])}, "expected a name for each of 2"),
        ({"permutations": np.array([[0.0, 1.0]])}, "permutations are float64, expected whole client numbers"),
        ({"permutations": np.array([[0, 2]])}, "client numbers from 0 to 1"),
        ({"permutations": np.array([[0]])}, r"clients \[1\] were heard"),
        (
            {"coalitions": np.array([[0, 0], [1, 0], [0, 1]], dtype=bool)},
            "utility of the empty coalition is 1.0, expected 0; subtract it from its round",
        ),
    ],
)
def test_a_brought_file_that_cannot_be_is_refused_by_its_name(tmp_path, changes, message):
    path = bring(tmp_path, **changes)
    with pytest.raises(UtilityError, match=message) as refusal:
        load_utilities(path)
    assert str(refusal.value).startswith(f"{path}: ")
    assert str(refusal.value).count(str(path)) == 1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"cell_coalitions": None}, "no array 'cell_coalitions'"),
        ({"cell_rounds": np.zeros(5)}, "expected as many of each, int, int and float64"),
        ({"cell_rounds": np.zeros(5, dtype=np.int64)}, "a cell is given twice"),
        ({"utilities": np.full(5, np.nan)}, "utility is nan"),
        ({"utilities": np.ones(5)}, "expected 0 for the empty coalition"),
        ({"utilities": np.zeros((5, 1))}, "expected as many of each"),
        ({"participants": np.zeros((2, 2), dtype=bool)}, "seen, though not all of its members took part"),
        ({"round_permutations_0": np.array([[0, 1]])}, "found 1, expected 2"),
    ],
)
def test_a_written_file_that_was_tampered_with_is_refused_by_its_name(tmp_path, changes, message):
    path = written(tmp_path, **changes)
    with pytest.raises(UtilityError, match=message) as refusal:
        load_utilities(path)
    assert str(refusal.value).startswith(f"{path}: ")


def test_a_pickled_array_is_refused(tmp_path):
    with pytest.raises(ArtefactError, match=r"brought\.npz: not readable as \.npz without pickle"):
        load_utilities(bring(tmp_path, clients=np.array(["a", None], dtype=object)))


def test_a_truncated_or_missing_file_is_refused(tmp_path):
    path = bring(tmp_path)
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(ArtefactError, match=r"brought\.npz: not readable"):
        load_utilities(path)
    with pytest.raises(ArtefactError, match="no such file"):
        load_utilities(tmp_path / "nowhere.npz")
