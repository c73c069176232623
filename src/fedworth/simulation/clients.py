"""What each client trains on: the division of the data set among clients, copies, and noise.

    iid        every client gets a random share of the same size
    two-class  2N class slots, each class equally often, two different ones a client; the samples of a class are split
               evenly over its slots (the paper's non-IID division, after McMahan et al. 2017)
    natural    the data set's own division
    dirichlet  each class is split over the clients by shares from Dirichlet(α), so labels and sizes are unequal (Hsu et
               al. 2019; drawn again until every client has ten samples, as Li et al. 2022 do)
    quantity   random parts whose sizes are shares from Dirichlet(α), with ten samples or more
    feature    iid, but client k's images are turned by up to 45° · β and brightened by a factor up to exp(±β / 2)

`PARTITIONS` is the registry: a new partition is one function and its name in `fedworth.names`.

A client may be a copy of another: it then has the same samples in the same order, and the samples are divided among the
distinct clients only (the paper: clients 0 to 8 are distinct, client 9 is client 0 again).

Noise makes a client's data worse, to see whether its value falls. Noisy features: N(0, σ²) on every feature of
round(share · n) samples, σ = strength × the standard deviation of all the client's features (the paper does not give
its σ); nothing is clipped. Noisy labels: round(share · n) labels become a uniformly random other class. A copy stays a
copy only if its noise is drawn from a generator in the same state as its original's.

Drift replaces a growing share of a client's samples by samples of the next distinct client.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.ndimage import rotate

from fedworth.arrays import Floats, Indices
from fedworth.errors import DataError, UsageError, unknown_name
from fedworth.names import PartitionName
from fedworth.simulation.datasets import Dataset, Labels, Samples, concatenated

LEAST_SAMPLES = 10  # of a client in an unequal division
MOST_DRAWS = 1000
MOST_DEGREES, MOST_BRIGHTNESS = 45.0, 0.5  # of the partition `feature`, for β = 1; brightness in logarithms


@dataclass(frozen=True, slots=True)
class Division:
    """The data set to divide, the number of distinct clients, and how much they should differ."""

    dataset: Dataset
    n_clients: int
    rng: np.random.Generator
    alpha: float
    beta: float

    def of(self, parts: Sequence[Indices]) -> list[Samples]:
        """The samples at these positions, client by client."""
        return [self.dataset.train.take(part) for part in parts]


def divide(
    dataset: Dataset,
    partition_name: PartitionName,
    n_clients: int,
    copies: Mapping[int, int],
    *,
    rng: np.random.Generator,
    alpha: float = 1.0,
    beta: float = 1.0,
) -> tuple[Samples, ...]:
    """The samples of each client; `copies` says which client is a copy of which."""
    if partition_name not in PARTITIONS:  # such as `vertical`, which divides features and not samples
        raise unknown_name("partition", partition_name, PARTITIONS)
    clients = distinct_clients(n_clients, copies)
    if dataset.train.has_numbers and partition_name in BY_CLASS:
        raise DataError(
            f"partition {partition_name!r} divides by class, but the labels of data set {dataset.name!r} are numbers; "
            "choose 'iid', 'quantity' or 'natural'"
        )
    found = PARTITIONS[partition_name](Division(dataset, len(clients), rng, alpha, beta))
    parts = dict(zip(clients, found, strict=True))
    whole = tuple(parts[copies.get(client, client)] for client in range(n_clients))
    for client, part in enumerate(whole):
        if len(part) == 0:
            raise DataError(
                f"partition {partition_name!r} of {dataset.name!r}: client {client} has no samples, "
                "expected at least one; take fewer clients or raise the train limit"
            )
    return whole


def _iid(division: Division) -> list[Samples]:
    return division.of(partition_iid(division.dataset.train.labels, division.n_clients, rng=division.rng))


def _dirichlet(division: Division) -> list[Samples]:
    labels = division.dataset.train.labels
    _check_enough("dirichlet", division)
    members = [division.rng.permutation(np.flatnonzero(labels == found)) for found in np.unique(labels)]
    for _ in range(MOST_DRAWS):
        shares = division.rng.dirichlet(
            np.full(division.n_clients, division.alpha), len(members)
        )  # (n_classes, n_clients)
        pieces = [_cut(found, share) for found, share in zip(members, shares, strict=True)]
        parts = [np.concatenate(mine) for mine in zip(*pieces, strict=True)]
        if min(map(len, parts)) >= LEAST_SAMPLES:
            return division.of([division.rng.permutation(part) for part in parts])
    raise DataError(
        f"partition 'dirichlet': in {MOST_DRAWS:,} draws with alpha {division.alpha:g}, some of {division.n_clients} "
        f"clients always had fewer than {LEAST_SAMPLES} samples; take a larger alpha, fewer clients or more samples"
    )


def _quantity(division: Division) -> list[Samples]:
    n = len(division.dataset.train)
    _check_enough("quantity", division)
    least, rest = np.split(division.rng.permutation(n), [LEAST_SAMPLES * division.n_clients])
    pieces = _cut(rest, division.rng.dirichlet(np.full(division.n_clients, division.alpha)))
    own = np.split(least, division.n_clients)
    return division.of([np.concatenate(pair) for pair in zip(own, pieces, strict=True)])


def _feature(division: Division) -> list[Samples]:
    n, beta = division.n_clients, division.beta
    if not (math.isfinite(beta) and beta >= 0):
        raise UsageError(f"partition 'feature': beta is {beta}, expected a finite number of 0 or more")
    if division.dataset.train.features.ndim != 4:
        raise DataError(
            f"partition 'feature' turns images, but samples of data set {division.dataset.name!r} have shape "
            f"{division.dataset.train.features.shape[1:]}; choose a data set of images, or 'natural' for synthetic data"
        )
    degrees = division.rng.permutation(np.linspace(-1, 1, n)) * MOST_DEGREES * beta  # (n_clients,)
    brightness = np.exp(division.rng.uniform(-1, 1, n) * MOST_BRIGHTNESS * beta)  # (n_clients,)
    parts = _iid(division)
    turned = [rotate(p.features, a, axes=(2, 3), reshape=False, order=1) for p, a in zip(parts, degrees, strict=True)]
    changed = [np.clip(f * b, 0, 1).astype(np.float32) for f, b in zip(turned, brightness, strict=True)]
    return [Samples(features, part.labels) for features, part in zip(changed, parts, strict=True)]


def _natural(division: Division) -> list[Samples]:
    name, parts = division.dataset.name, division.dataset.parts
    if parts is None:
        raise DataError(
            f"partition 'natural': data set {name!r} does not come divided; "
            "choose 'iid' or 'two-class', or a synthetic data set"
        )
    return division.of(parts)


PARTITIONS: dict[PartitionName, Callable[[Division], list[Samples]]] = {
    "iid": _iid,
    "two-class": lambda division: division.of(
        partition_two_class(division.dataset.train.labels, division.n_clients, rng=division.rng)
    ),
    "natural": _natural,
    "dirichlet": _dirichlet,
    "quantity": _quantity,
    "feature": _feature,
}
BY_CLASS = ("two-class", "dirichlet")


def _cut(indices: Indices, shares: Floats) -> list[Indices]:
    """The indices in pieces of these shares."""
    return np.split(indices, np.round(np.cumsum(shares)[:-1] * len(indices)).astype(np.int64))


def _check_enough(name: str, division: Division) -> None:
    if not (math.isfinite(division.alpha) and division.alpha > 0):
        raise UsageError(f"partition {name!r}: alpha is {division.alpha}, expected a finite number above 0")
    if len(division.dataset.train) < LEAST_SAMPLES * division.n_clients:
        raise DataError(
            f"partition {name!r}: {len(division.dataset.train)} samples for {division.n_clients} clients, "
            f"expected {LEAST_SAMPLES} each or more; take fewer clients or raise the train limit"
        )


def drifted(parts: Sequence[Samples], share: float) -> list[Samples]:
    """The clients' samples after a share of each client's was replaced by the next client's."""
    if share == 0:
        return list(parts)
    found = []
    for client, mine in enumerate(parts):
        other = parts[(client + 1) % len(parts)]
        n_new = round(share * len(mine))
        new, old = other.take(np.arange(n_new) % len(other)), mine.take(np.arange(n_new, len(mine)))
        found.append(concatenated([new, old]))
    return found


def distinct_clients(n_clients: int, copies: Mapping[int, int]) -> tuple[int, ...]:
    """The clients that are no copies, in ascending order."""
    return tuple(client for client in range(n_clients) if client not in copies)


def partition_iid(labels: Labels, n_clients: int, *, rng: np.random.Generator) -> tuple[Indices, ...]:
    """Random parts of the same size, give or take one; every sample is in exactly one of them."""
    if n_clients > len(labels):
        raise DataError(f"partition 'iid': {len(labels)} samples for {n_clients} clients, expected one each or more")
    return tuple(np.array_split(rng.permutation(len(labels)), n_clients))


def partition_two_class(labels: Labels, n_clients: int, *, rng: np.random.Generator) -> tuple[Indices, ...]:
    """Parts of two classes each, every class in as many parts as any other, give or take one.

    Every sample is in exactly one part, unless there are more classes than slots: then some classes, drawn at random,
    are left out.
    """
    classes = np.unique(labels)
    if len(classes) < 2:
        raise DataError(f"partition 'two-class': {len(classes)} classes, expected two or more")
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
    if samples.has_numbers:
        raise DataError("flipped labels: labels are numbers, expected classes; use noisy features instead")
    hit = _hit(len(samples), share, rng)
    labels = samples.labels.copy()
    # A step of 1 to n_classes − 1 around the circle of classes reaches every other class equally often.
    labels[hit] = (labels[hit] + rng.integers(1, n_classes, len(hit))) % n_classes  # (n_hit,)
    return Samples(samples.features, labels)


def _hit(n_samples: int, share: float, rng: np.random.Generator) -> Indices:
    """The positions of round(share · n) samples, drawn without repetition."""
    return rng.choice(n_samples, round(share * n_samples), replace=False)
