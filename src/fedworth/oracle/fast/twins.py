"""Clients who sent the same model are interchangeable: in a mixture, the first of them stands for whichever is in.

A sum of floats depends on its order, so {0} ∪ S and {9} ∪ S may differ in the last place although clients 0 and 9 sent
equal models and weigh the same. With the first of them in the place of the other, the mixtures are the same, and so is
the number.
"""

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch

from fedworth.ledger.ledger import Model
from fedworth.oracle.weighting import Mixtures

Beginning = tuple[bytes, ...]

N_COMPARED = 16
"""Numbers of each tensor that must be equal before all are compared."""


def interchanged(mixtures: Mixtures, groups: Sequence[Sequence[int]]) -> Mixtures:
    """The same mixtures, the first of equal clients of equal weight standing for whichever of them is in."""
    members = mixtures.memberships.copy()  # (n_coalitions, n_clients)
    for group in groups:
        for weight in np.unique(mixtures.weights[list(group)]):
            alike = [k for k in group if mixtures.weights[k] == weight]
            n_present = mixtures.memberships[:, alike].sum(axis=1, keepdims=True)  # (n_coalitions, 1)
            members[:, alike] = np.arange(len(alike)) < n_present
    return replace(mixtures, memberships=members)


def beginnings(models: Mapping[int, Model]) -> dict[int, Beginning]:
    """The first numbers of each model."""
    return {client: _beginning(model) for client, model in models.items()}


def twins(models: Mapping[int, Model], begins: Mapping[int, Beginning]) -> list[list[int]]:
    """Groups of two or more clients, in the order of the models, whose models are equal."""
    groups: dict[Beginning, list[list[int]]] = {}
    for client in models:
        alike = groups.setdefault(begins[client], [])
        for group in alike:
            if _is_equal(models[client], models[group[0]]):
                group.append(client)
                break
        else:
            alike.append([client])
    return [group for alike in groups.values() for group in alike if len(group) > 1]


def in_order_of_content(models: Mapping[int, Model], begins: Mapping[int, Beginning]) -> list[int]:
    """The clients, sorted by what is in their models: an order that twins share, and that others do not change."""
    n_alike = Counter(begins.values())
    digests = {k: _digest(models[k]) for k in models if n_alike[begins[k]] > 1}
    return sorted(models, key=lambda client: (begins[client], digests.get(client, b""), client))


def _digest(model: Model) -> bytes:
    """A sha256 of the whole model, for those that begin alike."""
    digest = hashlib.sha256()
    for tensor in model.values():
        digest.update(tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.digest()


def _beginning(model: Model) -> Beginning:
    return tuple(t.reshape(-1)[:N_COMPARED].to(torch.float64).numpy().tobytes() for t in model.values())


def _is_equal(model: Model, other: Model) -> bool:
    return all(tensor.dtype == other[name].dtype and torch.equal(tensor, other[name]) for name, tensor in model.items())
