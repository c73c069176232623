"""What each client trains on: the division of the data set among clients, copies, and noise.

    iid        every client gets a random share of the same size
    two-class  2N class slots, each class equally often, two different ones a client; the samples of a class are split
               evenly over its slots (the paper's non-IID division, after McMahan et al. 2017)
    natural    the data set's own division

A client may be a copy of another: it then has the same samples in the same order, and the samples are divided among the
distinct clients only (the paper: clients 0 to 8 are distinct, client 9 is client 0 again).

Noise makes a client's data worse, to see whether its value falls. Noisy features: N(0, σ²) on every feature of
round(share · n) samples, σ = strength × the standard deviation of all the client's features (the paper does not give
its σ); nothing is clipped. Noisy labels: round(share · n) labels become a uniformly random other class. A copy stays a
copy only if its noise is drawn from a generator in the same state as its original's.
"""

import math
from collections.abc import Mapping

import numpy as np

from fedworth.arrays import Indices
from fedworth.errors import DataError, UsageError
from fedworth.names import PartitionName, checked_name
from fedworth.simulation.datasets import Dataset, Labels, Samples


def divide(
    dataset: Dataset,
    partition_name: PartitionName,
    n_clients: int,
    copies: Mapping[int, int],
    *,
    rng: np.random.Generator,
) -> tuple[Samples, ...]:
    """The samples of each client; `copies` says which client is a copy of which."""
    checked_name("partition", partition_name)
    clients = distinct_clients(n_clients, copies)
    match partition_name:
        case "iid":
            found = partition_iid(dataset.train.labels, len(clients), rng=rng)
        case "two-class":
            found = partition_two_class(dataset.train.labels, len(clients), rng=rng)
        case "natural":
            found = _natural(dataset, len(clients))
    parts = dict(zip(clients, found, strict=True))
    whole = [parts[copies.get(client, client)] for client in range(n_clients)]
    for client, part in enumerate(whole):
        if len(part) == 0:
            raise DataError(
                f"partition {partition_name!r} of {dataset.name!r}: client {client} has no samples, "
                "expected at least one; take fewer clients or raise the train limit"
            )
    return tuple(dataset.train.take(part) for part in whole)


def distinct_clients(n_clients: int, copies: Mapping[int, int]) -> tuple[int, ...]:
    """The clients that are no copies, in ascending order."""
    if n_clients < 1:
        raise UsageError(f"partition: n_clients is {n_clients}, expected 1 or more")
    for client, original in copies.items():
        where = f"client {client} as a copy of client {original}"
        if not (0 <= client < n_clients and 0 <= original < n_clients):
            raise UsageError(f"{where}: expected clients from 0 to {n_clients - 1}")
        if original in copies:
            raise UsageError(f"{where}: client {original} is itself a copy; name the original")
    return tuple(client for client in range(n_clients) if client not in copies)


def partition_iid(labels: Labels, n_clients: int, *, rng: np.random.Generator) -> tuple[Indices, ...]:
    """Random parts of the same size, give or take one; every sample is in exactly one of them."""
    if not 1 <= n_clients <= len(labels):
        raise DataError(
            f"partition 'iid': {len(labels)} samples for {n_clients} clients, "
            "expected one client or more, and a sample for each"
        )
    return tuple(np.array_split(rng.permutation(len(labels)), n_clients))


def partition_two_class(labels: Labels, n_clients: int, *, rng: np.random.Generator) -> tuple[Indices, ...]:
    """Parts of two classes each, every class in as many parts as any other, give or take one.

    Every sample is in exactly one part, unless there are more classes than slots: then some classes, drawn at random,
    are left out.
    """
    classes = np.unique(labels)
    if n_clients < 1 or len(classes) < 2:
        raise DataError(
            f"partition 'two-class': {len(classes)} classes for {n_clients} clients, "
            "expected two classes or more and one client or more"
        )
    slots = _class_slots(len(classes), n_clients, rng)  # (n_clients, 2)
    shares: list[list[Indices]] = [[] for _ in range(n_clients)]
    for class_index in np.unique(slots):
        holders = np.flatnonzero((slots == class_index).any(axis=1))  # (n_slots of this class,)
        members = rng.permutation(np.flatnonzero(labels == classes[class_index]))
        if len(members) < len(holders):
            raise DataError(
                f"partition 'two-class': class {classes[class_index]} has {len(members)} samples for the "
                f"{len(holders)} clients that hold it, expected one each; take fewer clients or more samples"
            )
        for holder, share in zip(holders, np.array_split(members, len(holders)), strict=True):
            shares[holder].append(share)
    return tuple(rng.permutation(np.concatenate(pair)) for pair in shares)


def _class_slots(n_classes: int, n_clients: int, rng: np.random.Generator) -> Indices:
    """The two different classes of each client: (n_clients, 2), each class equally often.

    Shuffled slots may give a client class c twice. As c fills at most N of the 2N slots, another client has no c;
    exchanging one slot with that client leaves neither with a pair, so one pass is enough.
    """
    by_chance = rng.permutation(n_classes)
    slots = rng.permutation(np.resize(by_chance, 2 * n_clients)).reshape(n_clients, 2)
    for client in range(n_clients):
        doubled = slots[client, 0]
        if slots[client, 1] == doubled:
            other = rng.choice(np.flatnonzero((slots != doubled).all(axis=1)))
            side = rng.integers(2)
            slots[client, 1], slots[other, side] = slots[other, side], doubled
    return slots


def _natural(dataset: Dataset, n_clients: int) -> tuple[Indices, ...]:
    if dataset.parts is None:
        raise DataError(
            f"partition 'natural': data set {dataset.name!r} does not come divided; "
            "choose 'iid' or 'two-class', or a synthetic data set"
        )
    if len(dataset.parts) != n_clients:
        raise DataError(
            f"partition 'natural': data set {dataset.name!r} is divided among {len(dataset.parts)} clients, "
            f"expected {n_clients} (copies not counted); load it with n_clients={n_clients}"
        )
    return dataset.parts


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
