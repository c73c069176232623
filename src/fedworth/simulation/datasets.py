"""Data sets by name, to train on and to test on.

    synthetic      Synthetic(α, β) of Li et al., divided among clients as it is drawn
    synthetic-iid  the same with one source for all clients
    regression     Friedman's function of ten features, with noise; divided among clients as it is drawn
    digits         1,797 scans of 8 × 8, shipped with scikit-learn: no download
    mnist, fashion-mnist, cifar10  published files, found or fetched by `download`

Images have the shape (n, channels, height, width) and features from 0 to 1. A limit keeps that many samples, drawn at
random, in their order. Arrays are shared, not copied: treat them as read-only.

Synthetic(α, β) is from Li et al. 2018 ("Federated optimization in heterogeneous networks"), §5.1. Each client k has a
source of its own, of 60 features and 10 classes, and ⌊lognormal(4, 2)⌋ + 50 samples to train on:

    u_k ~ N(0, α²),  W_k, b_k ~ N(u_k, 1)      α: meant to say how much the clients' models differ
    B_k ~ N(0, β²),  v_k      ~ N(B_k, 1)      β: how much the clients' features differ
    x ~ N(v_k, diag(j^−1.2)),  y = argmax softmax(x W_k + b_k)

α has no effect: u_k adds u_k(Σ_j x_j + 1) to the score of every class, which the argmax does not see. It is kept so
that the data are those of Li et al. α = β = 0, which the paper calls IID, still gives every client its own W_k, b_k and
v_k. `synthetic_iid` draws one W and b for all clients and takes v = 0, as Li et al. do for their IID data; with
v ~ N(0, 1), |v| is about 8, and one class would win nearly everywhere. The test set has equally many fresh samples from
each client's source, so that a client's size does not decide what the federation is tested on.

`regression` is the first function of Friedman (1991, "Multivariate adaptive regression splines"), scaled to mean 0 and
variance 1 for uniform features. Its labels are numbers, so its models are judged by their squared error. Client k has
⌊lognormal(5, 0.7)⌋ + 50 samples, and the features u^exp(β z_kj / 2) with u uniform and z_kj normal: all clients share
one function, but see different parts of it.

    y = 10 sin(π x_1 x_2) + 20 (x_3 − ½)² + 10 x_4 + 5 x_5 + N(0, 1)        x_6 to x_10 have no effect
"""

import gzip
import math
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedworth.arrays import Indices
from fedworth.errors import DataError, UsageError, unknown_name
from fedworth.names import DatasetName
from fedworth.simulation.download import data_files

Features = NDArray[np.float32]  # (n_samples, ...)
Labels = NDArray[np.int64] | NDArray[np.float32]  # (n_samples,): classes from 0, or the numbers of a regression
Pixels = NDArray[np.uint8]

N_CLASSES = 10
ALPHA, BETA = 1.0, 1.0  # what the paper calls non-IID synthetic data

DIGITS = Path("datasets/data/digits.csv.gz")  # in scikit-learn's package
N_DIGITS_TEST = 400

N_FEATURES = 60  # of synthetic data
N_TEST_PER_CLIENT = 100
N_FRIEDMAN_FEATURES, N_FRIEDMAN_TEST_PER_CLIENT = 10, 600
FRIEDMAN_MEAN, FRIEDMAN_DEVIATION = 14.4, 4.9

SPREAD = np.arange(1, N_FEATURES + 1) ** -0.6  # (n_features,): the standard deviation of feature j, the root of j^−1.2

CIFAR_SHAPE = (3, 32, 32)
CIFAR_RECORD = 1 + 3 * 32 * 32


@dataclass(frozen=True, slots=True, eq=False)
class Samples:
    """Features and the class, or the number, of each sample."""

    features: Features
    labels: Labels

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def has_numbers(self) -> bool:
        """Whether labels are numbers to predict, not classes."""
        return self.labels.dtype == np.float32

    def take(self, indices: Indices) -> "Samples":
        """A copy of the samples at these positions, in this order."""
        return Samples(self.features[indices], self.labels[indices])


@dataclass(frozen=True, slots=True, eq=False)
class Dataset:
    """Samples to train on, samples to test on, and the data set's own division among clients if it has one.

    `parts` holds for each client the positions of its samples in `train`.
    """

    name: str
    train: Samples
    test: Samples
    n_classes: int  # 1 if labels are numbers: what a model puts out
    parts: tuple[Indices, ...] | None = None


@dataclass(frozen=True, slots=True)
class DatasetRequest:
    """What is asked of a data set."""

    rng: np.random.Generator
    n_clients: int  # distinct clients, for data sets that come divided
    folder: Path | None = None  # of published files; by default that in `FEDWORTH_DATA`
    train_limit: int | None = None
    test_limit: int | None = None
    alpha: float = ALPHA  # of `synthetic`
    beta: float = BETA  # of `synthetic` and `regression`

    def __post_init__(self) -> None:
        counts = {"n_clients": self.n_clients, "train_limit": self.train_limit, "test_limit": self.test_limit}
        for what, found in counts.items():
            if found is not None and found < 1:
                raise UsageError(f"data set: {what} is {found}, expected 1 or more")


def load_dataset(name: DatasetName, request: DatasetRequest) -> Dataset:
    if name not in DATASETS:
        raise unknown_name("data set", name, DATASETS)
    return DATASETS[name](request)


# Synthetic data


@dataclass(frozen=True, slots=True, eq=False)
class Source:
    """Where a client's synthetic samples come from."""

    weights: NDArray[np.float64]  # W_k, (n_features, n_classes)
    bias: NDArray[np.float64]  # b_k, (n_classes,)
    center: NDArray[np.float64]  # v_k, (n_features,)


def synthetic(n_clients: int, *, alpha: float, beta: float, rng: np.random.Generator) -> Dataset:
    """Synthetic(α, β): every client has a source of its own."""
    for letter, found in (("alpha", alpha), ("beta", beta)):
        if not (math.isfinite(found) and found >= 0):
            raise UsageError(f"synthetic: {letter} is {found}, expected a finite number of 0 or more")
    return _drawn("synthetic", [_source(alpha, beta, rng) for _ in range(n_clients)], rng)


def synthetic_iid(n_clients: int, *, rng: np.random.Generator) -> Dataset:
    """One source for all clients, with features around 0."""
    shared = replace(_source(0.0, 0.0, rng), center=np.zeros(N_FEATURES))
    return _drawn("synthetic-iid", [shared] * n_clients, rng)


def _source(alpha: float, beta: float, rng: np.random.Generator) -> Source:
    u, B = rng.normal(0.0, alpha), rng.normal(0.0, beta)
    return Source(
        weights=rng.normal(u, 1.0, (N_FEATURES, N_CLASSES)),
        bias=rng.normal(u, 1.0, N_CLASSES),
        center=rng.normal(B, 1.0, N_FEATURES),
    )


def _drawn(name: str, sources: list[Source], rng: np.random.Generator) -> Dataset:
    sizes = np.floor(rng.lognormal(4.0, 2.0, len(sources))).astype(np.int64) + 50  # (n_clients,)
    train = [_samples(source, int(size), rng) for source, size in zip(sources, sizes, strict=True)]
    test = [_samples(source, N_TEST_PER_CLIENT, rng) for source in sources]
    parts = tuple(np.split(np.arange(sizes.sum()), np.cumsum(sizes)[:-1]))
    return Dataset(name, concatenated(train), concatenated(test), N_CLASSES, parts)


def _samples(source: Source, n: int, rng: np.random.Generator) -> Samples:
    x = rng.normal(source.center, SPREAD, (n, N_FEATURES))  # (n, n_features)
    # The softmax keeps the order of its arguments, so the largest of them is the class.
    labels = np.argmax(x @ source.weights + source.bias, axis=1)  # (n,)
    return Samples(x.astype(np.float32), labels.astype(np.int64))


def concatenated(samples: Sequence[Samples]) -> Samples:
    return Samples(np.concatenate([s.features for s in samples]), np.concatenate([s.labels for s in samples]))


# Regression


def _load_regression(request: DatasetRequest) -> Dataset:
    rng, n_clients = request.rng, request.n_clients
    if not (math.isfinite(request.beta) and request.beta >= 0):
        raise UsageError(f"regression: beta is {request.beta}, expected a finite number of 0 or more")
    powers = np.exp(request.beta * rng.normal(0.0, 0.5, (n_clients, N_FRIEDMAN_FEATURES)))  # (n_clients, n_features)
    sizes = np.floor(rng.lognormal(5.0, 0.7, n_clients)).astype(np.int64) + 50  # (n_clients,)
    train = [_friedman(power, int(size), rng) for power, size in zip(powers, sizes, strict=True)]
    test = [_friedman(power, N_FRIEDMAN_TEST_PER_CLIENT, rng) for power in powers]
    parts = tuple(np.split(np.arange(sizes.sum()), np.cumsum(sizes)[:-1]))
    return _limited(Dataset("regression", concatenated(train), concatenated(test), 1, parts), request)


def _friedman(powers: NDArray[np.float64], n: int, rng: np.random.Generator) -> Samples:
    x = rng.uniform(size=(n, N_FRIEDMAN_FEATURES)) ** powers  # (n, n_features)
    y = 10 * np.sin(np.pi * x[:, 0] * x[:, 1]) + 20 * (x[:, 2] - 0.5) ** 2 + 10 * x[:, 3] + 5 * x[:, 4]  # (n,)
    scaled = (y + rng.normal(size=n) - FRIEDMAN_MEAN) / FRIEDMAN_DEVIATION
    return Samples(x.astype(np.float32), scaled.astype(np.float32))


# Digits, from the file that scikit-learn ships


def _load_digits(request: DatasetRequest) -> Dataset:
    """Read scikit-learn's file; its own `load_digits` would first import all of scikit-learn, for a second."""
    package = find_spec("sklearn")
    if package is None or package.origin is None:
        raise DataError("data set 'digits': scikit-learn, which ships it, is not installed; pip install scikit-learn")
    with gzip.open(Path(package.origin).parent / DIGITS, "rt") as file:
        rows = np.loadtxt(file, delimiter=",", dtype=np.int64)  # (1797, 65): pixels from 0 to 16, then the class
    samples = Samples((rows[:, :-1] / 16).astype(np.float32).reshape(-1, 1, 8, 8), rows[:, -1])
    shuffled = request.rng.permutation(len(samples))
    test, train = samples.take(shuffled[:N_DIGITS_TEST]), samples.take(shuffled[N_DIGITS_TEST:])
    return _limited(Dataset("digits", train, test, N_CLASSES), request)


# Published image files. idx (gzipped): two zero bytes, a type byte (8 for unsigned bytes), the number of dimensions,
# each dimension as a big-endian 32-bit integer, then the bytes. CIFAR-10, binary version: records of 3073 bytes, the
# label and then a 32 × 32 image, one plane each of red, green and blue. `download` has checked the files' sha256.


def read_idx(path: Path, n_dimensions: int) -> Pixels:
    """The array in a gzipped idx file of unsigned bytes."""
    content = gzip.decompress(path.read_bytes())
    header = 4 + 4 * n_dimensions
    shape = struct.unpack(f">{n_dimensions}I", content[4:header])
    return np.frombuffer(content, np.uint8, offset=header).reshape(shape)


def read_idx_pair(images: Path, labels: Path) -> tuple[Pixels, Pixels]:
    """Grey images (n, 1, height, width) and their classes (n,), from two idx files."""
    return read_idx(images, 3)[:, np.newaxis], read_idx(labels, 1)


def read_cifar(*paths: Path) -> tuple[Pixels, Pixels]:
    """Colour images and their classes, from CIFAR-10 binary batches."""
    content = b"".join(path.read_bytes() for path in paths)
    records = np.frombuffer(content, np.uint8).reshape(-1, CIFAR_RECORD)  # (n, 3073)
    return records[:, 1:].reshape(-1, *CIFAR_SHAPE), records[:, 0]


def _load_idx(name: str, request: DatasetRequest) -> Dataset:
    train_images, train_labels, test_images, test_labels = data_files(name, request.folder)
    train, test = read_idx_pair(train_images, train_labels), read_idx_pair(test_images, test_labels)
    return _from_pixels(name, train, test, request)


def _load_cifar10(request: DatasetRequest) -> Dataset:
    *train, test = data_files("cifar10", request.folder)
    return _from_pixels("cifar10", read_cifar(*train), read_cifar(test), request)


def _from_pixels(
    name: str, train: tuple[Pixels, Pixels], test: tuple[Pixels, Pixels], request: DatasetRequest
) -> Dataset:
    """Bytes to features. The limit is applied first: as floats, CIFAR-10 is four times as large."""
    halves = []
    for (pixels, classes), limit in ((train, request.train_limit), (test, request.test_limit)):
        kept = _kept(len(classes), limit, request.rng)
        features = pixels[kept].astype(np.float32)  # (n, channels, height, width)
        features /= 255
        halves.append(Samples(features, classes[kept].astype(np.int64)))
    return Dataset(name, halves[0], halves[1], N_CLASSES)


DATASETS: dict[DatasetName, Callable[[DatasetRequest], Dataset]] = {
    "synthetic": lambda request: _limited(
        synthetic(request.n_clients, alpha=request.alpha, beta=request.beta, rng=request.rng), request
    ),
    "synthetic-iid": lambda request: _limited(synthetic_iid(request.n_clients, rng=request.rng), request),
    "regression": _load_regression,
    "digits": _load_digits,
    "mnist": partial(_load_idx, "mnist"),
    "fashion-mnist": partial(_load_idx, "fashion-mnist"),
    "cifar10": _load_cifar10,
}


def _limited(dataset: Dataset, request: DatasetRequest) -> Dataset:
    """The data set with at most as many samples as asked for; parts lose the samples that are dropped."""
    kept = _kept(len(dataset.train), request.train_limit, request.rng)
    test = dataset.test.take(_kept(len(dataset.test), request.test_limit, request.rng))
    parts = dataset.parts and tuple(
        np.searchsorted(kept, part[np.isin(part, kept)]).astype(np.int64) for part in dataset.parts
    )
    return replace(dataset, train=dataset.train.take(kept), test=test, parts=parts)


def _kept(n: int, limit: int | None, rng: np.random.Generator) -> Indices:
    if limit is None or limit >= n:
        return np.arange(n)
    return np.sort(rng.choice(n, limit, replace=False))
