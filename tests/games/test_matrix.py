"""The utility matrix refuses what cannot have been seen, and keeps what was."""

from dataclasses import FrozenInstanceError

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedworth.coalitions import coalitions_of
from fedworth.errors import TooManyError, UtilityError
from fedworth.games.matrix import UtilityMatrix, matrix_from_cells, needed_columns

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
        "utilities": np.array([0.0, 1.0, 2.0, 0.0, 3.0]),
    }
    return UtilityMatrix(**{**fields, **changes})


@st.composite
def game_tables(draw):
    """A dense table with holes, over all coalitions of up to four clients."""
    n_clients, n_rounds = draw(st.integers(1, 4)), draw(st.integers(1, 4))
    seed = draw(st.integers(0, 2**32 - 1))
    rng = np.random.default_rng(seed)
    participants = rng.random((n_rounds, n_clients)) < 0.7
    participants[0] = True
    rows = []
    for row in participants:
        within = coalitions_of(np.flatnonzero(row), n_clients)
        kept = within[rng.random(len(within)) < 0.7]
        rows.append((kept, rng.normal(size=len(kept)) * kept.any(axis=1)))
    return participants, rows


def without_b(**changes):
    """The same, but nobody ever heard client b."""
    return matrix(
        participants=np.array([[True, False, True], [True, False, True]]),
        coalitions=np.array([[0, 0, 0], [1, 0, 0], [1, 0, 1]], dtype=bool),
        coalition_indices=np.array([0, 1, 2, 0, 2]),
        **changes,
    )


def test_a_matrix_is_dense_where_seen_and_nan_elsewhere():
    found = matrix()
    nan = np.nan
    np.testing.assert_array_equal(found.dense(), [[0, 1, 2, nan], [0, nan, nan, 3]])
    assert (found.n_rounds, found.n_clients) == (2, 3)


def test_a_matrix_is_frozen():
    with pytest.raises(FrozenInstanceError):
        matrix().is_truth = True


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"utilities": [0, 1, np.nan, 0, 3]}, r"round 0, coalition \{b\}: utility is nan, expected a finite number"),
        ({"utilities": [0, 1, 1e300, 0, 3]}, r"round 0, coalition \{b\}: utility is 1e\+300, expected at most 1e\+100"),
        ({"utilities": [0, 1, 2, 0, -np.inf]}, r"round 1, coalition \{a, c\}: utility is -inf"),
        ({"utilities": [0, 1, 2, 0.5, 3]}, r"round 1, coalition \{\}: utility is 0.5, expected 0 for the empty"),
        ({"participants": ABSENT}, r"round 1, coalition \{a, c\}: seen, though not all of its members took part"),
        ({"coalition_indices": [0, 1, 2, 0, 1]}, r"coalition \{a, c\} has a column but no cell"),
        ({"coalition_indices": [0, 1, 1, 0, 3]}, "a cell is given twice"),
        ({"round_indices": [0, 0, 0, 1, 2]}, "a cell outside 2 rounds × 4 coalitions"),
        ({"round_indices": [-1, 0, 0, 1, 1]}, "a cell outside"),
        ({"coalition_indices": [0, 1, 2, 0, 4]}, "a cell outside"),
        ({"round_indices": [0, 0, 0, 1]}, "expected as many of each"),
        ({"coalition_indices": [0, 1, 2, 0]}, "expected as many of each"),
        ({"utilities": [0.0]}, "expected as many of each"),
        ({"round_indices": [0.0, 0.0, 0.0, 1.0, 1.0]}, "expected as many of each, int, int and float64"),
        ({"utilities": [[0.0]] * 5}, "expected as many of each"),
        ({"utilities": ["0"] * 5}, "expected as many of each"),
        ({"coalitions": np.eye(4, dtype=bool)}, r"3 names, \(4,\) members, expected 3 clients"),
        ({"coalitions": np.array([[0, 0, 0], [1, 0, 0], [0, 1, 0], [1, 0, 0]], dtype=bool)}, "the same set"),
        ({"participants": np.zeros((0, 3), dtype=bool)}, "0 rounds of 3 clients"),
        ({"permutations": np.array([0, 1, 2])}, "permutations: expected one row of client numbers from 0 to 2"),
        ({"permutations": np.array([[0, 1, 3]])}, "from 0 to 2"),
        ({"permutations": np.array([[0, 1, -1]])}, "from 0 to 2"),
        ({"permutations": np.array([[0.0, 1.0, 2.0]])}, "one row of client numbers"),
        ({"permutations": np.array([[0, 1, 1]])}, "the same clients in every row, each once"),
        ({"permutations": np.array([[0, 1], [1, 2]])}, "the same clients in every row, each once"),
        ({"permutations": np.array([[0, 2]])}, r"clients \[1\] were heard, but are in none"),
        ({"round_permutations": (np.array([[0, 1, 2]]),)}, "found 1, expected 2, one array a round"),
        ({"round_permutations": (np.array([[0, 1, 2]]), np.array([[0, 0]]))}, "permutations of round 1: .* each once"),
        ({"round_permutations": (np.array([[0, 1, 2]]), np.array([[0, 1]]))}, r"round 1: of other clients .*\[0, 2\]"),
    ],
)
def test_a_matrix_that_cannot_be_is_refused(changes, message):
    arrays = {key: np.array(value) if isinstance(value, list) else value for key, value in changes.items()}
    with pytest.raises(UtilityError, match=message):
        matrix(**arrays)


def test_cells_beyond_the_participants_are_allowed_for_the_truth():
    truth = matrix(participants=ABSENT, is_truth=True)
    assert truth.dense()[1, 3] == 3


def test_a_matrix_with_fitting_permutations_is_accepted():
    permutations = (np.array([[2, 0, 1], [0, 1, 2]]), np.array([[2, 0]]))
    found = matrix(permutations=np.array([[0, 1, 2], [2, 1, 0]]), round_permutations=permutations)
    assert found.heard_permutations is found.permutations


def test_the_seen_part_of_the_truth_is_what_the_server_could_have_seen():
    truth = matrix(
        round_indices=np.array([0, 0, 0, 1, 1, 1]),
        coalition_indices=np.array([0, 1, 2, 0, 2, 3]),
        utilities=np.array([0.0, 1.0, 2.0, 0.0, 9.0, 3.0]),
        is_truth=True,
    )
    seen = truth.seen_part()
    assert not seen.is_truth
    np.testing.assert_array_equal(seen.dense(), matrix().dense())


@given(game_tables())
def test_cells_are_found_again_by_round_and_coalition(table):
    participants, rows = table
    clients = tuple(str(k) for k in range(participants.shape[1]))
    found = matrix_from_cells(clients, participants, rows)
    assert not found.coalitions[0].any()
    for round_index, (coalitions, utilities) in enumerate(rows):
        np.testing.assert_array_equal(found.row(round_index, coalitions), utilities)
        nobody = np.zeros((1, len(clients)), dtype=bool)
        assert found.row(round_index, nobody)[0] == 0
    n_measured = sum(int(coalitions.any(axis=1).sum()) for coalitions, _ in rows)
    assert len(found.utilities) == n_measured + len(rows)  # the empty coalition is a seen cell of every round


@given(game_tables(), st.integers(0, 15))
def test_within_keeps_the_columns_asked_for_with_their_cells(table, first):
    participants, rows = table
    n_clients = participants.shape[1]
    whole = matrix_from_cells(tuple(str(k) for k in range(n_clients)), participants, rows)
    wanted = coalitions_of(np.arange(n_clients), n_clients)[first:]
    part = whole.within(wanted)
    kept = [row.tolist() in wanted.tolist() for row in whole.coalitions]
    assert np.array_equal(part.coalitions, whole.coalitions[kept])
    np.testing.assert_array_equal(part.dense(), whole.dense()[:, kept])


def test_a_column_that_is_not_there_is_unseen():
    assert np.isnan(matrix().row(0, np.array([[True, True, True]]))).all()
    assert len(matrix().within(np.array([[True, True, True]])).coalitions) == 0


def test_the_needed_columns_are_all_coalitions_of_the_heard():
    found = needed_columns(without_b())
    assert found.astype(int).tolist() == [[0, 0, 0], [0, 0, 1], [1, 0, 0], [1, 0, 1]]


def test_the_needed_columns_are_the_different_prefixes_of_the_permutations():
    found = needed_columns(matrix(permutations=np.array([[0, 1, 2], [0, 2, 1], [2, 0, 1]])))
    members = {tuple(np.flatnonzero(row)) for row in found}
    assert len(found) == len(members)
    assert members == {(), (0,), (0, 1), (0, 1, 2), (0, 2), (2,)}


def test_permutations_leave_out_whom_no_round_has_heard():
    unheard = without_b(permutations=np.array([[1, 0, 2], [2, 1, 0]]))
    assert unheard.heard.tolist() == [True, False, True]
    assert unheard.heard_permutations is not None
    assert unheard.heard_permutations.tolist() == [[0, 2], [2, 0]]
    assert matrix().heard_permutations is None


def test_too_many_heard_clients_need_permutations():
    n_clients = 21
    wide = matrix_from_cells(
        tuple(str(k) for k in range(n_clients)),
        np.ones((1, n_clients), dtype=bool),
        [(np.ones((1, n_clients), dtype=bool), np.array([1.0]))],
    )
    with pytest.raises(TooManyError, match="Monte Carlo"):
        needed_columns(wide)
