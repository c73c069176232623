"""What is to be measured in a round: its models, and the mixtures that are not just the global model.

In: a round and the mixtures asked for. Out: parts, each of mixtures that differ from the global model in the same
tensors, so that they are measured the same way. Clients come in the order of what is in their models: sums over them
then have an order that neither clients' numbers nor other clients change. Which part a coalition is in depends on its
own members alone.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray

from fedworth.arrays import Indices
from fedworth.errors import ModelError
from fedworth.ledger.ledger import Model, Round
from fedworth.oracle.fast.mixing import is_same
from fedworth.oracle.fast.twins import Beginning, beginnings, in_order_of_content, interchanged, twins
from fedworth.oracle.weighting import Mixtures

Coefficients = NDArray[np.float64]


@dataclass(frozen=True)
class Part:
    """Mixtures that differ from the global model in the same tensors, and the clients in them."""

    origin: Model
    clients: list[Model]
    moved: NDArray[np.bool_]  # (n_clients,) whether a client's model differs from the global one
    varying: frozenset[str]
    places: Indices  # (n_part,) among all mixtures
    mixtures: Mixtures

    @property
    def coefficients(self) -> Coefficients:
        """(n_part, n_clients): those of the clients' differences from w^t; 0 for clients who sent back w^t."""
        return np.asarray(self.mixtures.of_clients * self.moved)

    @property
    def sizes(self) -> Indices:
        """(n_part,): how many models each mixture is made of, those equal to w^t not counted."""
        return np.asarray(np.count_nonzero(self.mixtures.memberships[:, self.moved], axis=1))

    def only(self, rows: NDArray[np.bool_]) -> "Part":
        """Some of the mixtures, or all."""
        if rows.all():
            return self
        return replace(self, places=self.places[rows], mixtures=self.mixtures.rows(rows))

    def within(self, varying: frozenset[str], clients: NDArray[np.bool_]) -> "Part":
        """The same mixtures without clients who are in none of them."""
        kept = np.flatnonzero(clients)
        return replace(
            self,
            clients=[self.clients[k] for k in kept],
            moved=self.moved[kept],
            varying=varying,
            mixtures=self.mixtures.among(kept),
        )


def wanted_parts(round_: Round, mixtures: Mixtures, device: torch.device) -> Iterator[Part]:
    """The mixtures in parts, those left out that are the global model itself.

    Only clients in some mixture are looked at, and only their models moved to the device.
    """
    present = np.flatnonzero(mixtures.memberships.any(axis=0)).tolist()
    models = _models_of(present, round_)
    begins = beginnings(models)
    numbers = in_order_of_content(models, begins)
    origin, *clients = (_on(device, model) for model in (round_.global_model, *(models[k] for k in numbers)))
    names = list(origin)
    differs = np.array([[not is_same(model[name], origin[name]) for name in names] for model in clients], dtype=bool)
    differs = differs.reshape(len(clients), len(names))
    moved = np.asarray(differs.any(axis=1))  # (n_clients,)
    wanted = mixtures.among(numbers)
    is_changed = np.asarray(wanted.memberships[:, moved].any(axis=1))  # (n_mixtures,)
    if wanted.from_global:  # then a client who sent back w^t adds nothing to any sum
        wanted = replace(wanted, memberships=wanted.memberships & moved)
    wanted = interchanged(wanted.rows(is_changed), _twins({k: models[k] for k in numbers}, begins))
    places = np.flatnonzero(is_changed)
    yield from _by_tensors(Part(origin, clients, moved, frozenset(), places, wanted), names, differs)


def _twins(models: dict[int, Model], begins: dict[int, Beginning]) -> list[list[int]]:
    """Groups of equal clients, by their places among the models."""
    places = {client: place for place, client in enumerate(models)}
    return [[places[client] for client in group] for group in twins(models, begins)]


def _by_tensors(whole: Part, names: list[str], differs: NDArray[np.bool_]) -> Iterator[Part]:
    """The parts of all mixtures, by the tensors in which some member differs from the global model."""
    kinds = np.unique(differs[whole.moved], axis=0)
    if len(kinds) == 1:
        yield replace(whole, varying=_named(names, kinds[0]))
        return
    varying = whole.mixtures.memberships.astype(np.float32) @ differs > 0  # (n_changed, n_tensors)
    for kind in np.unique(varying, axis=0):
        is_within = ~(differs & ~kind).any(axis=1)  # (n_clients,) nobody else is in these mixtures
        yield whole.only((varying == kind).all(axis=1)).within(_named(names, kind), is_within)


def _named(names: list[str], kind: NDArray[np.bool_]) -> frozenset[str]:
    return frozenset(name for name, is_varying in zip(names, kind, strict=True) if is_varying)


def _on(device: torch.device, model: Model) -> Model:
    return {name: tensor.to(device) for name, tensor in model.items()}


def _models_of(members: list[int], round_: Round) -> dict[int, Model]:
    models = {**round_.client_models, **round_.apart_models}
    missing = sorted(set(members) - set(models))
    if missing:
        raise ModelError(f"clients {missing} have no model in this round, so no coalition with them can be measured")
    return {k: models[k] for k in members}
