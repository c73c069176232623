"""Answers: what the clients sent back in the rounds that heard them, and models made of their updates.

In: a ledger. Out: `Answers`, one observation a heard answer, in the order of rounds and clients. Its update is
Δ_i^t = w_i^{t+1} − w^t, and a predicted model is a linear combination of updates, added to a round's global model:

    ŵ = w^t + Σ_a c_a Δ_a

The recorded models stay memory-mapped. A combination is made tensor by tensor and in pieces, so that it takes the
memory of one piece beside the models made, which lie on a `Shelf`. Where all updates together are small they are kept
in memory instead of being read again.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray

from fedworth.arrays import Floats, Indices
from fedworth.completion.models.shelf import Shelf
from fedworth.ledger.ledger import Ledger, Model, Round
from fedworth.utility.observe import participation

KEPT_BYTES = 1 << 30
"""All updates together may take this much memory; larger ones are read again for every combination."""

LARGEST_KEPT = 1 << 24
"""Updates of models with more bytes than these are never kept: memory is to stay that of a few models."""

PIECE_BYTES = 1 << 26

SHARED = 0.2
"""Answers that count in more than this part of the models are multiplied for all models at once."""


@dataclass(frozen=True)
class Answers:
    """Every answer that a federation's rounds have heard."""

    clients: tuple[str, ...]
    participants: NDArray[np.bool_]  # (n_rounds, n_clients)
    rounds: tuple[Round, ...]  # memory-mapped

    @cached_property
    def places(self) -> tuple[Indices, Indices]:
        """(n_answers,) twice: each answer's round and client."""
        rounds, clients = np.nonzero(self.participants)
        return rounds, clients

    @property
    def heard(self) -> Indices:
        """The clients that some round has heard."""
        return np.flatnonzero(self.participants.any(axis=0))

    def model(self, answer: int) -> Model:
        """One heard answer."""
        rounds, clients = self.places
        return self.rounds[int(rounds[answer])].client_models[int(clients[answer])]

    def models(self, round_index: int, coefficients: Floats) -> list[Model]:
        """The models w^t + Σ_a c_a Δ_a, one a row of `coefficients`, (n_models, n_answers)."""
        origin = self.rounds[round_index].global_model
        used = np.flatnonzero(coefficients.any(axis=0))
        factors = coefficients[:, used].astype(np.float32)
        many = (factors != 0).sum(axis=0) > SHARED * len(factors)  # counted in most of the models
        own = [np.flatnonzero(row * ~many) for row in factors]
        with_own = [place for place, mine in enumerate(own) if len(mine)]
        with Shelf(len(factors), origin) as shelf:
            for name, like in origin.items():
                for part, updates in self._pieces(name, used, len(factors)):
                    moved = (
                        factors @ updates if many.all() else factors[:, many] @ updates[many]
                    )  # (n_models, n_numbers)
                    for place in with_own:
                        moved[place] += factors[place, own[place]] @ updates[own[place]]
                    shelf.put(name, part.start, _moved(like.detach().reshape(-1)[part], moved))
            return shelf.models()

    def products(self, some: Indices) -> Floats:
        """(n_some, n_some): the products of these answers' updates, summed over all their numbers."""
        found = np.zeros((len(some), len(some)))
        for name in self.rounds[0].global_model:
            for _, updates in self._pieces(name, some, len(some)):
                found += updates @ updates.T
        return found

    def _pieces(self, name: str, used: Indices, n_made: int) -> Iterator[tuple[slice, NDArray[np.float32]]]:
        """The updates of one tensor, flat, (n_used, n_numbers), piece by piece; as many numbers are made as read."""
        n_numbers = self.rounds[0].global_model[name].numel()
        is_all = len(used) == len(self.places[0])
        width = max(1, PIECE_BYTES // (4 * max(len(used), n_made, 1)))
        for start in range(0, n_numbers, width):
            part = slice(start, min(start + width, n_numbers))
            if self._kept is None:
                yield part, self._updates(name, used, part)
            else:  # no copy of all of them: it would take as much memory again
                yield part, self._kept[name][:, part] if is_all else self._kept[name][used, part]

    @cached_property
    def _kept(self) -> dict[str, NDArray[np.float32]] | None:
        """All updates by tensor, if they fit."""
        sizes = {name: like.numel() for name, like in self.rounds[0].global_model.items()}
        every = np.arange(len(self.places[0]))
        one = 4 * sum(sizes.values())
        if one > LARGEST_KEPT or len(every) * one > KEPT_BYTES:
            return None
        return {name: self._updates(name, every, slice(0, size)) for name, size in sizes.items()}

    def _updates(self, name: str, used: Indices, part: slice) -> NDArray[np.float32]:
        """(n_used, n_numbers): a part of one tensor's updates."""
        rows = np.empty((len(used), part.stop - part.start), dtype=np.float32)
        for row, answer in zip(rows, used.tolist(), strict=True):
            before = self.rounds[int(self.places[0][answer])].global_model[name]
            row[:] = _flat(self.model(answer)[name], part) - _flat(before, part)
        return rows


def answers_of(ledger: Ledger) -> Answers:
    """The answers that a ledger holds; every round's file is checked once."""
    return Answers(ledger.clients, participation(ledger), tuple(ledger.rounds()))


def _flat(tensor: torch.Tensor, part: slice) -> NDArray[np.float32]:
    return np.asarray(tensor.detach().reshape(-1)[part].to(torch.float32).numpy())


def _moved(like: torch.Tensor, update: NDArray[np.float32]) -> torch.Tensor:
    """Some numbers plus updates of them, (n_models, n), in their own dtype; integers are rounded, as servers do."""
    exact = like.to(torch.float64) if like.dtype == torch.float64 else like.to(torch.float32)
    moved = exact + torch.from_numpy(update)
    return moved.to(like.dtype) if like.is_floating_point() else moved.round().to(like.dtype)
