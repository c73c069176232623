import itertools
import math

import numpy as np
import pytest

from fedworth.errors import ValuationError
from fedworth.valuation.interactions import shapley_interactions
from tests.support.games import game


def by_definition(utilities, i, j):
    n = len(utilities).bit_length() - 1
    others, total = [k for k in range(n) if k not in (i, j)], 0.0
    for size in range(n - 1):
        weight = math.factorial(size) * math.factorial(n - size - 2) / math.factorial(n - 1)
        for chosen in itertools.combinations(others, size):
            s = sum(1 << k for k in chosen)
            both = utilities[s | 1 << i | 1 << j] - utilities[s | 1 << i] - utilities[s | 1 << j] + utilities[s]
            total += weight * both
    return total


@pytest.mark.parametrize("n", [2, 3, 5])
def test_every_pair_by_its_definition(n):
    utilities = np.append(0.0, np.random.default_rng(n).normal(size=2**n - 1))
    found = shapley_interactions(utilities)
    for i, j in itertools.permutations(range(n), 2):
        assert found[i, j] == pytest.approx(by_definition(utilities, i, j))
    assert np.diag(found).tolist() == [0] * n


def test_copies_are_redundant_and_complements_are_not():
    """0 and 1 hold the same; 2 and 3 are worth something only together."""
    found = shapley_interactions(game(4, lambda s: float(bool(s & {0, 1})) + float({2, 3} <= s)))
    assert found[0, 1] == pytest.approx(-1)
    assert found[2, 3] == pytest.approx(1)
    assert found[0, 2] == pytest.approx(0)


def test_one_client_has_no_pairs():
    with pytest.raises(ValuationError, match="n ≥ 2 clients"):
        shapley_interactions(np.zeros(2))
