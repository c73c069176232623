"""A root of a covariance, whether it has an inverse or not."""

import numpy as np
import pytest

from fedworth.completion.by_kernel.process import semidefinite_root
from fedworth.errors import CompletionError


@pytest.mark.parametrize("rank", [1, 4, 9])
def test_a_root_gives_back_the_covariance_with_as_many_columns_as_its_rank(rank):
    factors = np.random.default_rng(rank).standard_normal((9, rank))
    factors[3] = 0  # what is known exactly
    root = semidefinite_root(factors @ factors.T)
    assert root.shape == (9, min(rank, 8))
    assert root @ root.T == pytest.approx(factors @ factors.T, abs=1e-12)


def test_where_all_is_known_there_is_no_column():
    assert semidefinite_root(np.zeros((3, 3))).shape == (3, 0)


def test_a_covariance_that_is_no_number_is_refused():
    with pytest.raises(CompletionError, match="not finite"):
        semidefinite_root(np.array([[np.nan, 0.0], [0.0, 1.0]]))
