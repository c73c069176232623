"""Simulated vertical federations: clients hold different features of the same samples.

    round 0     everyone sends embeddings h = f_k(x_k), as they are before training
    round t     the participants send embeddings; then, in every round but the last, they train with the server: it
                combines their embeddings of a batch with the last ones of the others, takes a gradient step of its
                head, and returns gradients, by which each participant takes a step of its own

The ledger has the head that a round's embeddings find. Clients send embeddings of all test samples; without validation
they send those of the training batch only. Features are divided by columns, or images by strips of rows where there is
a row for each client. Every random draw has its own stream of the seed, so a resumed federation gives the same bytes.
"""

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import nn

from fedworth.arrays import Indices, stream
from fedworth.errors import DataError
from fedworth.ledger.embeddings import EMBEDDING, SAMPLES
from fedworth.ledger.ledger import Model
from fedworth.ledger.writer import Answer, LedgerWriter
from fedworth.simulation.clients import distinct_clients
from fedworth.simulation.datasets import Dataset
from fedworth.simulation.models import DTYPES, ModelSpec, build_model, state_of
from fedworth.simulation.settings import SimulationSettings
from fedworth.simulation.training import refuse_diverged
from fedworth.storage import Progress
from fedworth.task.vertical import Vertical, combined
from fedworth.threads import fitting_threads

Sent = tuple[Model, dict[str, Answer]]
"""What a round records: the server's head, and the embeddings of each client that took part."""


@dataclass(frozen=True, eq=False)
class VerticalFederation:
    """Clients with their features of the same samples, their models of these, and the server's head."""

    clients: tuple[str, ...]
    features: Sequence[torch.Tensor]  # (n_samples, …) of each client, to train on
    labels: torch.Tensor  # (n_samples,)
    validation: Sequence[torch.Tensor]  # the samples whose embeddings are sent; empty: those of the training batch
    bottoms: Sequence[nn.Module]
    head: nn.Module
    settings: SimulationSettings

    def rounds(self, participants: Sequence[Sequence[int]], members: Sequence[int] | None = None) -> Iterator[Sent]:
        """Train, and give what each round records; with `members`, all others hold nothing and send zeros."""
        bottoms, head = copy.deepcopy(self.bottoms), copy.deepcopy(self.head)
        everyone = list(range(len(self.clients)) if members is None else members)
        with torch.no_grad():
            held = [bottom(x) for bottom, x in zip(bottoms, self.features, strict=True)]
            for k in {*range(len(held))} - {*everyone}:
                held[k].zero_()
        for t, asked in enumerate([everyone, *participants]):
            chosen, batches = [k for k in asked if k in everyone], list(self._batches(t))
            samples = np.arange(len(self.labels)) if t == 0 else batches[0]
            yield state_of(head), {self.clients[k]: self._answer(bottoms[k], k, samples) for k in chosen}
            rate = self.settings.learning_rate().at(t)
            for batch in batches if t < len(participants) else ():
                self._step(bottoms, head, held, chosen, torch.from_numpy(batch), rate)
            for module in (head, *bottoms):
                refuse_diverged(state_of(module), f"training, round {t}", rate)

    def _batches(self, t: int) -> Iterator[Indices]:
        n, rng = len(self.labels), stream(self.settings.seed_of_training, "vertical batches", t)
        size = min(self.settings.batch_size or n, n)
        for _ in range(self.settings.n_steps or 0):
            yield np.arange(n) if size == n else rng.permutation(n)[:size]
        for _ in range(self.settings.n_epochs or 0):
            yield from np.array_split(rng.permutation(n), -(-n // size))

    def _answer(self, bottom: nn.Module, client: int, samples: Indices) -> Answer:
        with torch.no_grad():
            if self.validation:
                return Answer({EMBEDDING: bottom(self.validation[client])}, len(self.validation[client]))
            places = {} if len(samples) == len(self.labels) else {SAMPLES: torch.from_numpy(samples)}
            return Answer({EMBEDDING: bottom(self.features[client][samples]), **places}, len(samples))

    def _step(
        self,
        bottoms: Sequence[nn.Module],
        head: nn.Module,
        held: list[torch.Tensor],
        chosen: Sequence[int],
        batch: torch.Tensor,
        rate: float,
    ) -> None:
        """A gradient step of the head and of the participants; `held` are the embeddings that the server has."""
        fresh = {k: bottoms[k](self.features[k][batch]) for k in chosen}
        for k, embedding in fresh.items():
            held[k][batch] = embedding.detach()
        outputs = head(combined([fresh.get(k, held[k][batch]) for k in range(len(held))], self.settings.combine))
        if self.labels.is_floating_point():
            loss = nn.functional.mse_loss(outputs.reshape(-1), self.labels[batch])
        else:
            loss = nn.functional.cross_entropy(outputs, self.labels[batch])
        modules = [head, *(bottoms[k] for k in chosen)]
        parameters = [p for module in modules for p in module.parameters()]
        for parameter, gradient in zip(parameters, torch.autograd.grad(loss, parameters), strict=True):
            parameter.data -= rate * gradient

    def vertical(self, labels: torch.Tensor) -> Vertical:
        """The server's side, with the labels of the samples whose embeddings are sent."""
        with torch.no_grad():
            widths = [bottom(x[:1]).shape[1] for bottom, x in zip(self.bottoms, self.features, strict=True)]
        loss = "squared-error" if labels.is_floating_point() else "cross-entropy"
        named = dict(zip(self.clients, widths, strict=True))
        return Vertical(self.head, labels, named, combine=self.settings.combine, loss=loss)


def vertical_federation(settings: SimulationSettings, dataset: Dataset) -> tuple[VerticalFederation, Vertical]:
    """The clients of a simulated vertical federation, and the server's side of it."""
    dtype, copies = DTYPES[settings.dtype], dict(settings.copies)
    columns = feature_parts(dataset.train.features.shape[1:], settings.n_clients, copies)
    train, test = (torch.from_numpy(part.features).to(dtype).flatten(1) for part in (dataset.train, dataset.test))
    labels, test_labels = (
        labels.to(dtype) if labels.is_floating_point() else labels
        for labels in (torch.from_numpy(part.labels) for part in (dataset.train, dataset.test))
    )
    spec = ModelSpec(settings.model, (1,), settings.width, settings.hidden, 1, settings.dtype)
    seeds = [int(stream(settings.seed, "bottom", copies.get(k, k)).integers(2**31)) for k in range(settings.n_clients)]
    bottoms = [
        build_model(replace(spec, input_shape=(len(part),)), seed=seed)  # a copy starts as its source does
        for part, seed in zip(columns, seeds, strict=True)
    ]
    n_in = settings.width * (1 if settings.combine == "sum" else settings.n_clients)
    head = build_model(ModelSpec("logistic", (n_in,), dataset.n_classes, dtype=settings.dtype), seed=settings.seed)
    federation = VerticalFederation(
        clients=tuple(str(k) for k in range(settings.n_clients)),
        features=[train[:, part] for part in columns],
        labels=labels,
        validation=[test[:, part] for part in columns] if settings.with_validation else (),
        bottoms=bottoms,
        head=head if settings.model == "logistic" else nn.Sequential(nn.ReLU(), head),
        settings=settings,
    )
    return federation, federation.vertical(test_labels if settings.with_validation else labels)


def feature_parts(shape: Sequence[int], n_clients: int, copies: dict[int, int]) -> list[Indices]:
    """The features of each client among those of a flattened sample; a copy has its source's."""
    distinct, places = distinct_clients(n_clients, copies), np.arange(int(np.prod(shape))).reshape(shape)
    if len(shape) == 3 and shape[1] >= len(distinct):  # strips of an image's rows
        parts = [part.reshape(-1) for part in np.array_split(places, len(distinct), axis=1)]
    else:
        parts = np.array_split(places.reshape(-1), len(distinct))
    if len(parts[-1]) == 0:
        raise DataError(f"partition 'vertical': {places.size} features for {len(distinct)} clients, expected one each")
    of = dict(zip(distinct, parts, strict=True))
    return [of[copies.get(k, k)] for k in range(n_clients)]


def record_vertical(
    federation: VerticalFederation, writer: LedgerWriter, participants: Sequence[Sequence[int]], progress: Progress
) -> None:
    """Train, record the rounds that the ledger does not have yet, and close it.

    The clients' models are not in a ledger, so a resumed federation trains from the start.
    """
    n_rounds, head = 1 + len(participants), Model()
    with fitting_threads(federation.head):
        for t, (head, answers) in enumerate(federation.rounds(participants)):
            progress("training rounds", t, n_rounds)
            if t >= writer.n_rounds:
                writer.record_round(head, answers)
    writer.close(head)
    progress("training rounds", n_rounds, n_rounds)
