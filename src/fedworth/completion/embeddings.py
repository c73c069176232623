"""Completion of embeddings: everyone's embedding of every sample in every round of a vertical federation.

A client that was absent from a round has learned nothing in it, so its embeddings are those of its last round. Where
clients send only the embeddings of a batch of training samples, those of the other samples have changed too, unseen:

    carried forward    a sample keeps its last embedding that was seen; before the first, it has the first
"""

from collections.abc import Sequence
from dataclasses import fields
from functools import cached_property

import numpy as np
import torch

from fedworth.errors import TooManyError
from fedworth.ledger.embeddings import EMBEDDING, NO_HEAD, SAMPLES, EmbeddingForm
from fedworth.ledger.ledger import Ledger, Round

MOST_BYTES = 8 << 30
"""Memory that completed embeddings may take."""

States = Sequence[Sequence[torch.Tensor]]
"""(1 + n_rounds, n_clients) of (n_samples, width): all embeddings before the first round, then after each."""


class EmbeddingLedger(Ledger):
    """The ledger of a vertical federation, read as one of models.

    The global model of a round is the server's head, and everyone's embeddings before the round. A client's model is
    the same with the client's embeddings after the round.
    """

    @classmethod
    def of(cls, ledger: Ledger) -> "EmbeddingLedger":
        """A ledger of embeddings as one of models."""
        return cls(**{field.name: getattr(ledger, field.name) for field in fields(ledger)})

    def open_round(self, round_index: int, *, with_apart: bool = False) -> Round:
        """The round with every client's embeddings."""
        recorded = super().open_round(round_index, with_apart=with_apart)
        before, after = self._states[round_index], self._states[round_index + 1]
        start = {f"head.{name}": tensor for name, tensor in recorded.global_model.items() if name != NO_HEAD}
        start |= {f"embeddings.{k}": tensor for k, tensor in enumerate(before)}
        models = {k: {**start, f"embeddings.{k}": after[k]} for k in self.participants(round_index)}
        return Round(recorded.entry, start, models, {})

    @cached_property
    def _states(self) -> States:
        return carried_forward(self)

    @cached_property
    def n_deciding(self) -> int:
        """The number of rounds until every client has sent an embedding of every sample; all, if some never did."""
        seen = np.zeros((len(self.clients), self._form.n_samples), dtype=bool)
        for t in range(self.n_rounds):
            for k, model in super().open_round(t).client_models.items():
                seen[k, model[SAMPLES].numpy() if SAMPLES in model else slice(None)] = True
            if seen.all():
                return t + 1
        return self.n_rounds

    @property
    def _form(self) -> EmbeddingForm:
        assert self.form is not None
        return self.form


def carried_forward(ledger: EmbeddingLedger) -> States:
    """Embeddings by the last value that was seen, or the first if none was; zero for a client that never answered."""
    rounds = [Ledger.open_round(ledger, t) for t in range(ledger.n_rounds)]
    states = [[_first(rounds, k, width, ledger) for k, width in enumerate(ledger._form.widths)]]
    n_bytes = 0
    for t, round_ in enumerate(rounds):
        after = list(states[-1])
        for k in ledger.participants(t):
            model = round_.client_models[k]
            if SAMPLES not in model:
                after[k] = model[EMBEDDING].to(after[k].dtype)
                continue
            after[k] = after[k].clone()
            after[k][model[SAMPLES]] = model[EMBEDDING].to(after[k].dtype)
            n_bytes += after[k].nbytes
        if n_bytes > MOST_BYTES:
            raise TooManyError(
                f"{ledger.folder}: all embeddings of {t + 1} of {ledger.n_rounds} rounds take more than "
                f"{MOST_BYTES >> 30} GB; let clients send those of a few hundred validation samples instead"
            )
        states.append(after)
    return states


def _first(rounds: Sequence[Round], client: int, width: int, ledger: EmbeddingLedger) -> torch.Tensor:
    """(n_samples, width): the first embedding that a client sent of each sample."""
    n, found, unseen = ledger._form.n_samples, None, np.zeros(0, dtype=bool)
    for round_ in rounds:
        model = round_.client_models.get(client)
        if model is None:
            continue
        if found is None:
            if SAMPLES not in model:
                return model[EMBEDDING]
            found, unseen = torch.zeros(n, width, dtype=model[EMBEDDING].dtype), np.ones(n, dtype=bool)
        samples = model[SAMPLES].numpy() if SAMPLES in model else np.arange(n)
        new = unseen[samples]
        found[samples[new]] = model[EMBEDDING][torch.from_numpy(new)].to(found.dtype)
        unseen[samples] = False
        if not unseen.any():
            break
    return torch.zeros(n, width) if found is None else found
