"""Synthetic(α, β) is what Li et al. describe."""

import math

import numpy as np
import pytest

from fedworth.errors import UsageError
from fedworth.simulation.datasets import N_TEST_PER_CLIENT, _samples, _source, synthetic, synthetic_iid


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
