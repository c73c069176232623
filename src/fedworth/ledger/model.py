"""Checks of a model before it is recorded or averaged: its tensors, its values and its weight.

A coalition's model is a weighted mean of its members' models, summed in float64 and cast to the dtypes of the global
model. So every value must be finite and within the range of its own dtype and of the global tensor's dtype:

    floats      at most sqrt(largest float32 / n_in), where n_in values are summed to one output, so that their
                products and sums stay finite; and at most a quarter of the dtype's largest number
    integers    at most 2^53, up to which float64 holds every integer

Honest training stays far below both. A client's values are also compared with the other clients': values 2^24 times
larger leave nothing of the others in an average of float32. Dtypes may differ from the global model's (servers turn
integer buffers into floats when they average), as long as they are real numbers.

The weight of a client in an average is one of

    samples     a whole number from 1 to 10^12, as the clients of a live federation report it
    weights     a number from 2^-53 to 2^53, if the server weights by something else (`real_weights=True`)
    any         a number from 0 to 2^53, for simulations and for programs that handle their own errors
"""

import math
import numbers
import statistics
from collections.abc import Mapping
from typing import Any, Literal

import torch

from fedworth.errors import ModelError

Model = dict[str, torch.Tensor]
WeightKind = Literal["samples", "weights", "any"]

FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool)
LARGEST_FLOAT32 = torch.finfo(torch.float32).max
LARGEST_EXACT_INTEGER = 2.0**53
DYNAMIC_RANGE = 2.0**24  # of float32's mantissa

WEIGHT_RANGES: dict[WeightKind, tuple[float, float]] = {
    "samples": (1, 10**12),
    "weights": (2.0**-53, 2.0**53),
    "any": (0, 2.0**53),
}

SINGLE_THREAD_SIZE = 16_384  # torch works on tensors up to this size without its thread pool


def check_alike(model: Model, like: Model, where: str) -> float:
    """Refuse a model that cannot be averaged with the global model `like`; returns its largest absolute value."""
    _refuse_bytes(model, where)
    if set(model) != set(like):
        odd = sorted(set(model) ^ set(like), key=str)
        shown = ", ".join(repr(name)[:80] for name in odd[:5]) + (", …" if len(odd) > 5 else "")
        raise ModelError(f"{where}: {len(odd)} tensors are missing or extra ({shown}); expected the global model's")
    return max(_check_tensor(tensor, like[name], f"{where}: tensor {name!r}") for name, tensor in model.items())


def check_finite(model: Model, where: str) -> float:
    """Refuse a model that is empty or has values that cannot be averaged; returns its largest absolute value."""
    if not model:
        raise ModelError(f"{where}: has no tensors")
    largest = check_alike(model, model, where)
    if not any(tensor.is_floating_point() for tensor in model.values()):
        raise ModelError(
            f"{where}: has only tensors of integers, which have no weighted mean; expected some floating point numbers "
            "(send the model before it is quantised)"
        )
    return largest


def out_of_proportion(largest: Mapping[str, float], largest_global: float) -> dict[str, str]:
    """The clients whose values are so large that an average would lose all others, and why."""
    found = {}
    for name, size in largest.items():
        if size > DYNAMIC_RANGE * max(1.0, largest_global):
            others = statistics.median_low([other for key, other in largest.items() if key != name] or [largest_global])
            if size > DYNAMIC_RANGE * others:
                known = f"{largest_global:.3g} in the global model, and the median of the other clients is {others:.3g}"
                found[name] = f"has values up to {size:.3g}; the largest is {known}, so an average would lose them"
    return found


def checked_count(found: Any, kind: WeightKind, where: str) -> float:
    """A client's weight as an int or float of Python; one that is out of range would decide every average."""
    if isinstance(found, bool) or not isinstance(found, numbers.Real):
        raise ModelError(f"{where}: its number of samples is a {type(found).__name__}, expected a number")
    n_samples: Any = found
    least, most = WEIGHT_RANGES[kind]
    is_whole = isinstance(n_samples, numbers.Integral) or float(n_samples).is_integer()
    if not least <= n_samples <= most or (kind == "samples" and not is_whole):
        expected = "a whole number from 1 to 10^12" if kind == "samples" else f"from {least:.3g} to {most:.3g}"
        try:
            shown = f"{float(n_samples):.6g}"
        except OverflowError:
            shown = f"a number of {math.log10(abs(int(n_samples))):.0f} digits"
        raise ModelError(f"{where}: its number of samples is {shown}, expected {expected}")
    return int(n_samples) if is_whole else float(n_samples)


def tensor_bytes(tensor: torch.Tensor) -> memoryview:
    # The bytes are those in memory, so views must be resolved first; numpy has no bfloat16.
    dense = tensor.detach().to("cpu").resolve_conj().resolve_neg().contiguous()
    return dense.reshape(-1).view(torch.uint8).numpy().data


def _refuse_bytes(model: Model, where: str) -> None:
    """Refuse a serialized booster, which XGBoost's strategies send as one row of bytes."""
    if model and all(tensor.dtype == torch.uint8 and tensor.ndim == 1 for tensor in model.values()):
        raise ModelError(
            f"{where}: holds bytes, not weights, as federations of trees (XGBoost) send; trees have no mean, but those "
            "that Flower's FedXgbBagging appends can be valued: record(…, trees=fedworth.Trees(inputs, labels))"
        )


def _check_tensor(tensor: torch.Tensor, like: torch.Tensor, where: str) -> float:
    """Refuse a tensor that cannot be averaged; returns its largest absolute value, 0 for integers."""
    if tensor.is_nested or tensor.is_meta or tensor.layout != torch.strided or tensor.dtype not in FLOATS + INTEGERS:
        kind = "nested" if tensor.is_nested else "without values" if tensor.is_meta else tensor.layout
        raise ModelError(f"{where} is {tensor.dtype}, {kind}; expected dense real numbers")
    if tensor.shape != like.shape:
        raise ModelError(f"{where} has shape {tuple(tensor.shape)}, expected {tuple(like.shape)}")
    if tensor.numel() == 0:
        return 0.0
    # In pieces too small for torch's thread pool, which took fifty times as long beside a busy training.
    bounds = [torch.aminmax(piece) for piece in torch.split(tensor.detach().reshape(-1), SINGLE_THREAD_SIZE)]
    low = float(torch.stack([bound.min for bound in bounds]).min())  # NaN if there is one
    high = float(torch.stack([bound.max for bound in bounds]).max())
    if not (math.isfinite(low) and math.isfinite(high)):
        n_bad = int((~torch.isfinite(tensor)).sum())
        raise ModelError(f"{where} has {n_bad} values that are NaN or infinite")
    least, most = _range(tensor, like.dtype)
    if low < least or high > most:
        found = f"values from {low:.3g} to {high:.3g}"
        raise ModelError(f"{where} has {found}, expected {least:.3g} to {most:.3g}, so that averages stay finite")
    return max(-low, high) if tensor.is_floating_point() else 0.0


def _range(tensor: torch.Tensor, wanted: torch.dtype) -> tuple[float, float]:
    """The smallest and largest value allowed, in the tensor's dtype and in the dtype that averages are cast to."""
    n_in = tensor.numel() / len(tensor) if tensor.ndim > 1 else 1
    least, most = -LARGEST_EXACT_INTEGER, LARGEST_EXACT_INTEGER
    if tensor.is_floating_point() and wanted in FLOATS:
        most = min(math.sqrt(LARGEST_FLOAT32 / n_in), torch.finfo(tensor.dtype).max / 4, torch.finfo(wanted).max / 4)
        least = -most
    elif wanted not in FLOATS and wanted != torch.bool:
        least, most = max(least, torch.iinfo(wanted).min), min(most, torch.iinfo(wanted).max)
    return least, most
