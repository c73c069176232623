"""Data sets by name: synthetic data, digits, and the published image files."""

import gzip
import math
import os
import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis.extra import numpy as hnp

from fedworth.errors import UsageError
from fedworth.simulation import datasets
from fedworth.simulation.datasets import (
    DATASETS,
    N_TEST_PER_CLIENT,
    DatasetRequest,
    Samples,
    _samples,
    _source,
    load_dataset,
    read_cifar,
    read_idx,
    read_idx_pair,
    synthetic,
    synthetic_iid,
)
from fedworth.simulation.download import FOLDER_VARIABLE, data_folder


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


def test_every_train_sample_belongs_to_one_client_with_fifty_or_more():
    dataset = synthetic(7, alpha=1.0, beta=1.0, rng=np.random.default_rng(0))
    assert dataset.parts is not None
    assert np.array_equal(np.concatenate(dataset.parts), np.arange(len(dataset.train)))
    assert len(dataset.parts) == 7
    assert min(map(len, dataset.parts)) >= 50


def test_the_test_set_holds_equally_many_samples_of_each_client():
    dataset = synthetic(3, alpha=1.0, beta=1.0, rng=np.random.default_rng(0))
    assert dataset.test.features.shape == (3 * N_TEST_PER_CLIENT, 60)
    assert dataset.n_classes == 10


def test_the_same_seed_draws_the_same_samples():
    one, two = (synthetic(3, alpha=0.5, beta=1.0, rng=np.random.default_rng(4)) for _ in range(2))
    assert one.train.features.tobytes() == two.train.features.tobytes()
    assert one.test.labels.tobytes() == two.test.labels.tobytes()


def test_sizes_are_fifty_more_than_a_lognormal():
    """The log of size − 50 + ½ has median 4 and deviation 2: median within 5 deviations of its own error."""
    rng = np.random.default_rng(1)
    sizes = [len(part) for _ in range(4) for part in synthetic_iid(50, rng=rng).parts or ()]
    error = 2 * math.sqrt(math.pi / 2 / len(sizes))
    assert np.median(np.log(np.array(sizes) - 49.5)) == pytest.approx(4, abs=5 * error)


def test_feature_j_varies_as_j_to_the_minus_1_2():
    """A sample variance over n normal draws has a relative error of √(2/n)."""
    rng, n = np.random.default_rng(2), 20_000
    source = _source(1.0, 1.0, rng)
    features = _samples(source, n, rng).features.astype(np.float64)
    variances = features.var(axis=0) * np.arange(1, 61) ** 1.2  # (60,)
    assert variances == pytest.approx(1.0, abs=5 * math.sqrt(2 / n))
    assert features.mean(axis=0) == pytest.approx(source.center, abs=5 / math.sqrt(n))


def test_labels_are_the_class_that_the_source_makes_likeliest():
    rng = np.random.default_rng(3)
    source = _source(1.0, 1.0, rng)
    samples = _samples(source, 200, rng)
    scores = samples.features @ source.weights + source.bias  # (200, 10)
    softmax = np.exp(scores - scores.max(axis=1, keepdims=True))
    assert np.array_equal(np.argmax(softmax, axis=1), samples.labels)


def test_alpha_spreads_the_models_and_beta_the_features():
    """Over K sources the mean of W_k has variance α² + 1/600, with a relative error of √(2/K)."""
    rng, n_sources = np.random.default_rng(5), 400
    sources = [_source(3.0, 2.0, rng) for _ in range(n_sources)]
    tolerance = 5 * math.sqrt(2 / n_sources)
    assert np.var([s.weights.mean() for s in sources]) == pytest.approx(9 + 1 / 600, rel=tolerance)
    assert np.var([s.bias.mean() for s in sources]) == pytest.approx(9 + 1 / 10, rel=tolerance)
    assert np.var([s.center.mean() for s in sources]) == pytest.approx(4 + 1 / 60, rel=tolerance)


def test_alpha_changes_neither_features_nor_labels():
    """u_k is in every entry of W_k and b_k, so it moves the scores of all classes alike."""
    none, much = (synthetic(5, alpha=alpha, beta=1.0, rng=np.random.default_rng(8)) for alpha in (0.0, 10.0))
    assert np.array_equal(none.train.features, much.train.features)
    assert np.array_equal(none.train.labels, much.train.labels)


def test_only_the_iid_variant_gives_all_clients_the_same_features():
    def spread_of_means(dataset):
        means = [dataset.train.features[part].mean(axis=0) for part in dataset.parts]
        return float(np.var(means, axis=0).mean())

    shared = synthetic_iid(10, rng=np.random.default_rng(6))
    own = synthetic(10, alpha=0.0, beta=0.0, rng=np.random.default_rng(6))
    assert spread_of_means(shared) < 0.01 < 0.5 < spread_of_means(own)


def test_no_class_takes_most_of_the_iid_samples():
    """Scores are normal with one variance for all classes, so a class's share is mostly decided by its bias, |b| ≲ 2
    against a score's spread of √(Σ j^−1.2) ≈ 2: about a third for the most frequent class, 92 % with v ~ N(0, 1)."""
    shares = []
    for seed in range(10):
        labels = synthetic_iid(20, rng=np.random.default_rng(seed)).test.labels
        shares.append(np.bincount(labels).max() / len(labels))
    assert np.mean(shares) < 0.4
    assert max(shares) < 0.6


@pytest.mark.parametrize(("alpha", "beta"), [(-1.0, 0.0), (0.0, math.nan), (math.inf, 0.0)])
def test_a_spread_that_is_none_is_refused(alpha, beta):
    with pytest.raises(UsageError, match="expected a finite number of 0 or more"):
        synthetic(2, alpha=alpha, beta=beta, rng=np.random.default_rng(0))


def idx_bytes(array):
    return struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape) + array.tobytes()


def write_idx(path, array):
    path.write_bytes(gzip.compress(idx_bytes(np.asarray(array, np.uint8))))
    return path


@settings(deadline=None)
@given(array=hnp.arrays(np.uint8, hnp.array_shapes(min_dims=1, max_dims=3, min_side=0, max_side=5)))
def test_an_idx_file_gives_back_the_array_it_was_made_of(tmp_path_factory, array):
    path = write_idx(tmp_path_factory.getbasetemp() / "array.gz", array)
    assert np.array_equal(read_idx(path, array.ndim), array)


def test_images_and_labels_are_read_together_with_a_channel(tmp_path):
    images = write_idx(tmp_path / "images.gz", np.arange(12).reshape(3, 2, 2))
    labels = write_idx(tmp_path / "labels.gz", [7, 8, 9])
    pixels, classes = read_idx_pair(images, labels)
    assert pixels.shape == (3, 1, 2, 2)
    assert pixels[1, 0].tolist() == [[4, 5], [6, 7]]
    assert classes.tolist() == [7, 8, 9]


def test_cifar_batches_are_read_one_after_another_plane_by_plane(tmp_path):
    batches = [tmp_path / "one.bin", tmp_path / "two.bin"]
    for label, batch in enumerate(batches):
        planes = [bytes([10 * label + plane]) * 1024 for plane in range(3)]
        batch.write_bytes(bytes([label]) + b"".join(planes))
    pixels, classes = read_cifar(*batches)
    assert pixels.shape == (2, 3, 32, 32)
    assert classes.tolist() == [0, 1]
    assert pixels[:, :, 31, 31].tolist() == [[0, 1, 2], [10, 11, 12]]


def generator():
    return np.random.default_rng(11)


def load(name, **options):
    return load_dataset(name, DatasetRequest(generator(), 4, **options))


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
