"""The samples of a data set are divided among the clients, each to one, and to copies again."""

from itertools import pairwise
from typing import get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedworth.errors import DataError, UsageError
from fedworth.names import PartitionName
from fedworth.simulation.clients import (
    distinct_clients,
    divide,
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
    with pytest.raises(DataError, match="1 classes for 3 clients"):
        partition_two_class(np.zeros(50, np.int64), 3, rng=generator())


@pytest.mark.parametrize("name", get_args(PartitionName))
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


def test_a_natural_division_among_another_number_of_clients_is_refused():
    with pytest.raises(DataError, match=r"among 3 clients, expected 2 \(copies not counted\); load it with"):
        divide(dataset(parts=tuple(np.array_split(np.arange(200), 3))), "natural", 3, {2: 0}, rng=generator())


def test_a_client_left_without_samples_is_refused():
    own = (np.array([3, 1]), np.empty(0, np.int64))
    with pytest.raises(DataError, match="client 1 has no samples"):
        divide(dataset(parts=own), "natural", 2, {}, rng=generator())


def test_an_unknown_partition_is_refused_with_the_nearest_name():
    with pytest.raises(UsageError, match="unknown partition 'two_class': did you mean 'two-class'"):
        divide(dataset(), "two_class", 2, {}, rng=generator())  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("copies", "message"),
    [
        ({3: 0}, "expected clients from 0 to 2"),
        ({0: -1}, "expected clients from 0 to 2"),
        ({1: 1}, "client 1 is itself a copy"),
        ({1: 0, 2: 1}, "client 1 is itself a copy; name the original"),
    ],
)
def test_copies_of_nobody_or_of_copies_are_refused(copies, message):
    with pytest.raises(UsageError, match=message):
        distinct_clients(3, copies)


def test_a_federation_has_a_client():
    with pytest.raises(UsageError, match="n_clients is 0"):
        distinct_clients(0, {})
