"""What a model must be before it is recorded or averaged: the right tensors, and numbers that stay numbers.

A coalition's model is a mean of its members' models, cast to the global model's dtypes. So every value must be
finite in those, and no larger than √(largest float32) ≈ 1.8e19: two such values multiplied still give a
number, and no honest training comes near it. Dtypes may differ from the global model's (servers turn integer
buffers into floats when they average), as long as they are real numbers.
"""

import math

import torch

from fedworth.errors import ModelError

Model = dict[str, torch.Tensor]

FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool)
UNSHARED = 16_384

LARGEST = math.sqrt(torch.finfo(torch.float32).max)


def check_alike(model: Model, like: Model, where: str) -> None:
    """Refuse a model whose tensors are not those of `like`, or whose values cannot be averaged with it."""
    if set(model) != set(like):
        odd = sorted(set(model) ^ set(like), key=str)
        shown = ", ".join(repr(name)[:80] for name in odd[:5]) + (", …" if len(odd) > 5 else "")
        raise ModelError(f"{where}: {len(odd)} tensors are missing or extra ({shown}); expected the global model's")
    for name, tensor in model.items():
        if tensor.shape != like[name].shape:
            found, expected = tuple(tensor.shape), tuple(like[name].shape)
            raise ModelError(f"{where}: tensor {name!r} has shape {found}, expected {expected}")
        _check_values(tensor, like[name].dtype, f"{where}: tensor {name!r}")


def check_finite(model: Model, where: str) -> None:
    """Refuse a model that is empty, not of real numbers, or with a NaN, an infinity or an absurd number in it."""
    if not model:
        raise ModelError(f"{where}: no tensors in it")
    for name, tensor in model.items():
        _check_values(tensor, tensor.dtype, f"{where}: tensor {name!r}")


def _check_values(tensor: torch.Tensor, wanted: torch.dtype, where: str) -> None:
    if tensor.dtype not in FLOATS + INTEGERS or tensor.layout != torch.strided:
        raise ModelError(f"{where} is {tensor.dtype}, {tensor.layout}; expected dense real numbers")
    if not tensor.is_floating_point() or tensor.numel() == 0:
        return
    limit = min(LARGEST, torch.finfo(wanted).max if wanted in FLOATS else LARGEST)
    low, high = _extremes(tensor.detach())
    if not (math.isfinite(low) and math.isfinite(high)):
        n_bad = int((~torch.isfinite(tensor)).sum())
        raise ModelError(f"{where} has {n_bad} values that are NaN or infinite")
    if max(-low, high) > limit:
        raise ModelError(f"{where} has values up to {max(-low, high):.3g} in size, expected at most {limit:.3g}")


def _extremes(tensor: torch.Tensor) -> tuple[float, float]:
    """The least and the greatest value, NaN if there is one; without a copy, and in pieces that torch does not share
    among threads: beside a busy training its pool took fifty times as long."""
    bounds = [torch.aminmax(piece) for piece in torch.split(tensor.reshape(-1), UNSHARED)]
    lows, highs = torch.stack([bound.min for bound in bounds]), torch.stack([bound.max for bound in bounds])
    return float(lows.min()), float(highs.max())
