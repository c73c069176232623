"""What is to be measured in a round: its models, and the mixtures that are not just the global model.

Clients come in the order of what is in their models, so that sums over them have an order that neither clients' numbers
nor other clients change. Coalitions that differ from the global model in the same tensors are a part: they are measured
the same way. Which part a coalition is in, as all else about it, is a matter of its own members.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray

from fedworth.arrays import Indices
from fedworth.errors import ModelError, UtilityError
from fedworth.ledger.ledger import Model, Round
from fedworth.utility.fast.heads import Shares, shares_of
from fedworth.utility.fast.mixing import is_same
from fedworth.utility.fast.twins import gathered, in_order_of_content, twins
from fedworth.utility.weighting import Mixtures

Coefficients = NDArray[np.float64]


@dataclass(frozen=True)
class Part:
    """Mixtures that differ from the global model in the same tensors, and the clients in them."""

    origin: Model
    clients: list[Model]
    varying: frozenset[str]
    places: Indices  # (n_part,) among all mixtures
    coefficients: Coefficients  # (n_part, n_clients), 0 for clients who sent back w^t
    shares: Shares | None

    @property
    def sizes(self) -> Indices:
        """(n_part,): how many models each mixture is made of."""
        return np.asarray(np.count_nonzero(self.coefficients, axis=1))

    def only(self, rows: NDArray[np.bool_]) -> "Part":
        """Some of the mixtures, without their shares."""
        return replace(self, places=self.places[rows], coefficients=self.coefficients[rows], shares=None)


def wanted_parts(round_: Round, mixtures: Mixtures, device: torch.device) -> Iterator[Part]:
    """The mixtures in parts, those left out that are the global model itself.

    Only clients in some mixture are looked at, and only their models moved to the device.
    """
    _check_sums(mixtures)
    present = np.flatnonzero(mixtures.of_clients.any(axis=0)).tolist()
    members = in_order_of_content(_models_of(present, round_))
    held = {k: model for k, model in enumerate(_models_of(members, round_).values())}
    origin, *clients = (_on(device, model) for model in (round_.global_model, *held.values()))
    names = list(origin)
    differs = np.array([[not is_same(model[name], origin[name]) for name in names] for model in clients], dtype=bool)
    differs = differs.reshape(len(clients), len(names))
    moved = np.asarray(differs.any(axis=1))  # (n_clients,)
    given = mixtures.of_clients[:, members]  # (n_mixtures, n_clients)
    of_moved = given if moved.all() else given * moved
    is_changed = np.asarray(of_moved.any(axis=1))  # (n_mixtures,)
    if not is_changed.all():
        given, of_moved = given[is_changed], of_moved[is_changed]
    changed = Mixtures(of_moved, mixtures.of_global[is_changed])
    groups = twins(held)
    shares = _shares(mixtures, members, given, changed.of_global, moved)
    shares = None if shares is None else replace(shares.interchanged(groups), client_numbers=tuple(members))
    whole = Part(origin, clients, frozenset(), np.flatnonzero(is_changed), gathered(changed, groups).of_clients, shares)
    yield from _by_tensors(whole, names, differs)


def _shares(
    mixtures: Mixtures,
    members: list[int],
    given: Coefficients,
    of_global: NDArray[np.float64],
    moved: NDArray[np.bool_],
) -> Shares | None:
    """The weights that the mixtures come from: those they say, or such as explain all their coefficients."""
    if mixtures.weights is None:
        shares = shares_of(given, of_global)
    else:
        shares = Shares(given != 0, mixtures.weights[members], mixtures.from_global)
    if shares is not None and shares.from_global:  # then a client who sent back w^t adds nothing to any sum
        shares = replace(shares, memberships=shares.memberships & moved)
    return shares


def _by_tensors(whole: Part, names: list[str], differs: NDArray[np.bool_]) -> Iterator[Part]:
    """The parts of all mixtures, by the tensors in which some member differs from the global model."""
    kinds = np.unique(differs[differs.any(axis=1)], axis=0)
    if len(kinds) == 1:
        yield replace(whole, varying=_named(names, kinds[0]))
        return
    varying = (whole.coefficients != 0).astype(np.float32) @ differs > 0  # (n_changed, n_tensors)
    for kind in np.unique(varying, axis=0):
        rows = (varying == kind).all(axis=1)  # (n_changed,)
        within = ~(differs & ~kind).any(axis=1)  # (n_clients,) nobody else is in these mixtures
        yield replace(
            whole.only(rows),
            clients=[model for model, is_within in zip(whole.clients, within, strict=True) if is_within],
            varying=_named(names, kind),
            coefficients=whole.coefficients[np.ix_(rows, within)],
            shares=None if whole.shares is None else whole.shares.only(rows, within),
        )


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


def _check_sums(mixtures: Mixtures) -> None:
    sums = mixtures.of_clients.sum(axis=1) + mixtures.of_global
    bad = np.flatnonzero(np.abs(sums - 1) > 1e-9)
    if len(bad):
        raise UtilityError(f"mixture {bad[0]}: coefficients sum to {sums[bad[0]]}, expected 1, as in any average")
