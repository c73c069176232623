"""Noise hits as many samples as asked, and nothing else."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedworth.arrays import stream
from fedworth.errors import DataError, UsageError
from fedworth.simulation.clients import flipped_labels, noisy_features
from fedworth.simulation.datasets import Samples

seeds = st.integers(0, 2**32 - 1)
shares = st.floats(0, 1)
quickly = settings(deadline=None, max_examples=60)


def samples(n, n_classes=10, seed=0):
    rng = np.random.default_rng(seed)
    features = rng.uniform(0, 1, (n, 1, 4, 4)).astype(np.float32)
    return Samples(features, rng.integers(0, n_classes, n))


@quickly
@given(n=st.integers(1, 60), share=shares, seed=seeds)
def test_features_of_the_share_asked_for_change_and_labels_stay(n, share, seed):
    clean = samples(n)
    noisy = noisy_features(clean, share, 1.0, rng=np.random.default_rng(seed))
    changed = (noisy.features != clean.features).reshape(n, -1).any(axis=1)
    assert changed.sum() == round(share * n)
    assert np.array_equal(noisy.labels, clean.labels)


@quickly
@given(n=st.integers(0, 60), share=shares, n_classes=st.integers(2, 12), seed=seeds)
def test_labels_of_the_share_asked_for_become_another_class(n, share, n_classes, seed):
    clean = samples(n, n_classes)
    flipped = flipped_labels(clean, share, n_classes, rng=np.random.default_rng(seed))
    assert (flipped.labels != clean.labels).sum() == round(share * n)
    assert np.all((flipped.labels >= 0) & (flipped.labels < n_classes))
    assert np.array_equal(flipped.features, clean.features)


def test_noise_is_as_strong_as_asked_relative_to_the_spread_of_the_features():
    """A standard deviation over n normal draws has a relative error of √(1/2n)."""
    clean = samples(4_000)
    noisy = noisy_features(clean, 1.0, 3.0, rng=np.random.default_rng(1))
    noise = noisy.features.astype(np.float64) - clean.features
    tolerance = 5 * math.sqrt(1 / (2 * noise.size))
    assert noise.std() == pytest.approx(3 * clean.features.std(), rel=tolerance)


def test_every_other_class_is_equally_likely():
    """Each of 3 others is hit Binomial(n, ⅓) times: within 5 standard deviations of n/3."""
    n = 9_000
    clean = Samples(np.zeros((n, 1), np.float32), np.full(n, 2))
    flipped = flipped_labels(clean, 1.0, 4, rng=np.random.default_rng(2))
    counts = np.bincount(flipped.labels, minlength=4)
    assert counts[2] == 0
    assert counts[[0, 1, 3]] == pytest.approx(n / 3, abs=5 * math.sqrt(n * 2 / 9))


def test_the_clean_samples_are_left_as_they_were():
    clean, before = samples(20), samples(20)
    noisy_features(clean, 1.0, 1.0, rng=np.random.default_rng(0))
    flipped_labels(clean, 1.0, 10, rng=np.random.default_rng(0))
    assert np.array_equal(clean.features, before.features)
    assert np.array_equal(clean.labels, before.labels)


def test_no_strength_changes_nothing():
    clean = samples(20)
    assert np.array_equal(noisy_features(clean, 1.0, 0.0, rng=np.random.default_rng(0)).features, clean.features)


def test_a_copy_given_the_stream_of_its_original_stays_a_copy():
    original, copy = (
        flipped_labels(noisy_features(samples(30), 0.5, 1.0, rng=rng), 0.3, 10, rng=rng)
        for rng in (stream(7, "noise", 0), stream(7, "noise", 0))
    )
    assert original.features.tobytes() == copy.features.tobytes()
    assert original.labels.tobytes() == copy.labels.tobytes()


@pytest.mark.parametrize("share", [-0.1, 1.1, math.nan])
def test_a_share_outside_0_to_1_is_refused(share):
    with pytest.raises(UsageError, match=r"share is .*, expected a number from 0 to 1"):
        noisy_features(samples(5), share, 1.0, rng=np.random.default_rng(0))
    with pytest.raises(UsageError, match="share is"):
        flipped_labels(samples(5), share, 10, rng=np.random.default_rng(0))


@pytest.mark.parametrize("strength", [-1.0, math.inf, math.nan])
def test_a_strength_that_is_none_is_refused(strength):
    with pytest.raises(UsageError, match="strength is"):
        noisy_features(samples(5), 0.5, strength, rng=np.random.default_rng(0))


def test_a_single_class_has_no_other():
    with pytest.raises(UsageError, match="n_classes is 1, expected 2 or more"):
        flipped_labels(samples(5, n_classes=1), 0.5, 1, rng=np.random.default_rng(0))


def test_a_label_beyond_the_classes_is_refused():
    clean = Samples(np.zeros((2, 1), np.float32), np.array([0, 3]))
    with pytest.raises(DataError, match="found label 3, expected 0 to 2"):
        flipped_labels(clean, 0.5, 3, rng=np.random.default_rng(0))
