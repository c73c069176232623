"""Divides the samples of a data set among the clients.

    iid        every client a random share of the same size
    two-class  2N class slots, each class equally often, two different ones a client; the samples of a class
               are split evenly over its slots (the paper's non-IID, after McMahan et al. 2017)
    natural    the data set's own division, where it has one

A client may be a copy of another: it then holds the very same samples in the same order, and the samples are
divided among the distinct clients only (the paper: clients 0 to 8 are distinct, client 9 is client 0 again).
"""

from collections.abc import Mapping

import numpy as np

from fedworth.arrays import Indices
from fedworth.errors import DataError, UsageError
from fedworth.names import PartitionName, checked_name
from fedworth.simulation.data.dataset import Dataset, Labels, Samples


def divide(
    dataset: Dataset,
    partition_name: PartitionName,
    n_clients: int,
    copies: Mapping[int, int],
    *,
    rng: np.random.Generator,
) -> tuple[Samples, ...]:
    """What each client trains on; `copies` says which client is a copy of which."""
    checked_name("partition", partition_name)
    clients = distinct_clients(n_clients, copies)
    parts = dict(zip(clients, _distinct_parts(dataset, partition_name, len(clients), rng), strict=True))
    nobody = np.empty(0, np.int64)
    whole = duplicate(tuple(parts.get(client, nobody) for client in range(n_clients)), copies)
    for client, part in enumerate(whole):
        if len(part) == 0:
            raise DataError(
                f"partition {partition_name!r} of {dataset.name!r}: client {client} has no samples, "
                "expected at least one; take fewer clients or raise the train limit"
            )
    return tuple(dataset.train.take(part) for part in whole)


def distinct_clients(n_clients: int, copies: Mapping[int, int]) -> tuple[int, ...]:
    """The clients that copy nobody, in ascending order."""
    if n_clients < 1:
        raise UsageError(f"partition: n_clients is {n_clients}, expected 1 or more")
    for client, original in copies.items():
        where = f"client {client} as a copy of client {original}"
        if not (0 <= client < n_clients and 0 <= original < n_clients):
            raise UsageError(f"{where}: expected clients from 0 to {n_clients - 1}")
        if original in copies:
            raise UsageError(f"{where}: client {original} is itself a copy; name the original")
    return tuple(client for client in range(n_clients) if client not in copies)


def duplicate(parts: tuple[Indices, ...], copy_of: Mapping[int, int]) -> tuple[Indices, ...]:
    """The parts, with that of each client k in `copy_of` replaced by that of client `copy_of[k]`."""
    distinct_clients(len(parts), copy_of)
    return tuple(parts[copy_of.get(client, client)] for client in range(len(parts)))


def partition_iid(labels: Labels, n_clients: int, *, rng: np.random.Generator) -> tuple[Indices, ...]:
    """Random parts of the same size, give or take one; every sample in exactly one of them."""
    if not 1 <= n_clients <= len(labels):
        raise DataError(
            f"partition 'iid': {len(labels)} samples for {n_clients} clients, "
            "expected one client or more, and a sample for each"
        )
    return tuple(np.array_split(rng.permutation(len(labels)), n_clients))


def partition_two_class(labels: Labels, n_clients: int, *, rng: np.random.Generator) -> tuple[Indices, ...]:
    """Parts of two classes each, every class in as many parts as any other, give or take one.

    Every sample is in exactly one part, unless there are more classes than slots: then some classes,
    drawn at random, are left out.
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
        _check_enough(classes[class_index], len(members), len(holders))
        for holder, share in zip(holders, np.array_split(members, len(holders)), strict=True):
            shares[holder].append(share)
    return tuple(rng.permutation(np.concatenate(pair)) for pair in shares)


def _class_slots(n_classes: int, n_clients: int, rng: np.random.Generator) -> Indices:
    """The two different classes each client holds: (n_clients, 2), each class equally often.

    Shuffled slots may give a client class c twice. As c fills at most N of the 2N slots, someone else holds
    no c; exchanging one slot with that client leaves neither with a pair, so one pass mends all.
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


def _check_enough(label: int, n_members: int, n_holders: int) -> None:
    if n_members < n_holders:
        raise DataError(
            f"partition 'two-class': class {label} has {n_members} samples for the {n_holders} clients "
            "that hold it, expected one each; take fewer clients or more samples"
        )


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


def _distinct_parts(
    dataset: Dataset, partition_name: PartitionName, n_clients: int, rng: np.random.Generator
) -> tuple[Indices, ...]:
    match partition_name:
        case "iid":
            return partition_iid(dataset.train.labels, n_clients, rng=rng)
        case "two-class":
            return partition_two_class(dataset.train.labels, n_clients, rng=rng)
        case "natural":
            return _natural(dataset, n_clients)
