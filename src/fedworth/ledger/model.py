"""What a model must be before it is recorded or averaged: the right tensors, and numbers that stay numbers.

In: a model as a client sent it, and the global model it started from. Out: the largest value in it, or an error.

A coalition's model is a mean of its members' models, summed in float64 and cast to the global model's dtypes. So every
value must be finite, and in the range of its own dtype and of the global tensor's:

    floats      at most √(largest float32 / n_in), n_in numbers being summed to one output: their products, summed, are
                still numbers; and at most a quarter of the largest number of the dtype
    integers    at most 2^53 in size, up to which float64 has every integer

and no honest training comes near either. One client is also held against the others: values more than 2^24 times as
large as the global model's and as the middle client's leave nothing of the others in an average of float32.
Dtypes may differ from the global model's (servers turn integer buffers into floats when they average), as long as they
are real numbers.
"""

import math
import statistics
from collections.abc import Mapping

import torch

from fedworth.errors import ModelError

Model = dict[str, torch.Tensor]

FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool)
UNSHARED = 16_384

LARGEST = torch.finfo(torch.float32).max
WHOLE = 2.0**53
BEYOND = 2.0**24


def check_alike(model: Model, like: Model, where: str) -> float:
    """Refuse a model whose tensors are not those of `like`, or whose values cannot be averaged with it; return its
    largest value."""
    _refuse_bytes(model, where)
    if set(model) != set(like):
        odd = sorted(set(model) ^ set(like), key=str)
        shown = ", ".join(repr(name)[:80] for name in odd[:5]) + (", …" if len(odd) > 5 else "")
        raise ModelError(f"{where}: {len(odd)} tensors are missing or extra ({shown}); expected the global model's")
    return max(_check_one(tensor, like[name], f"{where}: tensor {name!r}") for name, tensor in model.items())


def check_finite(model: Model, where: str) -> float:
    """Refuse a model that is empty, not of real numbers, or with a NaN, an infinity or an absurd number in it; return
    its largest value."""
    if not model:
        raise ModelError(f"{where}: no tensors in it")
    _refuse_bytes(model, where)
    return max(_check_one(tensor, tensor, f"{where}: tensor {name!r}") for name, tensor in model.items())


def _refuse_bytes(model: Model, where: str) -> None:
    """Refuse what is no numbers but a file: XGBoost's strategies send a booster as one row of bytes."""
    if model and all(tensor.dtype == torch.uint8 and tensor.ndim == 1 for tensor in model.values()):
        raise ModelError(
            f"{where}: holds bytes, not weights, as federations of trees (XGBoost) send; a coalition's model is the "
            "mean of its members' models, and the mean of two trees is no tree, so they cannot be valued"
        )


def beyond_the_others(largest: Mapping[str, float], of_global: float) -> dict[str, str]:
    """Which models have values out of all proportion to the global model's and the other clients', and why."""
    found = {}
    for name, size in largest.items():
        if size > BEYOND * max(1.0, of_global):
            others = statistics.median_low([of for other, of in largest.items() if other != name] or [of_global])
            if size > BEYOND * others:
                known = f"up to {of_global:.3g} in the global model and {others:.3g} in the middle one of the others"
                found[name] = f"has values up to {size:.3g} in size, and they are {known}: no average has room for both"
    return found


def _check_one(tensor: torch.Tensor, like: torch.Tensor, where: str) -> float:
    """The largest value of a tensor that is fit to be averaged; 0 of integers, which are never out of proportion."""
    if tensor.is_nested or tensor.is_meta or tensor.layout != torch.strided or tensor.dtype not in FLOATS + INTEGERS:
        kind = "nested" if tensor.is_nested else "without values" if tensor.is_meta else tensor.layout
        raise ModelError(f"{where} is {tensor.dtype}, {kind}; expected dense real numbers")
    if tensor.shape != like.shape:
        raise ModelError(f"{where} has shape {tuple(tensor.shape)}, expected {tuple(like.shape)}")
    if tensor.numel() == 0:
        return 0.0
    low, high = _extremes(tensor.detach())
    if not (math.isfinite(low) and math.isfinite(high)):
        n_bad = int((~torch.isfinite(tensor)).sum())
        raise ModelError(f"{where} has {n_bad} values that are NaN or infinite")
    least, most = _range(tensor, like.dtype)
    if low < least or high > most:
        found = f"values from {low:.3g} to {high:.3g}"
        raise ModelError(f"{where} has {found}, expected from {least:.3g} to {most:.3g}, so that averages are numbers")
    return max(-low, high) if tensor.is_floating_point() else 0.0


def _range(tensor: torch.Tensor, wanted: torch.dtype) -> tuple[float, float]:
    """The least and the most that a value may be, in the tensor's dtype and in the one that averages are cast to."""
    n_in = tensor.numel() / len(tensor) if tensor.ndim > 1 else 1
    least, most = -WHOLE, WHOLE
    if tensor.is_floating_point() and wanted in FLOATS:
        most = min(math.sqrt(LARGEST / n_in), torch.finfo(tensor.dtype).max / 4, torch.finfo(wanted).max / 4)
        least = -most
    elif wanted not in FLOATS and wanted != torch.bool:
        least, most = max(least, torch.iinfo(wanted).min), min(most, torch.iinfo(wanted).max)
    return least, most


def _extremes(tensor: torch.Tensor) -> tuple[float, float]:
    """The least and the greatest value, NaN if there is one; without a copy, and in pieces that torch does not share
    among threads: beside a busy training its pool took fifty times as long."""
    bounds = [torch.aminmax(piece) for piece in torch.split(tensor.reshape(-1), UNSHARED)]
    lows, highs = torch.stack([bound.min for bound in bounds]), torch.stack([bound.max for bound in bounds])
    return float(lows.min()), float(highs.max())
