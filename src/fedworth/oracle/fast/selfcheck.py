"""The self-check: a way of evaluating is compared with the plain loop before it is used.

In: sections, a round's models and weights. Out: nothing, or `Disagrees`. Real clients differ so little that a wrong cut
can pass on them (with a rule that calls relu affine, errors of a twentieth of the spread went unseen), so logits are
compared first on random clients whose differences are as large as the weights, then on the round's own clients. In
float64 only a wrong cut can differ by more than roundings. Some kernels are there for float32 alone, so what is used is
compared as well, with the tolerance that float32 takes. For a module that insists on float32 within, and for large
models, that is all.
"""

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import zip_longest

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from fedworth.ledger.ledger import Model
from fedworth.oracle.fast.affine import Prefix, logits, quality, sample_batches
from fedworth.oracle.fast.heads import Head, head_losses
from fedworth.oracle.fast.mixing import RoundModels, channels_last, combined, round_models
from fedworth.oracle.fast.sections import Sections
from fedworth.oracle.fast.traits import Rounding, all_widened, amplify, can_be_widened, plain_logits
from fedworth.oracle.oracle import mix
from fedworth.oracle.weighting import Mixtures
from fedworth.task.losses import CROSS_ENTROPY
from fedworth.task.modules import copied

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
    in_full = can_be_widened(origin, sections.varying)
    for kind, models in checked_models(module, origin, clients, sections.varying, in_full=in_full).items():
        exact = _exact(sections, module, models, inputs, kind, images=images) if in_full else []
        found = sectioned_logits(sections, models, COEFFICIENTS, inputs, images=images)
        _refuse_differences(found, _plain(module, models, inputs), exact, TOLERANCES[torch.float32], kind)


def _exact(
    sections: Sections, module: nn.Module, models: list[Model], inputs: torch.Tensor, kind: str, *, images: bool
) -> list[torch.Tensor]:
    """The plain loop's logits in float64, if those by way of the sections are the same; nothing if they have none."""
    wide = replace(sections, exported=replace(sections.exported, constants=all_widened(sections.exported.constants)))
    wide_inputs = inputs.double() if inputs.is_floating_point() else inputs
    with suppress(RuntimeError, ValueError):  # a type that is written into the graph does not go with float64
        wide_models = [all_widened(model) for model in models]
        with Rounding() as rounding:
            expected = _plain(copied(module).double(), wide_models, wide_inputs)
        if not rounding.found:
            found = sectioned_logits(wide, wide_models, COEFFICIENTS, wide_inputs, images=images)
            _refuse_differences(found, expected, [], TOLERANCES[torch.float64], kind)
            return expected
    return []


def checked_models(
    module: nn.Module, origin: Model, clients: Sequence[Model], varying: frozenset[str], *, in_full: bool = True
) -> dict[str, list[Model]]:
    """The global model and the clients, amplified, and real if in full."""
    amplified = [amplify(model, module, varying, seed) for seed, model in enumerate([origin, *clients])]
    real = {"the round's clients": [origin, *clients]} if in_full else {}
    return {"amplified random clients": amplified, **real}


def three_of(weights: NDArray[np.float64]) -> list[int]:
    """The clients that are checked: those that count least, most and in between; one may be there twice."""
    order = np.argsort(weights, kind="stable")
    return [int(order[0]), int(order[len(order) // 2]), int(order[-1])]


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
    """Refuse kernels whose losses are not the plain loop's, with the weights of the three clients, given as `weights`;
    who is in those mixtures does not matter. In full: in float64, and with and without the global model in them."""
    in_full, own = can_be_widened(origin, sections.varying), replace(weights, memberships=CHECKED_COALITIONS)
    judge = copied(module).double() if in_full else module
    for kind, models in checked_models(module, origin, clients, sections.varying, in_full=in_full).items():
        mixed = RoundModels(models[0], tuple(models[1:]), {}, (), images=False)
        samples = sample_batches(sections, models[0], inputs, labels, len(labels))
        judged = [all_widened(model) for model in models] if in_full else models
        for mixtures in (*CHECKED_MIXTURES, own) if in_full else (own,):
            made = head_losses(sections, head, mixed, mixtures, samples, n_threads=1)
            if made.uneven.any():
                raise RuntimeError(f"on {kind} numbers are too uneven for whole units")
            for row, loss in zip((*mixtures.of_clients, np.zeros(3)), made.losses / len(labels), strict=True):
                model = mix(judged[0], dict(enumerate(judged[1:])), row, 1 - row.sum())
                logits = plain_logits(judge, model, inputs.double() if in_full else inputs)
                _refuse_loss(float(loss), -quality(logits, labels, CROSS_ENTROPY) / len(labels), logits, kind)


def _refuse_loss(found: float, expected: float, logits: torch.Tensor, kind: str) -> None:
    if not math.isfinite(found):
        raise RuntimeError(f"on {kind} float32 overflows")
    scale = max(1.0, float(logits.abs().max()))
    if not abs(found - expected) <= HEAD_TOLERANCE * scale:
        raise Disagrees(f"on {kind} a kernel's loss is {found:.9g}, expected {expected:.9g} as the plain loop gives")
