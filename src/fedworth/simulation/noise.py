"""Makes a client's data worse on purpose, to see whether its value falls (the paper's studies of noise).

Noisy features: N(0, σ²) on every feature of round(share · n) samples, σ = strength × the standard deviation
of all the client's features; the paper does not give its σ. Nothing is clipped.

Noisy labels: round(share · n) labels become a uniformly random *other* class.

Both draw from the `rng` they are given and from nothing else. A copy of a client stays a copy only if it is
given a generator in the same state: make one per original, `stream(seed, "noise", original)`, for both.
"""

import math

import numpy as np

from fedworth.arrays import Indices
from fedworth.errors import DataError, UsageError
from fedworth.simulation.data.dataset import Samples


def noisy_features(samples: Samples, share: float, strength: float, *, rng: np.random.Generator) -> Samples:
    """The samples, with noise on every feature of a share of them."""
    if not (math.isfinite(strength) and strength >= 0):
        raise UsageError(f"noisy features: strength is {strength}, expected a finite number of 0 or more")
    hit = _hit(len(samples), share, rng)
    if len(hit) == 0:
        return samples
    sigma = strength * float(samples.features.std(dtype=np.float64))
    features = samples.features.copy()
    features[hit] += rng.normal(0.0, sigma, features[hit].shape).astype(np.float32)  # (n_hit, ...)
    return Samples(features, samples.labels)


def flipped_labels(samples: Samples, share: float, n_classes: int, *, rng: np.random.Generator) -> Samples:
    """The samples, with another class on a share of them."""
    if n_classes < 2:
        raise UsageError(f"flipped labels: n_classes is {n_classes}, expected 2 or more to have another")
    if np.any(samples.labels >= n_classes):
        largest = samples.labels.max()
        raise DataError(f"flipped labels: found label {largest}, expected 0 to {n_classes - 1}")
    hit = _hit(len(samples), share, rng)
    labels = samples.labels.copy()
    # A step of 1 to n_classes − 1 around the circle of classes reaches every other class equally often.
    labels[hit] = (labels[hit] + rng.integers(1, n_classes, len(hit))) % n_classes  # (n_hit,)
    return Samples(samples.features, labels)


def _hit(n_samples: int, share: float, rng: np.random.Generator) -> Indices:
    """The positions of round(share · n) samples, drawn without repetition."""
    if not 0 <= share <= 1:
        raise UsageError(f"noise: share is {share}, expected a number from 0 to 1")
    return rng.choice(n_samples, round(share * n_samples), replace=False)
