"""Clients who sent the same model are interchangeable: in a mixture, the first of them stands for all.

A sum of floats depends on its order, so {0} ∪ S and {9} ∪ S may differ in the last place although clients 0 and 9 sent
equal models. With their coefficients gathered at the first of them the mixtures are the same, and so is the number.
"""

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence

import torch

from fedworth.ledger.ledger import Model
from fedworth.utility.weighting import Mixtures

N_COMPARED = 16
"""Numbers of each tensor that must be equal before all are compared."""


def gathered(mixtures: Mixtures, groups: Sequence[Sequence[int]]) -> Mixtures:
    """The same mixtures, the coefficients of each group of equal models added up at the first of them."""
    if not groups:
        return mixtures
    of_clients = mixtures.of_clients.copy()  # (n_coalitions, n_clients)
    for first, *others in groups:
        for other in others:  # one after the other: a sum of many columns would depend on who is measured
            of_clients[:, first] += mixtures.of_clients[:, other]
            of_clients[:, other] = 0.0
    return Mixtures(of_clients, mixtures.of_global)


def twins(models: Mapping[int, Model]) -> list[list[int]]:
    """Groups of two or more clients, in order, whose models are equal."""
    groups: dict[tuple[bytes, ...], list[list[int]]] = {}
    for client in sorted(models):
        alike = groups.setdefault(_beginning(models[client]), [])
        for group in alike:
            if _is_equal(models[client], models[group[0]]):
                group.append(client)
                break
        else:
            alike.append([client])
    return [group for alike in groups.values() for group in alike if len(group) > 1]


def in_order_of_content(models: Mapping[int, Model]) -> list[int]:
    """The clients, sorted by what is in their models: an order that twins share, and that others do not change."""
    beginnings = {client: _beginning(model) for client, model in models.items()}
    n_alike = Counter(beginnings.values())
    digests = {k: _digest(models[k]) for k in models if n_alike[beginnings[k]] > 1}
    return sorted(models, key=lambda client: (beginnings[client], digests.get(client, b""), client))


def _digest(model: Model) -> bytes:
    """A sha256 of the whole model, for those that begin alike."""
    digest = hashlib.sha256()
    for tensor in model.values():
        digest.update(tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.digest()


def _beginning(model: Model) -> tuple[bytes, ...]:
    return tuple(t.reshape(-1)[:N_COMPARED].to(torch.float64).numpy().tobytes() for t in model.values())


def _is_equal(model: Model, other: Model) -> bool:
    return all(tensor.dtype == other[name].dtype and torch.equal(tensor, other[name]) for name, tensor in model.items())
