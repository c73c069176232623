"""Alternatives of a factor completion: what they are, what follows from them, and that they survive the disk."""

from dataclasses import replace

import numpy as np
import pytest

from fedworth.coalitions import coalitions_of
from fedworth.completion import alternatives as module
from fedworth.completion.alternatives import neighbours, with_alternatives
from fedworth.completion.complete import FactorSettings, complete
from fedworth.completion.completion_file import load_completion, save_completion
from fedworth.valuation.value import value
from tests.support.games import federation

EVERYONE = coalitions_of(np.arange(5), 5)


@pytest.fixture(scope="module")
def made():
    matrix = federation(0)[1]
    return matrix, with_alternatives(matrix, complete(matrix))


def test_the_neighbours_differ_in_one_thing_each(made):
    own = FactorSettings(rank=made[1].rank, relative_penalty=made[1].relative_penalty)
    for other in neighbours(made[1]):
        same = [getattr(other, name) == getattr(own, name) for name in ("rank", "relative_penalty", "penalty_kind")]
        assert same.count(False) == 1


def test_a_variance_is_the_weighted_squared_distance_of_the_alternatives(made):
    matrix, completion = made
    others = completion.alternatives
    by_settings = [complete(matrix, settings) for settings in neighbours(completion)]
    distances = [(other.estimates(EVERYONE) - completion.estimates(EVERYONE)) ** 2 for other in by_settings]
    for n, other in enumerate(by_settings):
        np.testing.assert_allclose(
            others.round_factors[n] @ others.coalition_factors[n].T, other.estimates(completion.coalitions), atol=1e-6
        )
    assert (completion.variances(EVERYONE) >= np.mean(distances, axis=0) - 1e-8).all()
    assert others.weights.tolist() == [0.2] * 5 + [0.8] * 5


def test_the_intervals_follow_the_alternatives_values(made):
    matrix, completion = made
    found = value(matrix, "comfedsv", completion=completion)
    moved = []
    for W, H in zip(completion.alternatives.round_factors, completion.alternatives.coalition_factors, strict=True):
        other = replace(completion, round_factors=W, coalition_factors=H, rank=W.shape[1], alternatives=None)
        moved.append(value(matrix, "comfedsv", completion=other).values - found.values)
    expected = completion.alternatives.weights @ np.square(moved)
    assert found.uncertainty is not None
    np.testing.assert_allclose(found.uncertainty.deviations**2, expected, rtol=1e-9)


def test_without_alternatives_nothing_is_claimed(made, monkeypatch):
    matrix, _ = made
    bare = complete(matrix)
    assert bare.variances(EVERYONE) is None
    assert value(matrix, "comfedsv", completion=bare).uncertainty is None
    monkeypatch.setattr(module, "MOST_CELLS", 10)
    assert with_alternatives(matrix, bare) is bare


def test_they_survive_the_disk(made, tmp_path):
    _, completion = made
    save_completion(completion, tmp_path / "completion.npz")
    back = load_completion(tmp_path / "completion.npz")
    np.testing.assert_array_equal(back.variances(EVERYONE), completion.variances(EVERYONE))


def test_no_status_calls_a_value_certified(made):
    assert "certified" not in str(made[1].summary())
