"""Vertical federations: what a server needs to judge embeddings that clients send.

    outputs of sample i = head(h_i^1, …, h_i^M)        embeddings of M clients, added or concatenated

The module of such a task holds the embeddings themselves, so its inputs are the numbers of the samples. A model is the
head with everyone's embeddings.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from fedworth.errors import UsageError
from fedworth.ledger.embeddings import EmbeddingForm
from fedworth.ledger.model import tensor_bytes
from fedworth.names import Combine, checked_name
from fedworth.task.losses import DEFAULT_LOSS, UserFunction
from fedworth.task.task import Task


class EmbeddedSamples(nn.Module):
    """A head on embeddings that clients have sent of each sample; the inputs are the samples' numbers."""

    def __init__(self, head: nn.Module, form: EmbeddingForm, clients: tuple[str, ...], dtype: torch.dtype) -> None:
        super().__init__()
        self.head, self.clients = head, clients
        self.facts = (form.widths, form.n_samples, str(form.combine), form.labels)  # plain, so that caches know them
        zeros = (torch.zeros(form.n_samples, width, dtype=dtype) for width in form.widths)
        self.embeddings = nn.ParameterList(nn.Parameter(tensor, requires_grad=False) for tensor in zeros)

    @property
    def form(self) -> EmbeddingForm:
        """What the clients send."""
        widths, n_samples, combine, labels = self.facts
        return EmbeddingForm(widths, n_samples, checked_name("combination", Combine, combine), labels)

    def forward(self, samples: torch.Tensor) -> torch.Tensor:
        """The head's outputs for these samples."""
        parts = [embedding[samples] for embedding in self.embeddings]
        return self.head(combined(parts, self.form.combine))  # type: ignore[no-any-return]


def combined(parts: list[torch.Tensor], combine: str) -> torch.Tensor:
    """One embedding of each sample from those of all clients."""
    return torch.cat(parts, dim=1) if combine == "concatenation" else torch.stack(parts).sum(dim=0)


class Vertical:
    """The server's side of a vertical federation: the clients and their embeddings, the head and the labels.

    Args:
        head: The server's module, from the combined embeddings of samples to outputs; its weights do not matter.
        labels: The labels of the samples whose embeddings clients send: validation samples, or training samples.
        widths: How many numbers each client sends of a sample, by the client's name.
        combine: How the server combines embeddings of a sample: `concatenation`, or their `sum`.
        loss: A name (`cross-entropy` on logits, `squared-error`, `binary`, …), or a function of outputs and labels.

    Example:
        vertical = fedworth.Vertical(torch.nn.Linear(8, 2), torch.arange(60) % 2, {"bank": 4, "shop": 4})
        task = vertical.task()
    """

    def __init__(
        self,
        head: nn.Module,
        labels: torch.Tensor,
        widths: Mapping[str, int],
        *,
        combine: Combine = "concatenation",
        loss: str | UserFunction = DEFAULT_LOSS,
    ) -> None:
        self.head, self.labels, self.loss, self.clients = head, labels, loss, tuple(widths)
        if not isinstance(labels, torch.Tensor):
            raise UsageError(f"labels: found a {type(labels).__name__}, expected a tensor (torch.as_tensor)")
        numbers = labels.detach().cpu().float().flatten() + 0.0  # whatever their dtype and shape are
        sha256 = hashlib.sha256(tensor_bytes(numbers)).hexdigest()
        combine = checked_name("combination", Combine, combine)
        self.form = EmbeddingForm(tuple(widths.values()), len(labels), combine, sha256)

    def task(self, **more: Any) -> Task:
        """What the ledger is valued on.

        Args:
            **more: The other arguments of `Task`, such as `groups`.

        Returns:
            The task.

        Example:
            task = vertical.task(groups=regions)
        """
        dtype = next((tensor.dtype for tensor in self.head.parameters()), torch.get_default_dtype())
        module = EmbeddedSamples(self.head, self.form, self.clients, dtype)
        return Task(module, torch.arange(self.form.n_samples), self.labels, loss=self.loss, **more)


def refuse_other_form(task: Task, form: EmbeddingForm, clients: Sequence[str], where: str) -> None:
    """Refuse a task that is not about embeddings of this form by these clients."""
    module = task.module
    if not isinstance(module, EmbeddedSamples):
        raise UsageError(
            f"{where}: a vertical federation, whose clients send embeddings; value it on a task that "
            "fedworth.Vertical(head, labels, widths).task() makes"
        )
    found = module.form
    if not found.fits(replace(form, labels="")) or module.clients != tuple(clients):
        recorded, given = _described(form, clients), _described(found, module.clients)
        raise UsageError(f"{where}: has {recorded}, and the task {given}; make both the same")
    if not found.fits(form):
        raise UsageError(
            f"{where}: the labels of the task are not those that the recorder got, or in another order; give the task "
            "the same labels, in the order of the samples"
        )


def _described(form: EmbeddingForm, clients: Sequence[str]) -> str:
    widths = ", ".join(f"{client!r} {width}" for client, width in zip(clients, form.widths, strict=True))
    return f"embeddings of {form.n_samples} samples and widths {widths} for their {form.combine}"
