"""Intervals, rank intervals, chances and trust, from values and the covariance of their errors."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from fedworth.completion.completion import Caveat, heard_once
from fedworth.errors import ValuationError
from fedworth.records import document_of, read_as
from fedworth.valuation.uncertainty import Trust, Uncertainty, uncertainty


def chances_of(values, *covariances, **others):
    found = uncertainty(values, *covariances, **others).chances
    assert found is not None
    return found


def test_an_interval_is_the_value_and_so_many_deviations():
    known = uncertainty(np.array([1.0, 3.0]), np.diag([0.04, 0.25]))
    np.testing.assert_allclose(known.standard_deviations, [0.2, 0.5])
    np.testing.assert_allclose(
        known.intervals(np.array([1.0, 3.0])), [[1 - 0.32897, 1 + 0.32897], [3 - 0.82243, 3 + 0.82243]], atol=1e-5
    )


def test_the_chance_is_that_of_drawn_values():
    values, covariance = np.array([1.0, 0.5, 0.0]), np.array([[0.3, 0.1, 0.0], [0.1, 0.2, 0.05], [0.0, 0.05, 0.4]])
    drawn = np.random.default_rng(0).multivariate_normal(values, covariance, size=200_000)
    expected = (drawn[:, :, None] > drawn[:, None, :]).mean(axis=0)
    found = chances_of(values, covariance)
    # a share of 200,000 draws has a standard error of at most .0011
    assert np.abs(found - expected)[~np.eye(3, dtype=bool)].max() < 0.006
    np.testing.assert_allclose(found + found.T, 1.0)


@pytest.mark.parametrize("outlier", [0.0, 8.0])
def test_pairs_told_apart_are_in_the_wrong_order_as_often_as_stated(outlier):
    """Values of samples, with errors of 1: of the pairs that look different, many owe it to their errors."""
    rng, n_apart, n_wrong, stated = np.random.default_rng(0), 0, 0, 0.0
    for _ in range(1000):
        truth = rng.normal(0, 2, 8) - outlier * np.eye(8)[0]
        found = chances_of(truth + rng.normal(0, 1, 8), np.zeros((8, 8)), test_set=np.eye(8))
        above, below = np.nonzero(found > 0.95)
        n_apart += len(above)
        n_wrong += int((truth[above] < truth[below]).sum())
        stated += float((1 - found[above, below]).sum())
    assert n_apart > 5000
    assert n_wrong < 1.1 * stated  # 1.4 and 1.6 times as many, if the errors were all that counts


def test_differences_that_samples_explain_have_no_order():
    alike = chances_of(np.array([0.1, 0.0, -0.1]), np.zeros((3, 3)), test_set=np.eye(3))
    np.testing.assert_array_equal(alike, 0.5)
    one_pair = chances_of(np.array([3.0, 0.0]), np.zeros((2, 2)), sampling=np.eye(2))
    assert one_pair[0, 1] == pytest.approx(stats.norm.cdf(np.sqrt(9 / 2 - 1)))


def test_equal_clients_are_a_tie_and_certain_differences_are_certain():
    values, covariance = np.array([1.0, 1.0, 2.0]), np.full((3, 3), 0.5)
    found = chances_of(values, covariance)
    assert found.tolist() == [[0.5, 0.5, 0.0], [0.5, 0.5, 0.0], [1.0, 1.0, 0.5]]
    assert uncertainty(values, covariance).rank_intervals == ((2, 3), (2, 3), (1, 1))


@pytest.mark.parametrize(
    ("deviation", "trust"), [(0.1, Trust.DISTINGUISHABLE), (0.5, Trust.ROUGH_ORDER), (2.0, Trust.INDISTINGUISHABLE)]
)
def test_trust_compares_the_errors_with_the_differences(deviation, trust):
    values = np.array([-1.0, 1.0])  # their spread is 1
    known = uncertainty(values, np.eye(2) * deviation**2)
    assert known.trust is trust
    assert known.ratio == pytest.approx(deviation)
    assert f"{deviation:.2f}" in known.sentence


def test_one_outlier_does_not_make_the_others_distinguishable():
    known = uncertainty(np.array([10.0, 0.2, 0.1, 0.0, -0.1]), np.eye(5))
    assert known.ratio is not None
    assert known.ratio < 0.3
    assert known.rank_intervals[1:] == ((2, 5),) * 4
    assert known.trust is Trust.ROUGH_ORDER


@pytest.mark.parametrize("covariance", [np.eye(3), np.zeros((3, 3))])
def test_values_that_are_all_the_same_cannot_be_told_apart_even_if_they_are_certain(covariance):
    same = np.ones(3)
    for values in (same, same + np.array([0, 1e-15, 0])):
        known = uncertainty(values, covariance)
        assert known.trust is Trust.INDISTINGUISHABLE
        assert "values are equal" in known.sentence
        assert known.ratio is None
    assert "no order" in uncertainty(same[:1], covariance[:1, :1]).sentence


@given(st.integers(0, 200))
def test_a_rank_lies_in_its_interval_and_a_wider_error_never_narrows_it(seed):
    rng = np.random.default_rng(seed)
    values, covariance = rng.normal(size=6), np.diag(rng.random(6))
    narrow, wide = (uncertainty(values, covariance * scale).rank_intervals for scale in (0.01, 1.0))
    ranks = 1 + (values[None] > values[:, None]).sum(axis=1)
    for rank, inner, outer in zip(ranks.tolist(), narrow, wide, strict=True):
        assert inner is not None
        assert outer is not None
        assert outer[0] <= inner[0] <= rank <= inner[1] <= outer[1]


def test_who_has_no_value_has_no_interval():
    values = np.array([1.0, np.nan, 0.0])
    known = uncertainty(values, np.eye(3) * 0.01, caveats=(heard_once(["c"]), Caveat((), "all are too narrow")))
    assert np.isnan(known.standard_deviations).tolist() == [False, True, False]
    assert known.rank_intervals == ((1, 1), None, (2, 2))
    document = json.loads(json.dumps(document_of(known), allow_nan=False))
    assert document["standard_deviations"][1] is None
    assert document["chances"][1] == [None, None, None]
    back = read_as(Uncertainty, document, "an uncertainty")
    assert back.rank_intervals == known.rank_intervals
    assert back.caveats == known.caveats
    assert "likely too narrow" in known.sentence
    assert document_of(back) == document_of(known)


def test_a_covariance_of_other_clients_is_refused():
    with pytest.raises(ValuationError, match="covariance of shape"):
        uncertainty(np.ones(2), np.eye(3))


def test_the_sentence_says_nothing_that_the_ranks_deny():
    near = uncertainty(np.array([1.0, 0.0, 0.0]), 0.2 * np.eye(3))
    assert near.trust is Trust.ROUGH_ORDER
    assert set(near.rank_intervals) == {(1, 3)}
    assert "no two can be told apart" in near.sentence
    together = uncertainty(np.array([1.0, 0.0]), np.full((2, 2), 1.0))  # wrong by the same, so their order is sure
    assert together.trust is Trust.INDISTINGUISHABLE
    assert together.rank_intervals == ((1, 1), (2, 2))
    assert "ranges do not overlap" in together.sentence
