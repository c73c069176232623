"""What the parts of a module take and give, seen in two forward passes of a few samples.

Nothing is read from the module's code. In the second pass there is noise on every tensor that varies among the models
of a round. A part that gives the same in both passes is *constant*: it is evaluated once, not once per coalition. A
linear layer whose input is constant is *affine*: what it gives is linear in the model, so it is evaluated once per
client and then mixed.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from fedworth.ledger.ledger import Model
from fedworth.oracle.fast.models import RoundModels
from fedworth.task.samples import Inputs, outputs_of

Activation = Callable[[torch.Tensor], torch.Tensor]

ACTIVATIONS: tuple[tuple[Activation, Activation], ...] = (  # as modules compute them, and in place
    (lambda h: h, lambda h: h),
    (F.relu, torch.relu_),
    (F.leaky_relu, partial(F.leaky_relu, inplace=True)),
    (F.elu, partial(F.elu, inplace=True)),
    (F.gelu, F.gelu),
    (partial(F.gelu, approximate="tanh"), partial(F.gelu, approximate="tanh")),
    (F.silu, partial(F.silu, inplace=True)),
    (torch.sigmoid, torch.sigmoid_),
    (torch.tanh, torch.tanh_),
)


@dataclass(frozen=True)
class Call:
    """What a part took and gave, copied before anybody changes it in place, and the tensors themselves."""

    name: str
    part: nn.Module
    taken: torch.Tensor
    given: torch.Tensor
    tensors: tuple[torch.Tensor, torch.Tensor] = field(repr=False)


@dataclass(frozen=True)
class Observed:
    """The calls and outputs of two forward passes: with the global model, and with noise on what varies."""

    calls: list[Call]
    noisy: list[Call]
    outputs: torch.Tensor
    outputs_of_global: torch.Tensor

    @property
    def largest(self) -> int:
        """The most numbers that a part takes or gives for one sample."""
        tensors = [tensor for call in self.noisy for tensor in (call.taken, call.given)]
        return max((tensor.numel() // max(1, len(tensor)) for tensor in tensors), default=1)


def observe(module: nn.Module, models: RoundModels, inputs: Inputs) -> Observed:
    """See what a module does to a few samples, with the global model and with noise on what varies."""
    generator = torch.Generator().manual_seed(0)
    noise = {name: _noisy(tensor, generator) for name, tensor in models.origin.items() if name in models.varying}
    calls, of_global = _calls(module, models.origin, inputs)
    noisy, outputs = _calls(module, {**models.origin, **noise}, inputs)
    return Observed(calls, noisy, outputs, of_global)


def _calls(module: nn.Module, model: Model, inputs: Inputs) -> tuple[list[Call], torch.Tensor]:
    """The calls of parts that take a tensor and give one, and what the module gives."""
    calls: list[Call] = []

    def note(name: str, part: nn.Module, args: tuple[Any, ...], given: Any) -> None:
        if args and isinstance(args[0], torch.Tensor) and isinstance(given, torch.Tensor):
            calls.append(Call(name, part, args[0].clone(), given.clone(), (args[0], given)))

    handles = [part.register_forward_hook(partial(note, name)) for name, part in module.named_modules()]
    try:
        return calls, outputs_of(module, model, inputs).clone()
    finally:
        for handle in handles:
            handle.remove()


def _noisy(tensor: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Other numbers of the same size; variances stay positive, integers stay as they are."""
    if not tensor.is_floating_point():
        return tensor
    drawn = torch.rand(tensor.shape, generator=generator).to(tensor)
    more = torch.randn(tensor.shape, generator=generator).to(tensor) if tensor.ndim > 1 else drawn
    return tensor * (1 + drawn / 2) + more / 100


@dataclass(frozen=True)
class Layer:
    """The names of a linear layer's tensors in the module's state; a layer may have no bias."""

    weight: str
    bias: str

    @classmethod
    def of(cls, name: str) -> "Layer":
        prefix = f"{name}." if name else ""
        return cls(f"{prefix}weight", f"{prefix}bias")

    @property
    def part(self) -> str:
        """The name of the layer among the module's parts."""
        return self.weight.rpartition(".")[0]


def find_chain(seen: Observed, models: RoundModels) -> tuple[list[Layer], list[Activation]] | None:
    """The linear layers from the first one that varies to the outputs, and the activations between them.

    None if the module does anything else there.
    """
    linear = [call for call in seen.noisy if type(call.part) is nn.Linear]
    start = next((i for i, c in enumerate(linear) if models.varying & {*vars(Layer.of(c.name)).values()}), None)
    if start is None:
        return None
    chain = linear[start:]
    layers = [Layer.of(call.name) for call in chain]
    covered = {name for layer in layers for name in (layer.weight, layer.bias)}
    if not models.varying <= covered or len(set(layers)) < len(layers):
        return None
    before = {call.name: call for call in seen.calls}
    if not before.keys() >= {chain[0].name, chain[-1].name} or chain[0].taken.ndim != 2:
        return None
    if not torch.equal(before[chain[0].name].taken, chain[0].taken):
        return None
    if not torch.equal(chain[-1].given, seen.outputs) or not torch.equal(
        before[chain[-1].name].given, seen.outputs_of_global
    ):
        return None
    between = []
    for call, following in pairwise(chain):
        fits = [in_place for function, in_place in ACTIVATIONS if torch.equal(function(call.given), following.taken)]
        if len(fits) != 1:
            return None
        between.append(fits[0])
    return layers, between


@dataclass(frozen=True)
class Parts:
    """The parts of a module that need not be evaluated for every coalition."""

    constant: dict[str, bool] = field(default_factory=dict)  # and whether what a part gives is used by another kind
    affine: tuple[str, ...] = ()


def find_parts(seen: Observed) -> Parts:
    """The outermost constant parts, and the linear layers that take what is constant."""
    names = [call.name for call in seen.noisy]
    if names != [call.name for call in seen.calls]:  # the module takes another path with other models
        return Parts()
    once = [(b, c) for b, c in zip(seen.calls, seen.noisy, strict=True) if c.name and names.count(c.name) == 1]
    same = {c.name for b, c in once if torch.equal(b.given, c.given)}
    outer = {c.name: c for _, c in once if c.name in same and not any(c.name.startswith(f"{n}.") for n in same)}
    affine = [
        c.name for b, c in once if type(c.part) is nn.Linear and c.name not in same and torch.equal(b.taken, c.taken)
    ]
    if not any(call.part.state_dict() for call in outer.values()):
        outer = {}  # an activation of the inputs alone is not worth keeping
    within = {id(call.tensors[0]) for call in outer.values()}
    without = {id(c.tensors[0]) for c in seen.noisy if c.name not in same}
    given = {name: id(call.tensors[1]) for name, call in outer.items()}
    return Parts({n: given[n] in without or given[n] not in within for n in outer}, tuple(affine))
