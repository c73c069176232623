"""Rounds at equal length: every update of a round rescaled to the round's median length, and nothing else changed.

    w_i  →  w^t + (m / ‖u_i‖) u_i,      u_i = w_i − w^t,   m the median of ‖u_k‖ over the participants

A client cannot gain here by sending a longer update. An update of length 0 stays as it is, and so do tensors that are
not floats. Models are rescaled whenever they are read, so that no second copy of the round is held in memory.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from fedworth.ledger.ledger import Round
from fedworth.ledger.model import Model


def at_equal_length(round_: Round, participants: Sequence[int]) -> Round:
    """The round with every client's update at the median length of the participants' updates."""
    factors, start = rescaling(round_, participants), round_.global_model
    return replace(
        round_,
        client_models=_Rescaled(start, round_.client_models, factors),
        apart_models=_Rescaled(start, round_.apart_models, factors),
    )


def rescaling(round_: Round, participants: Sequence[int]) -> dict[int, float]:
    """What each client's update is multiplied by."""
    models = {**round_.client_models, **round_.apart_models}
    lengths = {k: update_length(model, round_.global_model) for k, model in models.items()}
    median = float(np.median([lengths[k] for k in participants])) if participants else 0.0
    return {k: median / length if length > 0 else 1.0 for k, length in lengths.items()}


def update_length(model: Model, start: Model) -> float:
    """‖w_i − w^t‖ over the float tensors, summed in float64."""
    squares = (
        float(((tensor.double() - start[name].double()) ** 2).sum())
        for name, tensor in model.items()
        if tensor.is_floating_point()
    )
    return float(np.sqrt(sum(squares)))


@dataclass(frozen=True)
class _Rescaled(Mapping[int, Model]):
    """Models of clients with rescaled updates."""

    start: Model
    models: Mapping[int, Model]
    factors: Mapping[int, float]

    def __getitem__(self, client: int) -> Model:
        model, factor = self.models[client], self.factors[client]
        return {name: _moved(self.start[name], tensor, factor) for name, tensor in model.items()}

    def __iter__(self) -> Iterator[int]:
        return iter(self.models)

    def __len__(self) -> int:
        return len(self.models)


def _moved(start: torch.Tensor, tensor: torch.Tensor, factor: float) -> torch.Tensor:
    if not tensor.is_floating_point():
        return tensor
    return (start.double() + factor * (tensor.double() - start.double())).to(tensor.dtype)
