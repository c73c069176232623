"""Sets of clients as rows of booleans, compared with Python's own sets."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedworth.coalitions import MOST_LISTED, coalitions_of, distinct, locate, names, prefixes
from fedworth.errors import TooManyError
from fedworth.games.permutations import draw_permutations


@st.composite
def some_coalitions(draw):
    """Rows with repetitions, of up to 80 clients: more than one machine word holds."""
    n_clients = draw(st.sampled_from([1, 3, 8, 9, 63, 64, 65, 80]))
    sets = draw(st.lists(st.sets(st.integers(0, n_clients - 1), max_size=4), min_size=1, max_size=12))
    return rows_of(sets, n_clients)


def rows_of(sets, n_clients):
    rows = np.zeros((len(sets), n_clients), dtype=bool)
    for row, members in zip(rows, sets, strict=True):
        row[list(members)] = True
    return rows


def sets_of(rows):
    return [frozenset(np.flatnonzero(row).tolist()) for row in rows]


@pytest.mark.parametrize("n", [0, 1, 3, 5])
def test_row_c_is_the_coalition_whose_integer_is_c(n):
    rows = coalitions_of(np.arange(n), n)
    assert rows.shape == (2**n, n)
    assert (rows @ 2 ** np.arange(n)).tolist() == list(range(2**n))


def test_subsets_of_some_clients_leave_the_others_out():
    assert sets_of(coalitions_of(np.array([1, 4]), 6)) == [set(), {1}, {4}, {1, 4}]


def test_too_many_clients_are_refused_with_the_number_of_coalitions_and_a_way_out():
    assert MOST_LISTED == 20
    with pytest.raises(TooManyError, match=r"2\^21 = 2,097,152 coalitions.*sample coalitions instead"):
        coalitions_of(np.arange(21), 21)


@given(st.integers(1, 6), st.integers(1, 5), st.integers(0, 99))
def test_prefixes_run_from_nobody_to_everybody(n, n_permutations, seed):
    permutations = draw_permutations(np.arange(n), n_permutations, rng=np.random.default_rng(seed))
    expected = [frozenset(order[:j]) for order in permutations.tolist() for j in range(n + 1)]
    assert sets_of(prefixes(permutations, n)) == expected


def test_prefixes_of_some_clients_keep_the_width_of_all():
    assert sets_of(prefixes(np.array([[4, 1]]), 6)) == [set(), {4}, {1, 4}]


@given(some_coalitions())
def test_distinct_keeps_each_coalition_once_by_size_and_says_which_each_row_was(rows):
    found, which = distinct(rows)
    assert sorted(map(sorted, sets_of(found))) == sorted(map(sorted, set(sets_of(rows))))
    assert np.array_equal(found[which], rows)
    sizes = found.sum(axis=1)
    assert (np.diff(sizes) >= 0).all()


@given(some_coalitions(), st.randoms(use_true_random=False))
def test_the_order_of_distinct_coalitions_is_canonical(rows, shuffler):
    order = list(range(len(rows)))
    shuffler.shuffle(order)
    assert np.array_equal(distinct(rows)[0], distinct(rows[order])[0])


@given(some_coalitions(), st.integers(0, 11))
def test_locate_finds_the_known_and_only_those(rows, n_known):
    known = distinct(rows[:n_known])[0] if n_known else rows[:0]
    there = sets_of(known)
    expected = [there.index(members) if members in there else -1 for members in sets_of(rows)]
    assert locate(rows, known).tolist() == expected


def test_a_coalition_is_shown_by_the_names_of_its_members():
    assert names(np.array([True, False, True]), ("anna", "ben", "cleo")) == "{anna, cleo}"
    assert names(np.zeros(3, dtype=bool), ("anna", "ben", "cleo")) == "{}"
