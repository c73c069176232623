"""What clients learn from: samples, and a data set made of samples to train on and to test on.

Both are checked when they are made, so that nothing later meets a NaN, a label without a sample
or a class that the model has no output for. The arrays are shared, not copied: treat them as read-only.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedworth.arrays import Indices
from fedworth.errors import DataError

Features = NDArray[np.float32]
"""(n_samples, ...): what a model is shown."""

Labels = NDArray[np.int64]
"""(n_samples,): the class of each sample, from 0."""


@dataclass(frozen=True, slots=True, eq=False)
class Samples:
    """Features and the class each belongs to."""

    features: Features
    labels: Labels

    def __post_init__(self) -> None:
        _check_type("features", self.features, np.float32)
        _check_type("labels", self.labels, np.int64)
        if self.features.ndim < 2 or self.labels.ndim != 1:
            shapes = f"features {self.features.shape} and labels {self.labels.shape}"
            raise DataError(f"samples: found {shapes}, expected (n, ...) and (n,); reshape them")
        if len(self.features) != len(self.labels):
            found = f"{len(self.features)} features and {len(self.labels)} labels"
            raise DataError(f"samples: found {found}, expected as many of the one as of the other")
        _check_finite(self.features)
        if np.any(self.labels < 0):
            where = int(np.argmax(self.labels < 0))
            raise DataError(f"sample {where}: label is {self.labels[where]}, expected 0 or more; recode it")

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, indices: Indices) -> "Samples":
        """The samples at these positions, in this order, copied."""
        return Samples(self.features[indices], self.labels[indices])


@dataclass(frozen=True, slots=True, eq=False)
class Dataset:
    """Samples to train on, samples to test on, and, where it has one, its own division among clients.

    `parts` holds for each client the positions of its samples in `train`.
    """

    name: str
    train: Samples
    test: Samples
    n_classes: int
    parts: tuple[Indices, ...] | None = None

    def __post_init__(self) -> None:
        for role, samples in (("train", self.train), ("test", self.test)):
            _check_classes(f"data set {self.name!r}, {role}", samples, self.n_classes)
        shape, test_shape = self.train.features.shape[1:], self.test.features.shape[1:]
        if shape != test_shape:
            raise DataError(
                f"data set {self.name!r}: train samples have shape {shape}, test samples {test_shape}; "
                "expected the same shape, so that one model fits both"
            )
        if self.parts is not None:
            _check_parts(self.name, self.parts, len(self.train))


def _check_type(what: str, array: NDArray[Any], expected: type[np.generic]) -> None:
    if array.dtype != expected:
        name = expected.__name__
        raise DataError(f"samples: {what} are {array.dtype}, expected {name}; convert with .astype(np.{name})")


def _check_finite(features: Features) -> None:
    finite = np.isfinite(features)
    if not finite.all():
        where = int(np.argmin(finite.reshape(len(features), -1).all(axis=1)))
        raise DataError(f"sample {where}: features are not all finite; drop the sample or mend it")


def _check_classes(where: str, samples: Samples, n_classes: int) -> None:
    if len(samples) == 0:
        raise DataError(f"{where}: found no samples, expected at least one")
    largest = int(samples.labels.max())
    if largest >= n_classes:
        expected = f"expected 0 to {n_classes - 1}"
        raise DataError(f"{where}: found label {largest}, {expected}; raise n_classes or recode the labels")


def _check_parts(name: str, parts: tuple[Indices, ...], n_samples: int) -> None:
    held = np.concatenate([np.empty(0, np.int64), *parts])  # (n_held,)
    if np.any((held < 0) | (held >= n_samples)):
        raise DataError(f"data set {name!r}: parts point outside its {n_samples} train samples")
    if len(np.unique(held)) < len(held):
        raise DataError(f"data set {name!r}: a train sample is in two parts, expected one at most")
