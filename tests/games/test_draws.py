"""Draws: of every size as many as wanted, with weights that make their sums unbiased."""

import math

import numpy as np
import pytest

from fedworth.coalitions import distinct
from fedworth.games.draws import FEWEST, draw, expected_counts


@pytest.mark.parametrize(("n", "n_draws"), [(8, 40), (12, 79), (30, 179), (100, 599)])
def test_expected_counts_add_up_and_leave_no_size_out(n, n_draws):
    counts = expected_counts(n, n_draws)
    assert counts.shape == (n + 1,)
    assert counts[[0, 1, n]].tolist() == [0, 0, 0]
    assert counts[2:n].min() >= FEWEST
    assert n_draws - 1e-9 <= counts.sum() <= n_draws + FEWEST * n
    assert all(counts[s] <= math.comb(n, s) for s in range(2, n))


def test_all_coalitions_are_drawn_once_where_they_can_be_afforded():
    drawn = draw(6, 2**6 - 6 - 2, rng=np.random.default_rng(0))
    assert drawn.whole.all()
    assert len(distinct(drawn.coalitions)[0]) == len(drawn) == 2**6 - 6 - 2


def test_a_budget_is_kept_on_the_average():
    """Each of the 98 sizes is rounded by itself, with a variance of 1/4 at most."""
    counts = [len(draw(100, 599, rng=np.random.default_rng(seed))) for seed in range(50)]
    assert abs(np.mean(counts) - expected_counts(100, 599).sum()) < 5 * math.sqrt(98 / 4 / 50)


@pytest.mark.parametrize("n_draws", [12, 60])
def test_weighted_sums_have_the_means_over_the_sizes_as_expectation(n_draws):
    """The mean over R draws is nearly normal: off by 5 of its standard errors with chance 6e-7, for 7 clients."""
    n, rng = 7, np.random.default_rng(1)
    utilities = rng.normal(size=2**n)
    sums = []
    for _ in range(4000):
        drawn = draw(n, n_draws, rng=rng)
        seen = utilities[drawn.coalitions @ (1 << np.arange(n))]
        sums.append(drawn.coalitions.T @ (drawn.weights * seen))
    every = (np.arange(2**n)[:, None] >> np.arange(n) & 1).astype(bool)
    inner = (every.sum(axis=1) > 1) & (every.sum(axis=1) < n)
    share = np.array([1 / math.comb(n, int(s)) for s in every.sum(axis=1)])
    expected = every[inner].T @ (share * utilities)[inner]
    error = np.std(sums, axis=0) / math.sqrt(len(sums))
    assert (np.abs(np.mean(sums, axis=0) - expected) < 5 * error).all()


def test_the_same_generator_gives_the_same_draws():
    first, again = (draw(20, 119, rng=np.random.default_rng(3)) for _ in range(2))
    assert np.array_equal(first.coalitions, again.coalitions)
    assert np.array_equal(first.folds, again.folds)
