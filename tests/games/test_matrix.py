"""The utility matrix refuses what cannot have been seen, keeps what was, and survives a file."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedworth.coalitions import coalitions_of
from fedworth.errors import ArtefactError, UtilityError
from fedworth.games.matrix import UtilityMatrix, matrix_from_rounds

PARTICIPANTS = np.array([[True, True, True], [True, False, True]])
ABSENT = np.array([[True, True, True], [True, False, False]])


def matrix(**changes):
    """Two rounds of three clients; client 1 is absent in the second."""
    coalitions = np.array([[0, 0, 0], [1, 0, 0], [0, 1, 0], [1, 0, 1]], dtype=bool)
    fields = {
        "clients": ("a", "b", "c"),
        "participants": PARTICIPANTS,
        "coalitions": coalitions,
        "round_indices": np.array([0, 0, 0, 1, 1]),
        "coalition_indices": np.array([0, 1, 2, 0, 3]),
        "utilities": np.array([[0.0], [1.0], [2.0], [0.0], [3.0]]),
    }
    return UtilityMatrix(**{**fields, **changes})


def column(*numbers):
    return np.array(numbers, dtype=float)[:, None]


@st.composite
def rounds_of_cells(draw):
    """Some coalitions of each round's participants, of up to four clients, with up to three blocks."""
    n_clients, n_rounds, n_blocks = draw(st.integers(1, 4)), draw(st.integers(1, 4)), draw(st.integers(1, 3))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    participants = rng.random((n_rounds, n_clients)) < 0.7
    participants[0] = True
    rounds = []
    for row in participants:
        within = coalitions_of(np.flatnonzero(row), n_clients)
        kept = within[rng.random(len(within)) < 0.7]
        rounds.append((kept, rng.normal(size=(len(kept), n_blocks)) * kept.any(axis=1, keepdims=True)))
    return participants, rounds


def test_a_matrix_is_dense_where_seen_and_nan_elsewhere():
    found, nan = matrix(), np.nan
    np.testing.assert_array_equal(found.dense(), [[0, 1, 2, nan], [0, nan, nan, 3]])
    assert (found.n_rounds, found.n_clients, found.n_blocks) == (2, 3, 1)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"utilities": column(0, 1, np.nan, 0, 3)}, r"round 0, coalition \{b\}: utility is nan, expected a finite"),
        ({"utilities": column(0, 1, 1e300, 0, 3)}, r"coalition \{b\}: utility is 1e\+300, .* at most 1e\+100"),
        ({"utilities": column(0, 1, 2, 0, -np.inf)}, r"round 1, coalition \{a, c\}: utility is -inf"),
        ({"utilities": column(0, 1, 2, 0.5, 3)}, r"round 1, coalition \{\}: utility is 0.5, expected 0"),
        ({"participants": ABSENT}, r"round 1, coalition \{a, c\}: seen, though not all of its members took part"),
        ({"coalition_indices": np.array([0, 1, 2, 0, 1])}, r"coalition \{a, c\} has a column but no cell"),
        ({"coalition_indices": np.array([0, 1, 1, 0, 3])}, "a cell is given twice"),
        ({"clients": ("a", "b", "a")}, "the name 'a' is given twice"),
        ({"round_indices": np.array([0, 0, 0, 1, 2])}, "a cell outside 2 rounds × 4 coalitions"),
        ({"coalition_indices": np.array([0, 1, 2, 0, 4])}, "a cell outside"),
        ({"round_indices": np.array([0, 0, 0, 1])}, "expected whole numbers"),
        ({"round_indices": np.array([0.0, 0.0, 0.0, 1.0, 1.0])}, "expected whole numbers"),
        ({"utilities": np.zeros(5)}, r"expected float64 \(n_seen, n_blocks\)"),
        ({"coalitions": np.eye(4, dtype=bool)}, "expected 3 clients"),
        ({"coalitions": np.array([[0, 0, 0], [1, 0, 0], [0, 1, 0], [1, 0, 0]], dtype=bool)}, "the same set"),
        ({"participants": np.zeros((0, 3), dtype=bool)}, "0 rounds of 3 clients"),
        ({"permutations": np.array([0, 1, 2])}, "client numbers from 0 to 2"),
        ({"permutations": np.array([[0, 1, 3]])}, "from 0 to 2"),
        ({"permutations": np.array([[0, 1, 1]])}, "the same clients in every row, each once"),
        ({"permutations": np.array([[0, 2]])}, r"clients \[1\] took part, but are in none"),
    ],
)
def test_a_matrix_that_cannot_be_is_refused(changes, message):
    with pytest.raises(UtilityError, match=message):
        matrix(**changes)


@given(rounds_of_cells())
def test_the_matrix_of_rounds_has_exactly_their_cells(cells):
    participants, rounds = cells
    made = matrix_from_rounds(tuple("abcd"[: participants.shape[1]]), participants, rounds)
    for t, (coalitions, utilities) in enumerate(rounds):
        if len(coalitions):
            np.testing.assert_array_equal(made.row(t, coalitions), utilities)
    n_cells = sum(int(coalitions.any(axis=1).sum()) for coalitions, _ in rounds) + len(rounds)
    assert len(made.utilities) == n_cells  # the empty coalition of every round is known


@given(rounds_of_cells())
def test_a_matrix_survives_its_file(cells):
    import tempfile
    from pathlib import Path

    participants, rounds = cells
    made = matrix_from_rounds(tuple("abcd"[: participants.shape[1]]), participants, rounds)
    with tempfile.TemporaryDirectory() as folder:
        made.save(Path(folder) / "utilities.npz")
        again = UtilityMatrix.load(Path(folder) / "utilities.npz")
    np.testing.assert_array_equal(again.utilities, made.utilities)
    np.testing.assert_array_equal(again.coalitions, made.coalitions)
    assert again.clients == made.clients


def test_clients_that_took_part_nowhere_are_in_no_permutation():
    participants = np.array([[True, False, True], [True, False, True]])
    found = matrix(
        participants=participants,
        coalitions=np.array([[0, 0, 0], [1, 0, 0], [1, 0, 1]], dtype=bool),
        coalition_indices=np.array([0, 1, 2, 0, 2]),
        permutations=np.array([[1, 0, 2], [2, 1, 0]]),
    )
    np.testing.assert_array_equal(found.heard_permutations, [[0, 2], [2, 0]])
    assert not found.needed_coalitions()[:, 1].any()


def brought(**changes):
    """A dense file of one's own: two rounds of two clients."""
    coalitions = np.array([[0, 0], [1, 0], [0, 1], [1, 1]], dtype=bool)
    arrays = {
        "utilities": np.array([[0.0, 1.0, 2.0, 3.0], [0.0, 1.0, np.nan, np.nan]]),
        "coalitions": coalitions,
        "participants": np.array([[True, True], [True, False]]),
    }
    return {**arrays, **changes}


def test_a_dense_file_is_read_with_blocks_and_without(tmp_path):
    np.savez(tmp_path / "plain.npz", **brought())
    plain = UtilityMatrix.load(tmp_path / "plain.npz")
    assert (plain.clients, plain.n_blocks) == (("0", "1"), 1)
    split = np.stack([0.25 * brought()["utilities"], 0.75 * brought()["utilities"]], axis=2)
    np.savez(tmp_path / "blocks.npz", **brought(utilities=split, clients=np.array(["north", "south"])))
    by_block = UtilityMatrix.load(tmp_path / "blocks.npz")
    assert (by_block.clients, by_block.n_blocks) == (("north", "south"), 2)
    np.testing.assert_allclose(by_block.dense(), plain.dense())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"utilities": np.zeros((2, 3))}, r"expected float64 of shape \(2, 4\)"),
        ({"utilities": np.zeros((2, 4), dtype=np.float32)}, "utilities are float32"),
        ({"utilities": np.full((2, 4), np.inf)}, "is infinite"),
        ({"utilities": np.ones((2, 4))}, "empty coalition is 1.0, expected 0"),
        ({"coalitions": np.zeros((4, 2))}, "coalitions is float64"),
        ({"participants": np.ones((2, 3), dtype=bool)}, "the same number of clients in both"),
        ({"clients": np.array(["a"])}, "expected a name for each of 2"),
        ({"permutations": np.zeros((1, 2))}, "expected whole client numbers"),
    ],
)
def test_a_file_that_is_no_utility_matrix_is_refused(changes, message, tmp_path):
    np.savez(tmp_path / "mine.npz", **brought(**changes))
    with pytest.raises(UtilityError, match=message) as caught:
        UtilityMatrix.load(tmp_path / "mine.npz")
    assert "mine.npz" in str(caught.value)


def test_a_file_that_lacks_an_array_or_is_none_is_refused(tmp_path):
    np.savez(tmp_path / "less.npz", utilities=np.zeros((1, 2)))
    with pytest.raises(UtilityError, match="no array 'coalitions'"):
        UtilityMatrix.load(tmp_path / "less.npz")
    (tmp_path / "text.npz").write_text("no archive")
    with pytest.raises(ArtefactError, match=r"text\.npz"):
        UtilityMatrix.load(tmp_path / "text.npz")
