"""Data sets by name.

    synthetic      Synthetic(α, β) of Li et al., divided among clients as it is drawn
    synthetic-iid  the same with one source for all clients
    digits         1,797 scans of 8 × 8, shipped with scikit-learn: no download
    mnist, fashion-mnist, cifar10  published files, found or fetched by `download`

Images have the shape (n, channels, height, width) and features from 0 to 1. A limit keeps that many samples,
drawn at random; the samples kept stay in their order.
"""

import gzip
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from fedworth.arrays import Indices
from fedworth.errors import DataError, UsageError
from fedworth.names import DatasetName, checked_name
from fedworth.simulation.data.dataset import Dataset, Samples
from fedworth.simulation.data.download import data_files
from fedworth.simulation.data.formats import Pixels, read_cifar, read_idx_pair
from fedworth.simulation.data.synthetic import synthetic, synthetic_iid

DIGITS = Path("datasets/data/digits.csv.gz")
N_DIGITS_TEST = 400
N_CLASSES = 10
ALPHA, BETA = 1.0, 1.0
"""What the paper calls non-IID synthetic data."""


@dataclass(frozen=True, slots=True)
class DatasetRequest:
    """What is asked of a data set."""

    rng: np.random.Generator
    n_clients: int
    folder: Path | None
    train_limit: int | None
    test_limit: int | None
    alpha: float
    beta: float

    def __post_init__(self) -> None:
        counts = {"n_clients": self.n_clients, "train_limit": self.train_limit, "test_limit": self.test_limit}
        for what, found in counts.items():
            if found is not None and found < 1:
                raise UsageError(f"data set: {what} is {found}, expected 1 or more")


def load_dataset(
    name: DatasetName,
    *,
    rng: np.random.Generator,
    n_clients: int,
    data_folder: Path | None = None,
    train_limit: int | None = None,
    test_limit: int | None = None,
    alpha: float | None = None,
    beta: float | None = None,
) -> Dataset:
    """The data set of this name.

    `n_clients` counts the distinct clients, for the data sets that come divided. `alpha` and `beta` belong to
    `synthetic` alone, and are 1 unless told. Without `data_folder`, files are looked for in `FEDWORTH_DATA`.
    """
    checked_name("data set", name)
    if name != "synthetic" and not (alpha is None and beta is None):
        raise UsageError(f"data set {name!r}: found alpha or beta, which only 'synthetic' has; leave them out")
    alpha, beta = ALPHA if alpha is None else alpha, BETA if beta is None else beta
    return DATASETS[name](DatasetRequest(rng, n_clients, data_folder, train_limit, test_limit, alpha, beta))


def _synthetic(request: DatasetRequest) -> Dataset:
    whole = synthetic(request.n_clients, alpha=request.alpha, beta=request.beta, rng=request.rng)
    return _limited(whole, request)


def _synthetic_iid(request: DatasetRequest) -> Dataset:
    return _limited(synthetic_iid(request.n_clients, rng=request.rng), request)


def _digits(request: DatasetRequest) -> Dataset:
    rows = _shipped_digits()
    features = (rows[:, :-1] / 16).astype(np.float32).reshape(-1, 1, 8, 8)
    samples = Samples(features, rows[:, -1])
    shuffled = request.rng.permutation(len(samples))
    test, train = samples.take(shuffled[:N_DIGITS_TEST]), samples.take(shuffled[N_DIGITS_TEST:])
    return _limited(Dataset("digits", train, test, N_CLASSES), request)


def _shipped_digits() -> NDArray[np.int64]:
    """(1797, 65): pixels from 0 to 16, then the class; from the file that scikit-learn ships.

    Its own `load_digits` reads the same, after it has imported all of scikit-learn: as long as the whole simulation.
    """
    package = find_spec("sklearn")
    if package is None or package.origin is None:
        raise DataError("data set 'digits': scikit-learn, which ships it, is not installed; pip install scikit-learn")
    with gzip.open(Path(package.origin).parent / DIGITS, "rt") as file:
        return np.loadtxt(file, delimiter=",", dtype=np.int64)


def _mnist(request: DatasetRequest) -> Dataset:
    return _idx("mnist", request)


def _fashion_mnist(request: DatasetRequest) -> Dataset:
    return _idx("fashion-mnist", request)


def _idx(name: str, request: DatasetRequest) -> Dataset:
    train_images, train_labels, test_images, test_labels = data_files(name, request.folder)
    train, test = read_idx_pair(train_images, train_labels), read_idx_pair(test_images, test_labels)
    return _images(name, train, test, request)


def _cifar10(request: DatasetRequest) -> Dataset:
    *train, test = data_files("cifar10", request.folder)
    return _images("cifar10", read_cifar(*train), read_cifar(test), request)


DATASETS: MappingProxyType[DatasetName, Callable[[DatasetRequest], Dataset]] = MappingProxyType(
    {
        "synthetic": _synthetic,
        "synthetic-iid": _synthetic_iid,
        "digits": _digits,
        "mnist": _mnist,
        "fashion-mnist": _fashion_mnist,
        "cifar10": _cifar10,
    }
)


def _images(name: str, train: tuple[Pixels, Pixels], test: tuple[Pixels, Pixels], request: DatasetRequest) -> Dataset:
    """Bytes to features. The limit comes first: as floats, CIFAR-10 is four times as large."""
    halves = []
    for (pixels, classes), limit in ((train, request.train_limit), (test, request.test_limit)):
        kept = _kept(len(classes), limit, request.rng)
        features = pixels[kept].astype(np.float32)  # (n, channels, height, width)
        features /= 255
        halves.append(Samples(features, classes[kept].astype(np.int64)))
    return Dataset(name, halves[0], halves[1], N_CLASSES)


def _limited(dataset: Dataset, request: DatasetRequest) -> Dataset:
    """The data set with no more samples than asked for; each part keeps those of its samples that stay."""
    kept = _kept(len(dataset.train), request.train_limit, request.rng)
    test = dataset.test.take(_kept(len(dataset.test), request.test_limit, request.rng))
    parts = dataset.parts and tuple(_renumbered(part, kept) for part in dataset.parts)
    return replace(dataset, train=dataset.train.take(kept), test=test, parts=parts)


def _kept(n: int, limit: int | None, rng: np.random.Generator) -> Indices:
    if limit is None or limit >= n:
        return np.arange(n)
    return np.sort(rng.choice(n, limit, replace=False))


def _renumbered(part: Indices, kept: Indices) -> Indices:
    """Where a part's samples stand among those kept, which are in ascending order."""
    return np.searchsorted(kept, part[np.isin(part, kept)]).astype(np.int64)
