"""The models of a round as differences from the global model, ready to be mixed many at a time.

    w_S = w^t + Σ_{k∈S} c_{S,k} (w_k − w^t)

Differences are stacked over clients, so that one matrix product mixes a tensor of many coalitions.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray

from fedworth.arrays import Indices, Memberships
from fedworth.errors import ModelError
from fedworth.ledger.ledger import Model, Round
from fedworth.oracle.oracle import mix
from fedworth.oracle.weighting import Mixtures
from fedworth.task.samples import Inputs, rows


@dataclass(frozen=True)
class Samples:
    """Test samples and the block that each belongs to."""

    inputs: Inputs
    labels: torch.Tensor  # (n_samples, …)
    blocks: torch.Tensor  # (n_samples,)
    n_blocks: int

    def __len__(self) -> int:
        return len(self.labels)

    @cached_property
    def block_numbers(self) -> Indices | None:
        """(n_samples,): the block of each sample on the CPU; None if there is only one."""
        return None if self.n_blocks == 1 else self.blocks.cpu().numpy()

    def at(self, which: slice | torch.Tensor) -> "Samples":
        """Some of the samples."""
        return Samples(rows(self.inputs, which), self.labels[which], self.blocks[which], self.n_blocks)

    def batches(self, size: int) -> list["Samples"]:
        """All samples, `size` at a time."""
        return [self.at(at) for at in slices(len(self), size)]


class RoundModels:
    """A global model, and by how much the models of some clients differ from it.

    Args:
        round_: Its models have the names and dtypes of the task's module.
        clients: The numbers of the clients, ascending.
        device: Where the models are mixed.
    """

    def __init__(self, round_: Round, clients: Sequence[int], device: torch.device) -> None:
        self.clients = list(clients)
        models = {**round_.client_models, **round_.apart_models}
        if missing := sorted(set(clients) - set(models)):
            raise ModelError(
                f"clients {missing} have no model in this round, so no coalition with them can be measured"
            )
        self._clients_models = [models[k] for k in clients]
        self._device = device
        self.origin = {name: tensor.to(device) for name, tensor in round_.global_model.items()}
        self.floats: list[str] = []  # floating point tensors that vary
        self.integers: set[str] = set()  # tensors of integers that vary
        for name, like in self.origin.items():
            tensors = (model[name].to(device) for model in self._clients_models)
            if any(tensor is not like and not torch.equal(tensor, like) for tensor in tensors):
                (self.floats.append if like.is_floating_point() else self.integers.add)(name)

    @property
    def n_bytes(self) -> int:
        """What one client's update takes."""
        return sum(self.origin[name].nbytes for name in self.floats)

    @property
    def updates(self) -> dict[str, torch.Tensor]:
        """(n_clients, size) of every floating point tensor that varies; stacked when they are first asked for."""
        return self._stacked[0]

    @property
    def is_finite(self) -> NDArray[np.bool_]:
        """(n_clients,): whether all numbers of a client's model are finite."""
        return self._stacked[1]

    @cached_property
    def _stacked(self) -> tuple[dict[str, torch.Tensor], NDArray[np.bool_]]:
        updates, finite = {}, torch.ones(len(self.clients), dtype=torch.bool, device=self._device)
        for name in self.floats:
            stacked = torch.stack([model[name].to(self._device).reshape(-1) for model in self._clients_models])
            stacked -= self.origin[name].reshape(-1)
            finite &= stacked.isfinite().all(dim=1)
            updates[name] = stacked
        for stacked in updates.values():  # 0 · NaN would spoil coalitions without the client
            stacked[~finite] = 0.0
        return updates, finite.cpu().numpy()

    @property
    def varying(self) -> frozenset[str]:
        """The names of the tensors in which some client differs from the global model."""
        return frozenset(self.floats) | self.integers

    @property
    def frozen(self) -> Model:
        """The tensors of the global model that are the same in every model."""
        return {name: tensor for name, tensor in self.origin.items() if name not in self.varying}

    @cached_property
    def has_moved(self) -> NDArray[np.bool_]:
        """(n_clients,): whether a client's model differs from the global model."""
        moved = ~self.is_finite
        for stacked in self.updates.values():
            moved |= (stacked != 0).any(dim=1).cpu().numpy()
        for name in self.integers:
            like = self.origin[name].cpu()
            moved |= np.array([not torch.equal(model[name].cpu(), like) for model in self._clients_models])
        return moved

    @cached_property
    def duplicates(self) -> list[list[int]]:
        """Groups of two or more clients with equal models, by their place among the clients."""
        sums = [stacked.sum(dim=1, dtype=torch.float64).tolist() for stacked in self.updates.values()]
        groups: dict[tuple[float, ...], list[list[int]]] = {}
        for place in range(len(self.clients)):  # equal sums are cheap to find, and a necessary condition
            same_sums = groups.setdefault(tuple(of_tensor[place] for of_tensor in sums), [])
            group = next((group for group in same_sums if self._is_equal(group[0], place)), None)
            if group is None:
                same_sums.append([place])
            else:
                group.append(place)
        return [group for same_sums in groups.values() for group in same_sums if len(group) > 1]

    def _is_equal(self, first: int, second: int) -> bool:
        if not (self.is_finite[first] and self.is_finite[second]):
            return False
        models = self._clients_models[first], self._clients_models[second]
        return all(torch.equal(stacked[first], stacked[second]) for stacked in self.updates.values()) and all(
            torch.equal(models[0][name], models[1][name]) for name in self.integers
        )

    def mixed(self, name: str, mixtures: Mixtures) -> torch.Tensor:
        """(n_mixtures, *shape): a tensor of each mixture's model."""
        like = self.origin[name]
        if name in self.integers:  # rounded as by the loop; these are counters of a few numbers
            start, models = {name: like.cpu()}, {k: {name: model[name]} for k, model in enumerate(self._clients_models)}
            pairs = zip(mixtures.of_clients, mixtures.of_global.tolist(), strict=True)
            return torch.stack([mix(start, models, *pair)[name] for pair in pairs]).to(like.device)
        stacked = self.updates[name]
        coefficients = torch.from_numpy(mixtures.of_clients).to(stacked)
        return torch.addmm(like.reshape(1, -1), coefficients, stacked).view(-1, *like.shape)


def merge_duplicates(models: RoundModels, mixtures: Mixtures) -> tuple[Mixtures, Indices]:
    """The different mixtures, the global model first, and for each of the given mixtures which of them it is.

    Clients with equal models and weights replace each other, the first of them the last. So coalitions that
    differ only in such clients are measured once, and their utilities are equal to the last bit.
    """
    members = mixtures.memberships.copy()
    if mixtures.from_global:  # then a client who sent back the global model changes nothing
        members[:, ~models.has_moved] = False
    for group in models.duplicates:
        for weight in np.unique(mixtures.weights[group]):
            equal = [place for place in group if mixtures.weights[place] == weight]
            members[:, equal] = np.arange(len(equal)) < members[:, equal].sum(axis=1, keepdims=True)
    members[~members[:, models.has_moved].any(axis=1)] = False  # the global model itself
    packed = np.packbits(members, axis=1)
    raw, width = packed.tobytes(), packed.shape[1]
    seen = {bytes(width): 0}  # nobody
    places = np.array([seen.setdefault(raw[i * width : (i + 1) * width], len(seen)) for i in range(len(members))], int)
    distinct: Memberships = np.zeros((len(seen), members.shape[1]), dtype=bool)
    distinct[places] = members
    return Mixtures(distinct, mixtures.weights, mixtures.from_global), places


def slices(n: int, size: int) -> list[slice]:
    """Consecutive slices of `size` that cover n."""
    return [slice(start, min(n, start + size)) for start in range(0, n, size)]
