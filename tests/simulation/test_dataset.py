"""Samples and data sets are checked when they are made."""

from dataclasses import FrozenInstanceError

import numpy as np
import pytest

from fedworth.errors import DataError
from fedworth.simulation.datasets import Dataset, Samples


def samples(labels, n_features=2):
    features = np.arange(len(labels) * n_features, dtype=np.float32).reshape(len(labels), n_features)
    return Samples(features, np.asarray(labels, np.int64))


def test_taken_samples_come_in_the_order_asked_for():
    taken = samples([5, 6, 7]).take(np.array([2, 0]))
    assert len(taken) == 2
    assert taken.labels.tolist() == [7, 5]
    assert taken.features.tolist() == [[4, 5], [0, 1]]


def test_taking_nothing_leaves_the_shape_of_a_sample():
    taken = samples([5, 6, 7], n_features=4).take(np.empty(0, np.int64))
    assert taken.features.shape == (0, 4)


def test_samples_cannot_be_exchanged():
    with pytest.raises(FrozenInstanceError):
        samples([0]).labels = np.array([1])


@pytest.mark.parametrize(
    ("features", "labels", "message"),
    [
        (np.zeros((2, 3)), np.zeros(2, np.int64), "features are float64, expected float32"),
        (np.zeros((2, 3), np.float32), np.zeros(2, np.int32), "labels are int32, expected int64"),
        (np.zeros(2, np.float32), np.zeros(2, np.int64), r"found features \(2,\) and labels \(2,\)"),
        (np.zeros((2, 3), np.float32), np.zeros((2, 1), np.int64), r"labels \(2, 1\)"),
        (np.zeros((2, 3), np.float32), np.zeros(3, np.int64), "2 features and 3 labels"),
        (np.zeros((2, 3), np.float32), np.array([0, -4]), "sample 1: label is -4"),
    ],
)
def test_samples_that_do_not_fit_are_refused_with_what_was_found(features, labels, message):
    with pytest.raises(DataError, match=message):
        Samples(features, labels)


@pytest.mark.parametrize("broken", [np.nan, np.inf, -np.inf])
def test_features_that_are_not_finite_are_refused_and_located(broken):
    features = np.zeros((3, 1, 2, 2), np.float32)
    features[1, 0, 1, 0] = broken
    with pytest.raises(DataError, match="sample 1: features are not all finite"):
        Samples(features, np.zeros(3, np.int64))


def test_a_label_beyond_the_classes_is_refused():
    with pytest.raises(DataError, match="'toy', test: found label 2, expected 0 to 1"):
        Dataset("toy", samples([0, 1]), samples([2]), n_classes=2)


def test_a_data_set_without_test_samples_is_refused():
    with pytest.raises(DataError, match="'toy', test: found no samples"):
        Dataset("toy", samples([0, 1]), samples([]), n_classes=2)


def test_train_and_test_samples_of_different_shape_are_refused():
    with pytest.raises(DataError, match=r"train samples have shape \(2,\), test samples \(3,\)"):
        Dataset("toy", samples([0]), samples([0], n_features=3), n_classes=1)


@pytest.mark.parametrize(
    ("parts", "message"),
    [(([0], [2]), "outside its 2 train samples"), (([0], [0, 1]), "in two parts"), (([-1],), "outside")],
)
def test_parts_that_do_not_divide_the_train_samples_are_refused(parts, message):
    with pytest.raises(DataError, match=message):
        Dataset("toy", samples([0, 0]), samples([0]), 1, tuple(np.array(part) for part in parts))
