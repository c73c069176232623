"""A server's rule. In: the models of some clients. Out: the next global model.

    w_S, state' = rule.aggregate(w^t, models of S, their weights, state of round t)

In: models as arrays by name, in the order in which the server added them. Out: the next model, and what the server
keeps for the next round. A rule is pure: it is given the state, and gives the next one. Arithmetic is numpy's, in the
arrays' own precision, as frameworks do it, so a replay of a recorded round gives the recorded model to float precision.

A *linear* rule's w_S is the weighted mean of one array a member (`contribution`), so the fast oracle can mix them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray

from fedworth.ledger.model import Model

Arrays = Mapping[str, NDArray[Any]]
"""A model as numpy arrays by name."""

NOISE = "noise"
"""Where a state keeps the noise that the server has drawn in its round, as far as the ledger shows it."""


@dataclass(frozen=True)
class State:
    """What a server knows when it aggregates a round: the round's number, and arrays kept from earlier rounds."""

    number: int = 1
    memory: Mapping[str, Arrays] = field(default_factory=dict)


class Rule(Protocol):
    """How a server makes one model of several."""

    def aggregate(
        self, global_model: Arrays, models: Sequence[Arrays], weights: Sequence[float], state: State
    ) -> tuple[Arrays, State]:
        """The next global model, and the state after it."""

    def document(self) -> dict[str, Any]:
        """The rule as JSON, for the ledger's header."""


@runtime_checkable
class LinearRule(Rule, Protocol):
    """A rule whose model is the weighted mean of one model a member."""

    def contribution(self, global_model: Arrays, model: Arrays, state: State) -> Arrays:
        """What one member adds to the mean."""


@dataclass(frozen=True)
class WeightedMean:
    """FedAvg, FedProx: Σ n_k w_k / Σ n_k."""

    def aggregate(
        self, global_model: Arrays, models: Sequence[Arrays], weights: Sequence[float], state: State
    ) -> tuple[Arrays, State]:
        """The weighted mean; nothing is kept."""
        return weighted_mean(models, weights), state

    def contribution(self, global_model: Arrays, model: Arrays, state: State) -> Arrays:
        """A member's model as it is."""
        return model

    def document(self) -> dict[str, Any]:
        """The rule as JSON."""
        return {"name": "mean"}


def weighted_mean(models: Sequence[Arrays], weights: Sequence[float]) -> Arrays:
    """Σ n_k w_k / Σ n_k, added one after the other in the arrays' own precision; the mean of integers is a float."""
    shares = [weight / sum(weights) for weight in weights]
    mean = {name: array * shares[0] for name, array in models[0].items()}
    for model, share in zip(models[1:], shares[1:], strict=True):
        for name, array in model.items():
            mean[name] = mean[name] + array * share
    return mean


def arrays_of(model: Model) -> Arrays:
    """A model's tensors as arrays, without a copy; half precision, which numpy lacks or computes badly, as float32."""
    return {name: _wide(tensor.detach()).cpu().numpy() for name, tensor in model.items()}


def model_of(arrays: Arrays, like: Model) -> Model:
    """Arrays as a model with the dtypes of `like`; what is an integer there is rounded."""
    return {name: _as(np.asarray(arrays[name]), tensor.dtype) for name, tensor in like.items()}


def _wide(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to(torch.float32) if tensor.dtype in (torch.bfloat16, torch.float16) else tensor


def _as(array: NDArray[Any], dtype: torch.dtype) -> torch.Tensor:
    rounded = array if dtype.is_floating_point or array.dtype.kind != "f" else np.round(array)
    return torch.from_numpy(np.array(rounded)).to(dtype)
