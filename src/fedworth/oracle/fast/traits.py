"""What a module does to samples that decides how it may be evaluated: whether it rounds to half precision on the way,
whether a sample's logits depend on its batch. Found out by running it on the global model, and on that model with noise
as large as its weights, since behind a head of zeros nothing shows.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, TypeVar

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from fedworth.ledger.ledger import Model
from fedworth.task.modules import copied
from fedworth.task.samples import outputs_of

Key = TypeVar("Key")

WIDENED_BYTES = 8 << 20
"""Models that differ in more are not tried in float64: it would take longer than many coalitions do."""

NOISE = 65537
"""Random numbers that are drawn for a tensor; a larger one repeats them. A prime, so that its rows differ."""


def plain_logits(module: nn.Module, model: Model, inputs: torch.Tensor) -> torch.Tensor:
    """What the plain loop gives; tied tensors are in a model under each of their names."""
    return outputs_of(module, model, inputs)


def can_be_widened(origin: Model, varying: frozenset[str]) -> bool:
    """Whether models differ in so little that they may be tried in float64 too."""
    return sum(tensor.nbytes for name, tensor in origin.items() if name in varying) <= WIDENED_BYTES


def amplify(model: Model, module: nn.Module, varying: frozenset[str], seed: int) -> Model:
    """The model with noise as large as its weights; positive tensors (variances) stay positive, tied ones tied."""
    generator = torch.Generator().manual_seed(seed)
    first: dict[int, str] = {}
    tensors = {**dict(module.named_parameters(remove_duplicate=False)), **dict(module.named_buffers())}
    noisy: Model = {}
    for name, tensor in model.items():
        twin = first.setdefault(id(tensors.get(name, tensor)), name)
        if twin != name:
            noisy[name] = noisy[twin]
        elif name in varying and tensor.is_floating_point():
            noise = _noise(tensor, generator)
            positive = bool((tensor > 0).all())
            noisy[name] = tensor * noise.exp() if positive else tensor + noise * tensor.abs().mean().clamp(min=0.01)
        else:
            noisy[name] = tensor
    return noisy


def _noise(tensor: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Random numbers in the shape of a tensor."""
    drawn = torch.randn(min(NOISE, tensor.numel()), generator=generator, dtype=torch.float64).to(tensor)
    return drawn.repeat(-(-tensor.numel() // max(1, len(drawn))))[: tensor.numel()].view(tensor.shape)


def all_widened(tensors: dict[Key, torch.Tensor]) -> dict[Key, torch.Tensor]:
    """The same in float64; whole numbers stay as they are."""
    return {key: t.double() if t.is_floating_point() else t for key, t in tensors.items()}


class Rounding(TorchFunctionMode):
    """Notes what a module rounds to a narrower type within, by `x.float()` or autocast say."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[torch.Tensor] = []

    def __torch_function__(
        self, function: Callable[..., Any], _: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        made = function(*args, **(kwargs or {}))
        if args and isinstance(args[0], torch.Tensor) and isinstance(made, torch.Tensor):
            are_floating = args[0].is_floating_point() and made.is_floating_point()
            if are_floating and made.element_size() < args[0].element_size():
                self.found.append(made)
        return made


def rounds_to_half(module: nn.Module, origin: Model, varying: frozenset[str], inputs: torch.Tensor) -> bool:
    """Whether a module rounds to half precision what depends on the model; a frozen backbone may be in it."""
    noisy = amplify(origin, module, varying, seed=0)
    ours, others = (_halves(module, model, inputs) for model in (origin, noisy))
    return len(ours) != len(others) or not all(map(torch.equal, ours, others))


def _halves(module: nn.Module, model: Model, inputs: torch.Tensor) -> list[torch.Tensor]:
    with Rounding() as rounding, suppress(Exception):  # noise may be more than a module can bear
        plain_logits(module, model, inputs)
    return [made for made in rounding.found if made.dtype in (torch.float16, torch.bfloat16)]


def rows_are_alone(module: nn.Module, origin: Model, varying: frozenset[str], inputs: torch.Tensor) -> bool:
    """Whether a sample's logits are the same whatever other samples are in its batch.

    Behind a head of zeros nothing shows in the global model, so one with noise as large as its weights is asked too.
    """
    return _are_alone(module, origin, inputs) and _noisy_are_alone(module, origin, varying, inputs)


def _noisy_are_alone(module: nn.Module, origin: Model, varying: frozenset[str], inputs: torch.Tensor) -> bool:
    """In float64, as noise may multiply roundings, or else as the module is; nothing is known if it cannot bear it."""
    noisy = amplify(origin, module, varying, seed=0)
    with suppress(Exception):  # whatever a module raises that is not made for float64
        if can_be_widened(origin, varying):
            wide_inputs = inputs.double() if inputs.is_floating_point() else inputs
            return _are_alone(copied(module).double(), all_widened(noisy), wide_inputs)
    with suppress(Exception):  # or for so much noise
        return _are_alone(module, noisy, inputs)
    return True


def _are_alone(module: nn.Module, model: Model, inputs: torch.Tensor) -> bool:
    half = len(inputs) // 2
    if half == 0:
        return True
    together = plain_logits(module, model, inputs)
    apart = torch.cat([plain_logits(module, model, part) for part in (inputs[:half], inputs[half:])])
    scale = max(1.0, float(together.nan_to_num(0.0, 0.0, 0.0).abs().max()))
    return torch.allclose(apart, together, rtol=0.0, atol=1e-4 * scale, equal_nan=True)
