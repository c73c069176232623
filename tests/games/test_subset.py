"""A subset of the test set: every class in proportion, every sample with the same chance."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from fedworth.errors import UsageError
from fedworth.games.subset import stratified_subset
from fedworth.task.task import Task


def task_with(labels):
    """Each sample's input is its place, so that it can be told which were kept."""
    labels = torch.as_tensor(labels)
    return Task(nn.Linear(1, 10), torch.arange(len(labels), dtype=torch.float32)[:, None], labels)


labellings = st.lists(st.integers(0, 4), min_size=1, max_size=60)


@given(labellings, st.floats(0, 1), st.integers(0, 99))
def test_every_class_keeps_its_share(labels, share, seed):
    n = max(1, round(share * len(labels)))
    found = stratified_subset(task_with(labels), n, rng=np.random.default_rng(seed))
    assert len(found.labels) == n
    for label in set(labels):
        expected = n * labels.count(label) / len(labels)
        assert math.floor(expected) <= int((found.labels == label).sum()) <= math.ceil(expected)


@given(labellings, st.integers(0, 99))
def test_samples_are_kept_once_with_their_labels_in_their_order(labels, seed):
    found = stratified_subset(task_with(labels), max(1, len(labels) // 2), rng=np.random.default_rng(seed))
    places = found.inputs[:, 0].to(torch.int64)
    assert (places.diff() > 0).all()
    assert torch.equal(found.labels, torch.tensor(labels)[places])


def test_all_samples_are_the_task_itself():
    task = task_with([3, 1, 2, 1])
    found = stratified_subset(task, 4, rng=np.random.default_rng(0))
    assert torch.equal(found.inputs, task.inputs)
    assert found.module is task.module
    assert found.fingerprint == task.fingerprint


def test_every_sample_has_the_same_chance():
    """A sample is kept with chance f = n/N; over R subsets its share is nearly normal with variance f (1−f) / R, and
    one of 23 is off by 4.5 of its standard deviations with chance 2e-4."""
    labels, n, n_subsets = [0] * 13 + [1] * 7 + [2] * 3, 9, 2000
    task, rng, counts = task_with(labels), np.random.default_rng(1), np.zeros(23)
    for _ in range(n_subsets):
        counts[stratified_subset(task, n, rng=rng).inputs[:, 0].to(torch.int64).numpy()] += 1
    share = n / 23
    assert np.abs(counts / n_subsets - share).max() < 4.5 * math.sqrt(share * (1 - share) / n_subsets)


def test_the_same_generator_gives_the_same_subset_and_another_test_set():
    task = task_with([0, 1] * 20)
    first, again = (stratified_subset(task, 10, rng=np.random.default_rng(2)) for _ in range(2))
    assert first.fingerprint == again.fingerprint != task.fingerprint


@pytest.mark.parametrize("n", [0, -1, 4])
def test_a_number_of_samples_that_cannot_be_had_is_refused(n):
    with pytest.raises(UsageError, match=f"{n} test samples: expected 1 to 3"):
        stratified_subset(task_with([0, 1, 2]), n, rng=np.random.default_rng(0))


def test_samples_keep_their_groups():
    labels = torch.arange(12) % 3
    task = Task(nn.Linear(1, 3), torch.arange(12.0)[:, None], labels, groups=np.arange(12) // 4)
    small = stratified_subset(task, 6, rng=np.random.default_rng(0))
    assert small.groups == {"group": tuple(str(int(x) // 4) for x in small.inputs[:, 0])}
