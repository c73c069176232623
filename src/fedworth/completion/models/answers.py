"""Answers: what the clients sent back in the rounds that heard them, and models made of their updates.

In: a ledger. Out: `Answers`, one observation a heard answer, in the order of rounds and clients. Its update is
Δ_i^t = w_i^{t+1} − w^t, and a predicted model is a linear combination of updates, added to a round's global model:

    ŵ = w^t + Σ_a c_a Δ_a

The recorded models stay memory-mapped. A combination is made tensor by tensor and in pieces, so that it takes the
memory of one piece a thread beside the models made, which lie on a `Shelf`. Where all updates together are small they
are kept in memory instead of being read again. The bits are the same for every number of threads.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray

from fedworth.arrays import Floats, Indices
from fedworth.completion.models.shelf import Shelf
from fedworth.ledger.ledger import Ledger, Model, Round
from fedworth.oracle.weighting import participation
from fedworth.threads import in_order

KEPT_BYTES = 1 << 30
"""All updates together may take this much memory; larger ones are read again for every combination."""

LARGEST_KEPT = 1 << 24
"""Updates of models with more bytes than these are never kept: memory is to stay that of a few models."""

PIECE_BYTES = 1 << 26

SHARED = 0.2
"""Answers that count in more than this part of the models are multiplied for all models at once."""

Kept = dict[str, NDArray[np.float32]]
"""All updates by tensor, each (n_answers, n_numbers)."""


@dataclass(frozen=True)
class Answers:
    """Every answer that a federation's rounds have heard."""

    clients: tuple[str, ...]
    participants: NDArray[np.bool_]  # (n_rounds, n_clients)
    rounds: tuple[Round, ...]  # memory-mapped
    n_threads: int = 1  # that combine updates

    @cached_property
    def places(self) -> tuple[Indices, Indices]:
        """(n_answers,) twice: each answer's round and client."""
        rounds, clients = np.nonzero(self.participants)
        return rounds, clients

    @cached_property
    def answered(self) -> NDArray[np.bool_]:
        """(n_rounds,): whether anybody answered."""
        return np.asarray(self.participants.any(axis=1))

    @property
    def heard(self) -> Indices:
        """The clients that some round has heard."""
        return np.flatnonzero(self.participants.any(axis=0))

    def model(self, answer: int) -> Model:
        """One heard answer."""
        rounds, clients = self.places
        return self.rounds[int(rounds[answer])].client_models[int(clients[answer])]

    def models(self, rounds: int | Indices, coefficients: Floats) -> list[Model]:
        """The models w^t + Σ_a c_a Δ_a, one a row of `coefficients`, (n_models, n_answers); `rounds` are t, the same
        for all or (n_models,)."""
        if len(coefficients) == 0:
            return []
        starts, of_row = np.unique(np.broadcast_to(rounds, len(coefficients)), return_inverse=True)
        origins = [self.rounds[t].global_model for t in starts.tolist()]
        used = np.flatnonzero(coefficients.any(axis=0))
        factors = coefficients[:, used].astype(np.float32)
        many = (factors != 0).sum(axis=0) > SHARED * len(factors)  # counted in most of the models
        own = [np.flatnonzero(row * ~many) for row in factors]
        with_own = [place for place, mine in enumerate(own) if len(mine)]
        kept = self._kept  # read once, before threads ask for it
        with Shelf(len(factors), origins[0]) as shelf:

            def put(piece: tuple[str, slice]) -> None:
                name, part = piece
                updates = self._piece(kept, name, used, part)
                moved = factors @ updates if many.all() else factors[:, many] @ updates[many]  # (n_models, n_numbers)
                for place in with_own:
                    moved[place] += factors[place, own[place]] @ updates[own[place]]
                start = torch.stack([origin[name].detach().reshape(-1)[part] for origin in origins])
                shelf.put(name, part.start, _moved(start if len(origins) == 1 else start[of_row], moved))

            in_order(put, self._parts(max(len(used), len(factors))), self.n_threads)
            return shelf.models()

    def products(self, some: Indices) -> Floats:
        """(n_some, n_some): the products of these answers' updates, summed over all their numbers."""
        found = np.zeros((len(some), len(some)))
        for name, part in self._parts(len(some)):
            updates = self._piece(self._kept, name, some, part)
            found += updates @ updates.T
        return found

    def _parts(self, n_rows: int) -> list[tuple[str, slice]]:
        """Each tensor's numbers in pieces, so small that as many rows of a piece are no more than PIECE_BYTES."""
        width = max(1, PIECE_BYTES // (4 * max(n_rows, 1)))
        sizes = {name: like.numel() for name, like in self.rounds[0].global_model.items()}
        return [
            (name, slice(start, min(start + width, size)))
            for name, size in sizes.items()
            for start in range(0, size, width)
        ]

    def _piece(self, kept: Kept | None, name: str, used: Indices, part: slice) -> NDArray[np.float32]:
        """(n_used, n_numbers): some numbers of one tensor's updates."""
        if kept is None:
            return self._updates(name, used, part)
        is_all = len(used) == len(self.places[0])  # no copy of all of them: it would take as much memory again
        return kept[name][:, part] if is_all else kept[name][used, part]

    @cached_property
    def _kept(self) -> Kept | None:
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


def answers_of(ledger: Ledger, *, n_threads: int = 1) -> Answers:
    """The answers that a ledger holds; every round's file is checked once."""
    return Answers(ledger.clients, participation(ledger), tuple(ledger.rounds()), n_threads)


def _flat(tensor: torch.Tensor, part: slice) -> NDArray[np.float32]:
    return np.asarray(tensor.detach().reshape(-1)[part].to(torch.float32).numpy())


def _moved(like: torch.Tensor, update: NDArray[np.float32]) -> torch.Tensor:
    """Numbers, (n_models or 1, n), plus updates of them, (n_models, n), in their own dtype; integers are rounded, as
    servers do."""
    if like.dtype in (torch.float32, torch.float64):  # by numpy: threads of torch's own would spin beside ours
        return torch.from_numpy(like.numpy() + update)
    exact = like.to(torch.float32)
    moved = exact + torch.from_numpy(update)
    return moved.to(like.dtype) if like.is_floating_point() else moved.round().to(like.dtype)
