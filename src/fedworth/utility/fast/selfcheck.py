"""The self-check: a way of evaluating is compared with the plain loop before it is used.

In: sections, a round's models and weights. Out: nothing, or `Disagrees`. Real clients differ so little that a wrong cut
can pass on them (with a rule that calls relu affine, errors of a twentieth of the spread went unseen), so logits are
compared first on random clients whose differences are as large as the weights, then on the round's own clients. In
float64 only a wrong cut can differ by more than roundings. Some kernels are there for float32 alone, so what is used is
compared as well, with the tolerance that float32 takes. For a module that insists on float32 within that is all.
"""

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import zip_longest
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.overrides import TorchFunctionMode

from fedworth.federation.copies import copied
from fedworth.federation.losses.classes import CROSS_ENTROPY
from fedworth.federation.samples import outputs_of
from fedworth.ledger.ledger import Model
from fedworth.utility.fast.affine import Prefix, logits, quality, sample_batches
from fedworth.utility.fast.heads import Head, head_losses
from fedworth.utility.fast.mixing import channels_last, combined, round_models
from fedworth.utility.fast.sections import Sections
from fedworth.utility.oracle import mix
from fedworth.utility.weighting import Mixtures

Key = TypeVar("Key")

N_SAMPLES = 32
COEFFICIENTS = np.array([[0.5, 0.5, 0.0], [1 / 3, 1 / 3, 1 / 3], [0.1, 0.2, 0.3], [0.0, 0.0, 1.0]])  # g = 0, 0, 0.4, 0
CHECKED_COALITIONS = np.array([[True, True, False], [True, True, True], [False, False, True], [True, False, False]])
CHECKED_MIXTURES = (
    Mixtures(CHECKED_COALITIONS, np.ones(3), from_global=False),
    Mixtures(CHECKED_COALITIONS, np.array([0.1, 0.2, 0.3]), from_global=True),
)
TOLERANCES = {torch.float64: 1e-9, torch.float32: 1e-4}
"""Of the largest logit."""

ROUNDINGS = 10
"""Deep modules round more: what is used may differ by so many times what the plain loop differs from float64."""

HEAD_TOLERANCE = 1e-5


class Disagrees(Exception):
    """How a way of evaluating differs from the plain loop; another way serves the module instead."""


def plain_logits(module: nn.Module, model: Model, inputs: torch.Tensor) -> torch.Tensor:
    """What the plain loop gives; tied tensors are in a model under each of their names."""
    return outputs_of(module, model, inputs)


def check_sections(
    sections: Sections,
    module: nn.Module,
    origin: Model,
    clients: Sequence[Model],
    inputs: torch.Tensor,
    *,
    images: bool,
) -> None:
    """Refuse sections whose logits are not the plain loop's, on amplified clients and on those of the round."""
    wide = replace(sections, exported=replace(sections.exported, constants=_widened(sections.exported.constants)))
    wide_module = copied(module).double()
    wide_inputs = inputs.double() if inputs.is_floating_point() else inputs
    for kind, models in checked_models(module, origin, clients, sections.varying).items():
        exact: list[torch.Tensor] = []
        with suppress(RuntimeError, ValueError):  # a type that is written into the graph does not go with float64
            wide_models = [_widened(model) for model in models]
            with _Rounding() as rounding:
                expected = _plain(wide_module, wide_models, wide_inputs)
            if not rounding.found:
                found = sectioned_logits(wide, wide_models, COEFFICIENTS, wide_inputs, images=images)
                _refuse_differences(found, expected, [], TOLERANCES[torch.float64], kind)
                exact = expected
        found = sectioned_logits(sections, models, COEFFICIENTS, inputs, images=images)
        _refuse_differences(found, _plain(module, models, inputs), exact, TOLERANCES[torch.float32], kind)


def checked_models(
    module: nn.Module, origin: Model, clients: Sequence[Model], varying: frozenset[str]
) -> dict[str, list[Model]]:
    """The global model and the clients, amplified and real."""
    amplified = [amplify(model, module, varying, seed) for seed, model in enumerate([origin, *clients])]
    return {"amplified random clients": amplified, "the round's clients": [origin, *clients]}


def three_of(weights: NDArray[np.float64]) -> list[int]:
    """The clients that are checked: those that count least, most and in between; one may be there twice."""
    order = np.argsort(weights, kind="stable")
    return [int(order[0]), int(order[len(order) // 2]), int(order[-1])]


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
            noise = torch.randn(tensor.shape, generator=generator, dtype=torch.float64).to(tensor)
            positive = bool((tensor > 0).all())
            noisy[name] = tensor * noise.exp() if positive else tensor + noise * tensor.abs().mean().clamp(min=0.01)
        else:
            noisy[name] = tensor
    return noisy


def _widened(tensors: dict[Key, torch.Tensor]) -> dict[Key, torch.Tensor]:
    return {key: t.double() if t.is_floating_point() else t for key, t in tensors.items()}


class _Rounding(TorchFunctionMode):
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
    with _Rounding() as rounding, suppress(Exception):  # noise may be more than a module can bear
        plain_logits(module, model, inputs)
    return [made for made in rounding.found if made.dtype in (torch.float16, torch.bfloat16)]


def _plain(module: nn.Module, models: list[Model], inputs: torch.Tensor) -> list[torch.Tensor]:
    """The plain loop's logits of the checked mixtures of a few models, the global one first."""
    others = dict(enumerate(models[1:]))
    mixtures = [mix(models[0], others, row, 1 - float(row.sum())) for row in COEFFICIENTS]
    return [plain_logits(module, model, inputs) for model in mixtures]


def _refuse_differences(
    found: list[torch.Tensor], expected: list[torch.Tensor], exact: list[torch.Tensor], tolerance: float, kind: str
) -> None:
    """Refuse logits that differ by more than the tolerance, or by more than roundings where the `exact` ones are
    known; what only float32 overflows at is then passed over."""
    for ours, plain, known in zip_longest(found, expected, exact):
        if known is None:
            refuse_difference(ours, plain, tolerance, kind)
        elif bool(plain.isfinite().any()):
            refuse_difference(ours, plain, max(tolerance, ROUNDINGS * _distance(plain, known)), kind)


def sectioned_logits(
    sections: Sections, models: list[Model], coefficients: NDArray[np.float64], inputs: torch.Tensor, *, images: bool
) -> list[torch.Tensor]:
    """The logits of mixtures of a few models, the global one first, by way of the sections."""
    mixed = round_models(models[0], models[1:], sections.varying, images=images)
    (batch,) = sample_batches(
        sections, mixed.origin, inputs, inputs.new_zeros(len(inputs), dtype=torch.int64), len(inputs)
    )
    shared = [] if sections.prefix is None else Prefix(sections, mixed.everybody, images=images).shared(batch)
    prefixes = [combined(coefficients, value.origin, value.differences) for value in shared]
    return [t.clone() for t in logits(sections, mixed.origin, mixed.mixed(coefficients), batch, prefixes)]


def refuse_difference(found: torch.Tensor, expected: torch.Tensor, tolerance: float, kind: str) -> None:
    """Raise if two sets of logits differ by more than the tolerance, as a share of the largest."""
    if not bool(expected.isfinite().any()):
        raise RuntimeError(f"on {kind} the plain loop itself overflows")
    error = _distance(expected, found)
    if not error <= tolerance:
        found_and_expected = f"{error:.1e} of the largest, expected at most {tolerance:.0e}"
        raise Disagrees(f"on {kind} logits differ from the plain loop's by {found_and_expected}")


def _distance(logits: torch.Tensor, others: torch.Tensor) -> float:
    """The largest difference from the logits that are finite, as a share of the largest of them."""
    is_finite = logits.isfinite()
    scale = max(1.0, float(logits[is_finite].abs().max()))
    return float((others - logits)[is_finite].abs().max()) / scale


def rows_are_alone(module: nn.Module, origin: Model, varying: frozenset[str], inputs: torch.Tensor) -> bool:
    """Whether a sample's logits are the same whatever other samples are in its batch.

    Behind a head of zeros nothing shows in the global model, so one with noise as large as its weights is asked too.
    """
    return _are_alone(module, origin, inputs) and _noisy_are_alone(module, origin, varying, inputs)


def _noisy_are_alone(module: nn.Module, origin: Model, varying: frozenset[str], inputs: torch.Tensor) -> bool:
    """In float64, as noise may multiply roundings, or else as the module is; nothing is known if it cannot bear it."""
    noisy = amplify(origin, module, varying, seed=0)
    wide_inputs = inputs.double() if inputs.is_floating_point() else inputs
    try:
        return _are_alone(copied(module).double(), _widened(noisy), wide_inputs)
    except Exception:  # whatever a module raises that is not made for float64
        with suppress(Exception):
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


def check_loop(
    module: nn.Module,
    origin: Model,
    clients: Sequence[Model],
    varying: frozenset[str],
    inputs: torch.Tensor,
    *,
    images: bool,
) -> None:
    """Refuse a loop whose own way of mixing, or order of channels, gives other logits than the plain one."""
    for kind, models in checked_models(module, origin, clients, varying).items():
        mixed = round_models(models[0], models[1:], varying, images=images)
        tensors = mixed.mixed(COEFFICIENTS)
        for i, row in enumerate(COEFFICIENTS):
            model = mix(models[0], dict(enumerate(models[1:])), row, 1 - float(row.sum()))
            own = {**mixed.origin, **{name: t[i] for name, t in tensors.items()}}
            found = plain_logits(module, own, channels_last(inputs) if images else inputs)
            refuse_difference(found, plain_logits(module, model, inputs), TOLERANCES[torch.float32], kind)


def check_head(
    sections: Sections,
    head: Head,
    module: nn.Module,
    origin: Model,
    clients: Sequence[Model],
    inputs: torch.Tensor,
    labels: torch.Tensor,
    weights: Mixtures,
) -> None:
    """Refuse kernels whose losses are not the plain loop's in float64, with and without the global model in them, and
    with the weights of the three clients, given as `weights`; who is in those mixtures does not matter."""
    wide_module = copied(module).double()
    for kind, models in checked_models(module, origin, clients, sections.varying).items():
        mixed = round_models(models[0], models[1:], sections.varying, images=False)
        samples = sample_batches(sections, models[0], inputs, labels, len(labels))
        for mixtures in (*CHECKED_MIXTURES, replace(weights, memberships=CHECKED_COALITIONS)):
            made = head_losses(sections, head, mixed, mixtures, samples, n_threads=1)
            if made.uneven.any():
                raise RuntimeError(f"on {kind} numbers are too uneven for whole units")
            for row, loss in zip((*mixtures.of_clients, np.zeros(3)), made.losses / len(labels), strict=True):
                model = mix(_widened(models[0]), {k: _widened(m) for k, m in enumerate(models[1:])}, row, 1 - row.sum())
                logits = plain_logits(wide_module, model, inputs.double())
                _refuse_loss(float(loss), -quality(logits, labels, CROSS_ENTROPY) / len(labels), logits, kind)


def _refuse_loss(found: float, expected: float, logits: torch.Tensor, kind: str) -> None:
    if not math.isfinite(found):
        raise RuntimeError(f"on {kind} float32 overflows")
    scale = max(1.0, float(logits.abs().max()))
    if not abs(found - expected) <= HEAD_TOLERANCE * scale:
        raise Disagrees(f"on {kind} a kernel's loss is {found:.9g}, expected {expected:.9g} as the plain loop gives")
