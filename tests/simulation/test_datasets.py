"""Data sets by name: the shipped, the drawn, and, where they are at hand, the published ones."""

import os

import numpy as np
import pytest

from fedworth.errors import UsageError
from fedworth.simulation import datasets
from fedworth.simulation.datasets import DATASETS, load_dataset
from fedworth.simulation.download import FOLDER_VARIABLE, data_folder
from tests.simulation.test_formats import write_idx


def generator():
    return np.random.default_rng(11)


def load(name, **options):
    return load_dataset(name, rng=generator(), n_clients=4, **options)


def test_an_unknown_data_set_is_refused_with_the_nearest_name():
    with pytest.raises(UsageError, match="unknown data set 'fashion': did you mean 'fashion-mnist'"):
        load("fashion")


@pytest.mark.parametrize("limit", ["train_limit", "test_limit"])
def test_a_limit_below_one_is_refused(limit):
    with pytest.raises(UsageError, match=f"{limit} is 0, expected 1 or more"):
        load("digits", **{limit: 0})


def test_digits_are_small_images_from_0_to_1():
    digits = load("digits")
    assert digits.train.features.shape == (1397, 1, 8, 8)
    assert digits.test.features.shape == (400, 1, 8, 8)
    assert digits.train.features.min() == 0
    assert digits.train.features.max() == 1
    assert set(digits.test.labels) == set(range(digits.n_classes))
    assert digits.parts is None


def test_no_digit_is_both_trained_and_tested_on():
    digits = load("digits")
    both = np.concatenate([digits.train.features, digits.test.features]).reshape(1797, -1)
    assert len(np.unique(both, axis=0)) == 1797


@pytest.mark.parametrize("name", ["digits", "synthetic", "synthetic-iid"])
def test_the_same_seed_loads_the_same_bytes(name):
    one, two = load(name, train_limit=100), load(name, train_limit=100)
    assert one.train.features.tobytes() == two.train.features.tobytes()
    assert one.test.labels.tobytes() == two.test.labels.tobytes()


@pytest.mark.parametrize("name", ["digits", "synthetic", "synthetic-iid"])
def test_a_limit_keeps_that_many_samples(name):
    dataset = load(name, train_limit=90, test_limit=30)
    assert (len(dataset.train), len(dataset.test)) == (90, 30)


def test_a_limit_beyond_the_data_set_keeps_it_whole():
    assert len(load("digits", train_limit=10**6).train) == 1397


def test_a_limited_data_set_keeps_each_sample_with_its_client():
    whole, limited = load("synthetic"), load("synthetic", train_limit=150)
    assert whole.parts is not None
    assert limited.parts is not None
    assert sum(map(len, limited.parts)) == 150
    for before, after in zip(whole.parts, limited.parts, strict=True):
        theirs = {row.tobytes() for row in whole.train.features[before]}
        assert {row.tobytes() for row in limited.train.features[after]} <= theirs


def test_synthetic_data_are_the_papers_non_iid_unless_told():
    told = load("synthetic", alpha=1.0, beta=1.0)
    assert load("synthetic").train.features.tobytes() == told.train.features.tobytes()
    assert load("synthetic").train.labels.tobytes() == told.train.labels.tobytes()


def test_beta_reaches_the_generator():
    assert load("synthetic", beta=0.0).train.features.tobytes() != load("synthetic").train.features.tobytes()


@pytest.mark.parametrize("name", ["mnist", "fashion-mnist"])
def test_idx_files_become_features_from_0_to_1(monkeypatch, tmp_path, name):
    images, labels = np.arange(24).reshape(6, 2, 2) * 10, np.arange(6)
    files = (
        write_idx(tmp_path / "train-images.gz", images),
        write_idx(tmp_path / "train-labels.gz", labels),
        write_idx(tmp_path / "test-images.gz", images[:3] + 1),
        write_idx(tmp_path / "test-labels.gz", labels[:3]),
    )
    monkeypatch.setattr(datasets, "data_files", lambda _name, _folder: files)
    dataset = load(name, train_limit=5)
    assert (dataset.name, len(dataset.train), len(dataset.test)) == (name, 5, 3)
    expected = (images[dataset.train.labels, np.newaxis] / 255).astype(np.float32)
    assert dataset.train.features == pytest.approx(expected)
    assert dataset.test.features[0, 0, 0, 0] == pytest.approx(1 / 255)


def test_cifar_batches_become_features_from_0_to_1(monkeypatch, tmp_path):
    files = [tmp_path / f"{index}.bin" for index in range(6)]
    for index, file in enumerate(files):
        file.write_bytes((bytes([index]) + bytes([51 * index]) * 3072) * 2)
    monkeypatch.setattr(datasets, "data_files", lambda _name, _folder: tuple(files))
    dataset = load("cifar10")
    assert dataset.train.features.shape == (10, 3, 32, 32)
    assert dataset.train.labels.tolist() == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]
    assert dataset.train.features[:, 2, 5, 5] == pytest.approx(dataset.train.labels / 5)
    assert dataset.test.labels.tolist() == [5, 5]


def test_every_published_data_set_has_a_name_here():
    assert {"mnist", "fashion-mnist", "cifar10"} < set(DATASETS)


@pytest.mark.skipif(not os.environ.get(FOLDER_VARIABLE), reason=f"{FOLDER_VARIABLE} is not set")
@pytest.mark.parametrize("name", ["mnist", "fashion-mnist", "cifar10"])
def test_the_published_files_give_the_published_images(name):
    folder = {"cifar10": "cifar-10-batches-bin"}.get(name, name)
    if not (data_folder() / folder).is_dir():
        pytest.skip(f"{FOLDER_VARIABLE} holds no {folder}")
    dataset = load(name, train_limit=2_000)
    shape = (3, 32, 32) if name == "cifar10" else (1, 28, 28)
    assert dataset.train.features.shape == (2_000, *shape)
    assert dataset.test.features.shape == (10_000, *shape)
    assert np.bincount(dataset.test.labels).tolist() == TEST_LABELS[name]
    assert (dataset.test.features.min(), dataset.test.features.max()) == (0, 1)


TEST_LABELS = {
    "mnist": [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009],
    "fashion-mnist": [1000] * 10,
    "cifar10": [1000] * 10,
}
