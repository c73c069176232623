"""The surrogate: its value in closed form is that of its enumeration, and it is what it says of a round's models."""

import numpy as np
import pytest

from fedworth.coalitions import coalitions_of
from fedworth.games.surrogate import PLAIN, Surrogate, flat_surrogate
from fedworth.valuation.shapley import shapley_values


def random_surrogate(n, rng):
    """Any rays, shares and bends."""
    bends = []
    for _ in range(2):
        bend = rng.normal(size=(n, n))
        bend = bend + bend.T
        np.fill_diagonal(bend, 0)
        bends.append(bend)
    return Surrogate(0.7, rng.normal(size=(n + 1, n)), rng.random((n + 1, n)), (bends[0], bends[1]))


@pytest.mark.parametrize("n", [1, 2, 3, 4, 9])
def test_the_value_in_closed_form_is_that_of_the_enumeration(n):
    rng = np.random.default_rng(n)
    surrogate = random_surrogate(n, rng)
    for coefficients in (PLAIN, rng.normal(size=len(PLAIN))):
        utilities = surrogate.described(coalitions_of(np.arange(n), n)[1:]).at(coefficients)
        exact = shapley_values(np.concatenate([[0.0], utilities]))
        assert surrogate.values(coefficients) == pytest.approx(exact, rel=1e-10, abs=1e-12)


def test_everyone_together_is_known():
    rng = np.random.default_rng(0)
    surrogate = random_surrogate(5, rng)
    assert surrogate.described(np.ones((1, 5), dtype=bool)).at(rng.normal(size=len(PLAIN))) == pytest.approx([0.7])


def test_coefficients_that_made_the_utilities_are_found_again():
    """But for the ridge, which holds them to the plain ones by a thousandth of what the coalitions say of each."""
    rng = np.random.default_rng(1)
    surrogate, wanted = random_surrogate(8, rng), PLAIN + 0.3 * rng.normal(size=len(PLAIN))
    coalitions = coalitions_of(np.arange(8), 8)[1:-1]
    described = surrogate.described(coalitions)
    found = described.fitted(described.at(wanted))
    missed = described.at(found) - described.at(wanted)
    plain = described.at() - described.at(wanted)
    scale = coalitions.sum(axis=1) ** 1.5
    assert np.linalg.norm(scale * missed) < 0.05 * np.linalg.norm(scale * plain)


def test_a_flat_surrogate_knows_the_lone_clients():
    surrogate = flat_surrogate(2.0, np.array([1.0, 5.0, 3.0]))
    assert surrogate.described(np.eye(3, dtype=bool)).at() == pytest.approx([1.0, 5.0, 3.0])
    assert surrogate.described(np.ones((1, 3), dtype=bool)).at() == pytest.approx([2.0])
