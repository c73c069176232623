"""The ledger of a vertical federation: clients hold different features of the same samples, and send embeddings.

    federation.json               settings.embeddings: widths, n_samples, combine, sha256 of the labels
    rounds/000000.safetensors     global/<tensor>: the server's head, as the round's embeddings found it
                                  client/<index>/embedding, (n, width); client/<index>/samples, (n,), if not all

Samples are given by their place among the labels that the server has. `EmbeddingLedger` reads such a ledger as one of
models: the global model of round t is the head with everyone's last embeddings, and a client's model is the same with
the client's embeddings of round t. So an absent client is one that changes nothing.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import msgspec
import torch

from fedworth.errors import LedgerError, ModelError, UsageError
from fedworth.ledger.model import Model, check_finite
from fedworth.names import Combine

EMBEDDINGS, EMBEDDING, SAMPLES = "embeddings", "embedding", "samples"
NO_HEAD = "no parameters"
"""The tensor that stands for a head without parameters."""


@dataclass(frozen=True)
class EmbeddingForm:
    """What the clients of a vertical federation send."""

    widths: tuple[int, ...]  # of each client's embeddings
    n_samples: int
    combine: Combine  # how the server makes one embedding of a sample's
    labels: str = ""  # sha256 of the labels, whose order is that of the samples; empty if it is not known

    def __post_init__(self) -> None:
        if not self.widths or min(*self.widths, self.n_samples, 1) < 1:
            raise UsageError(
                f"embeddings of widths {self.widths}, {self.n_samples} samples: expected 1 or more of each"
            )
        if self.combine == "sum" and len({*self.widths}) > 1:
            raise UsageError(
                f"embeddings of widths {self.widths} cannot be added; expected equal widths, or concatenate"
            )

    def fits(self, other: "EmbeddingForm") -> bool:
        """Whether both are about the same embeddings; labels that are not known fit any."""
        return self == (other if self.labels and other.labels else replace(other, labels=self.labels))

    def document(self) -> dict[str, Any]:
        """The form as JSON, for the ledger's header."""
        return asdict(self)

    def head(self, model: Model) -> Model:
        """The head as it is recorded."""
        return model or {NO_HEAD: torch.zeros(1)}

    def like(self, head: Model) -> Model:
        """A model with as many and as long names as any in a round."""
        shape = {EMBEDDING: (self.n_samples, max(self.widths)), SAMPLES: (self.n_samples,)}
        return {**head, **{name: torch.empty(size, device="meta") for name, size in shape.items()}}

    def check(self, model: Model, client: int, where: str) -> float:
        """Refuse what are no embeddings of this client; returns the largest absolute value."""
        if client >= len(self.widths):
            raise ModelError(
                f"{where}: not a client of this vertical federation, whose clients are named when it starts"
            )
        embedding, samples = model.get(EMBEDDING), model.get(SAMPLES)
        if embedding is None or not {*model} <= {EMBEDDING, SAMPLES}:
            raise ModelError(f"{where}: holds {sorted(model)}, expected {EMBEDDING!r}, and {SAMPLES!r} if not of all")
        n = self.n_samples if samples is None else samples.numel()
        if tuple(embedding.shape) != (n, self.widths[client]) or not embedding.is_floating_point():
            found = f"embeddings of shape {tuple(embedding.shape)}, {embedding.dtype}"
            raise ModelError(f"{where}: {found}; expected floats of shape {(n, self.widths[client])}")
        if samples is not None:
            if samples.ndim != 1 or samples.dtype != torch.int64 or len(torch.unique(samples)) < n:
                raise ModelError(f"{where}: samples are no list of different places (int64)")
            if n and not (int(samples.min()) >= 0 and int(samples.max()) < self.n_samples):
                raise ModelError(f"{where}: samples beyond the {self.n_samples} that the server has labels of")
        return check_finite(model, where)


def form_of(settings: Mapping[str, Any]) -> EmbeddingForm | None:
    """The form of a vertical federation's embeddings, by the settings in a ledger's header; None for any other."""
    if EMBEDDINGS not in settings:
        return None
    try:
        return msgspec.convert(settings[EMBEDDINGS], EmbeddingForm)
    except (msgspec.ValidationError, UsageError) as error:
        raise LedgerError(f"header, {EMBEDDINGS}: not understood ({error})") from error
