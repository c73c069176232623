"""Synthetic(α, β) of Li et al. 2018 ("Federated optimization in heterogeneous networks"), §5.1.

Each client k has a source of its own, of 60 features and 10 classes:

    u_k ~ N(0, α²),  W_k, b_k ~ N(u_k, 1)      α: meant to say how much the clients' models differ
    B_k ~ N(0, β²),  v_k      ~ N(B_k, 1)      β: how much the clients' features differ
    x ~ N(v_k, diag(j^−1.2)),  y = argmax softmax(x W_k + b_k)

and ⌊lognormal(4, 2)⌋ + 50 samples to train on. α has no effect: u_k adds u_k(Σ_j x_j + 1) to the score of
every class alike, which the argmax does not see. It is kept so that the data are those of Li et al.

α = β = 0, which the paper calls IID, still gives every client its own W_k, b_k and v_k. `synthetic_iid` draws one W
and b for all clients and takes v = 0, as Li et al. do for their IID data. With v ~ N(0, 1) one class would win nearly
everywhere: |v| is then about 8, and x W_k + b_k hardly depends on the sample.

The test set holds equally many fresh samples from each client's source, so that a client's size does not decide what
the federation is tested on.
"""

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from fedworth.arrays import Indices
from fedworth.errors import UsageError
from fedworth.simulation.data.dataset import Dataset, Samples

N_FEATURES = 60
N_CLASSES = 10
N_TEST_PER_CLIENT = 100

SPREAD = np.arange(1, N_FEATURES + 1) ** -0.6
"""(n_features,): the standard deviation of feature j, the root of j^−1.2."""


@dataclass(frozen=True, slots=True, eq=False)
class Source:
    """Where a client's samples come from: W_k, b_k and v_k."""

    weights: NDArray[np.float64]
    bias: NDArray[np.float64]
    center: NDArray[np.float64]


def synthetic(n_clients: int, *, alpha: float, beta: float, rng: np.random.Generator) -> Dataset:
    """Synthetic(α, β): every client has a source of its own."""
    for letter, found in (("alpha", alpha), ("beta", beta)):
        if not (math.isfinite(found) and found >= 0):
            raise UsageError(f"synthetic: {letter} is {found}, expected a finite number of 0 or more")
    sources = [_source(alpha, beta, rng) for _ in range(n_clients)]
    return _drawn("synthetic", sources, rng)


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
    return Dataset(name, _joined(train), _joined(test), N_CLASSES, _consecutive(sizes))


def _samples(source: Source, n: int, rng: np.random.Generator) -> Samples:
    x = rng.normal(source.center, SPREAD, (n, N_FEATURES))  # (n, n_features)
    # The softmax keeps the order of its arguments, so the largest of them is the class.
    labels = np.argmax(x @ source.weights + source.bias, axis=1)  # (n,)
    return Samples(x.astype(np.float32), labels.astype(np.int64))


def _joined(samples: list[Samples]) -> Samples:
    features = np.concatenate([s.features for s in samples])  # (n, n_features)
    return Samples(features, np.concatenate([s.labels for s in samples]))


def _consecutive(sizes: NDArray[np.int64]) -> tuple[Indices, ...]:
    return tuple(np.split(np.arange(sizes.sum()), np.cumsum(sizes)[:-1]))
