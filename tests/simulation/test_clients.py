"""What each client trains on: division, copies and noise."""

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedworth.arrays import stream
from fedworth.errors import DataError, UsageError
from fedworth.simulation.clients import (
    PARTITIONS,
    divide,
    drifted,
    flipped_labels,
    noisy_features,
    partition_iid,
    partition_two_class,
)
from fedworth.simulation.datasets import Dataset, Samples

seeds = st.integers(0, 2**32 - 1)
quickly = settings(deadline=None, max_examples=60)


def generator(seed=0):
    return np.random.default_rng(seed)


def dataset(n_samples=200, n_classes=10, parts=None):
    """Sample s has feature s and class s mod n_classes."""
    features = np.arange(n_samples, dtype=np.float32)[:, np.newaxis]
    samples = Samples(features, np.arange(n_samples) % n_classes)
    return Dataset("toy", samples, samples.take(np.array([0])), n_classes, parts)


def held(parts):
    return np.sort(np.concatenate(parts)).tolist()


@quickly
@given(n_samples=st.integers(1, 80), n_clients=st.integers(1, 20), seed=seeds)
def test_iid_parts_hold_every_sample_once_and_are_equally_large(n_samples, n_clients, seed):
    n_clients = min(n_clients, n_samples)
    parts = partition_iid(np.zeros(n_samples, np.int64), n_clients, rng=generator(seed))
    assert held(parts) == list(range(n_samples))
    sizes = [len(part) for part in parts]
    assert max(sizes) - min(sizes) <= 1


@quickly
@given(n_clients=st.integers(1, 15), n_classes=st.integers(2, 12), seed=seeds, extra=st.integers(0, 40))
def test_two_class_parts_hold_two_classes_and_classes_are_held_equally_often(n_clients, n_classes, seed, extra):
    labels = generator(seed).permutation(np.arange(n_classes * n_clients + extra) % n_classes)
    parts = partition_two_class(labels, n_clients, rng=generator(seed))
    classes = [np.unique(labels[part]) for part in parts]
    assert [len(pair) for pair in classes] == [2] * n_clients
    slots = np.bincount(np.concatenate(classes), minlength=n_classes)
    assert slots.sum() == 2 * n_clients
    assert slots.max() - slots.min() <= 1


@quickly
@given(n_clients=st.integers(5, 15), seed=seeds, extra=st.integers(0, 40))
def test_two_class_parts_hold_every_sample_once_and_split_classes_evenly(n_clients, seed, extra):
    labels = generator(seed).permutation(np.arange(10 * n_clients + extra) % 10)
    parts = partition_two_class(labels, n_clients, rng=generator(seed))
    assert held(parts) == list(range(len(labels)))
    counts = np.array([np.bincount(labels[part], minlength=10) for part in parts])  # (n_clients, 10)
    for column in counts.T:
        shares = column[column > 0]
        assert shares.max() - shares.min() <= 1


def test_with_as_many_clients_as_classes_every_class_has_two_holders():
    labels = np.arange(1000) % 10
    parts = partition_two_class(labels, 10, rng=generator())
    assert np.bincount(np.concatenate([np.unique(labels[part]) for part in parts])).tolist() == [2] * 10
    assert [len(part) for part in parts] == [100] * 10


def test_classes_beyond_the_slots_are_left_out():
    labels = np.arange(100) % 10
    parts = partition_two_class(labels, 3, rng=generator())
    assert len(np.unique(labels[np.concatenate(parts)])) == 6
    assert [len(part) for part in parts] == [20] * 3


def test_pairs_of_classes_are_not_always_the_same():
    labels = np.arange(100) % 10
    draws = [partition_two_class(labels, 10, rng=generator(seed)) for seed in range(5)]
    pairs = [[tuple(np.unique(labels[part])) for part in parts] for parts in draws]
    assert all(before != after for before, after in pairwise(pairs))


@pytest.mark.parametrize("partition", [partition_iid, partition_two_class])
def test_the_same_seed_gives_the_same_parts(partition):
    labels = np.arange(300) % 7
    one, two = (partition(labels, 6, rng=generator(3)) for _ in range(2))
    assert [part.tolist() for part in one] == [part.tolist() for part in two]


def test_fewer_samples_than_clients_are_refused():
    with pytest.raises(DataError, match="3 samples for 4 clients"):
        partition_iid(np.zeros(3, np.int64), 4, rng=generator())


def test_a_class_with_fewer_samples_than_holders_is_refused():
    labels = np.array([0] * 50 + [1] * 2)
    with pytest.raises(DataError, match="class 1 has 2 samples for the 3 clients that hold it"):
        partition_two_class(labels, 3, rng=generator())


def test_one_class_cannot_be_divided_by_two_classes():
    with pytest.raises(DataError, match="1 classes, expected two or more"):
        partition_two_class(np.zeros(50, np.int64), 3, rng=generator())


def images(n_samples=300):
    """Bright squares in the corner of images of 8 × 8; sample s has class s mod 10."""
    features = np.zeros((n_samples, 1, 8, 8), np.float32)
    features[:, :, :3, :3] = 0.5
    samples = Samples(features, np.arange(n_samples) % 10)
    return Dataset("squares", samples, samples.take(np.array([0])), 10)


def skew_of(clients):
    """How far the clients' shares of the classes are from those of all samples together."""
    counts = np.array([np.bincount(client.labels, minlength=10) for client in clients])  # (n_clients, 10)
    shares = counts / counts.sum(axis=1, keepdims=True)
    return float(np.abs(shares - counts.sum(axis=0) / counts.sum()).sum(axis=1).mean())


@quickly
@given(name=st.sampled_from(["dirichlet", "quantity"]), n_clients=st.integers(1, 12), seed=seeds)
def test_unequal_parts_hold_every_sample_once_and_ten_or_more(name, n_clients, seed):
    clients = divide(dataset(1000), name, n_clients, {}, rng=generator(seed), alpha=0.5)
    assert held([client.features[:, 0].astype(int) for client in clients]) == list(range(1000))
    assert min(map(len, clients)) >= 10


def test_dirichlet_parts_are_the_more_unequal_the_smaller_alpha_is():
    parts = {a: divide(dataset(5000), "dirichlet", 10, {}, rng=generator(), alpha=a) for a in (0.1, 1.0, 1000.0)}
    skews = [skew_of(clients) for clients in parts.values()]
    assert skews == sorted(skews, reverse=True)
    assert skews[0] > 1.2
    assert skews[-1] < 0.1
    assert np.ptp([len(client) for client in parts[0.1]]) > 300


def test_quantities_differ_and_labels_do_not():
    clients = divide(dataset(5000), "quantity", 5, {}, rng=generator(), alpha=1.0)
    assert max(map(len, clients)) > 3 * min(map(len, clients))
    assert skew_of([client for client in clients if len(client) > 200]) < 0.2


def test_features_are_turned_and_brightened_differently_for_each_client():
    clients = divide(images(), "feature", 5, {4: 0}, rng=generator())
    means = [client.features.mean(axis=0) for client in clients]
    assert all(not np.allclose(a, b, atol=1e-3) for a, b in pairwise(means[:4]))
    assert np.array_equal(means[0], means[4])
    assert min(client.features.min() for client in clients) >= 0
    same = divide(images(), "feature", 5, {}, rng=generator(), beta=0.0)
    np.testing.assert_allclose(np.concatenate([client.features for client in same]), images().train.features, atol=1e-6)


@pytest.mark.parametrize(
    ("name", "found", "skew", "message"),
    [
        ("dirichlet", dataset(1000), {"alpha": 0.0}, "alpha is 0.0, expected a finite number above 0"),
        ("dirichlet", dataset(20), {}, "20 samples for 4 clients, expected 10 each"),
        ("dirichlet", dataset(44, 2), {"alpha": 1e-3}, "take a larger alpha"),
        ("quantity", dataset(20), {}, "20 samples for 4 clients, expected 10 each"),
        ("feature", dataset(100), {}, "turns images, but samples of data set 'toy' have shape"),
        ("feature", images(), {"beta": -1.0}, "beta is -1.0"),
    ],
)
def test_unequal_parts_that_cannot_be_are_refused(name, found, skew, message):
    with pytest.raises((DataError, UsageError), match=message):
        divide(found, name, 4, {}, rng=generator(), **skew)


def test_numbers_cannot_be_divided_by_class_nor_flipped():
    samples = Samples(np.zeros((50, 2), np.float32), np.linspace(0, 1, 50, dtype=np.float32))
    for name in ("two-class", "dirichlet"):
        with pytest.raises(DataError, match="divides by class, but the labels of data set 'toy' are numbers"):
            divide(Dataset("toy", samples, samples, 1), name, 4, {}, rng=generator())
    with pytest.raises(DataError, match="labels are numbers"):
        flipped_labels(samples, 0.5, 1, rng=generator())


def test_drift_replaces_samples_by_those_of_the_next_client():
    parts = divide(dataset(200), "two-class", 5, {}, rng=generator())
    half, all_of_it = drifted(parts, 0.5), drifted(parts, 1.0)
    assert [len(part) for part in half] == [len(part) for part in parts]
    for before, after, following in zip(parts, half, (*parts[1:], parts[0]), strict=True):
        n_new = len(before) // 2
        assert np.array_equal(after.features[:n_new], following.features[:n_new])
        assert np.array_equal(after.features[n_new:], before.features[n_new:])
    assert np.array_equal(all_of_it[4].labels, parts[0].labels)


@pytest.mark.parametrize("name", sorted({*PARTITIONS} - {"feature"}))
def test_a_copy_holds_its_originals_samples_and_the_others_share_the_rest(name):
    nine = tuple(np.array_split(np.arange(200), 9))
    clients = divide(dataset(parts=nine), name, 10, {9: 0}, rng=generator())
    assert len(clients) == 10
    assert clients[9].features.tobytes() == clients[0].features.tobytes()
    assert clients[9].labels.tobytes() == clients[0].labels.tobytes()
    distinct = np.concatenate([client.features[:, 0] for client in clients[:9]])
    assert np.sort(distinct).tolist() == list(range(200))


def test_copies_may_stand_before_their_originals():
    clients = divide(dataset(), "iid", 3, {0: 2}, rng=generator())
    assert clients[0].features.tobytes() == clients[2].features.tobytes()
    assert len(clients[1]) == 100


def test_the_natural_division_is_the_data_sets_own():
    own = (np.array([3, 1]), np.array([0, 7]))
    clients = divide(dataset(parts=own), "natural", 2, {}, rng=generator())
    assert [client.features[:, 0].tolist() for client in clients] == [[3, 1], [0, 7]]


def test_a_data_set_that_comes_undivided_has_no_natural_division():
    with pytest.raises(DataError, match="'toy' does not come divided"):
        divide(dataset(), "natural", 2, {}, rng=generator())


def test_a_client_left_without_samples_is_refused():
    own = (np.array([3, 1]), np.empty(0, np.int64))
    with pytest.raises(DataError, match="client 1 has no samples"):
        divide(dataset(parts=own), "natural", 2, {}, rng=generator())


def test_an_unknown_partition_is_refused_with_the_nearest_name():
    with pytest.raises(UsageError, match="unknown partition 'two_class': did you mean 'two-class'"):
        divide(dataset(), "two_class", 2, {}, rng=generator())  # type: ignore[arg-type]


def samples(n, n_classes=10, seed=0):
    rng = np.random.default_rng(seed)
    features = rng.uniform(0, 1, (n, 1, 4, 4)).astype(np.float32)
    return Samples(features, rng.integers(0, n_classes, n))


shares = st.floats(0, 1)


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


@pytest.mark.parametrize("strength", [-1.0, math.inf, math.nan])
def test_a_strength_that_is_none_is_refused(strength):
    with pytest.raises(UsageError, match="strength is"):
        noisy_features(samples(5), 0.5, strength, rng=np.random.default_rng(0))
