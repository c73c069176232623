"""Dataclasses to JSON and back.

Arrays become lists in which null stands for NaN; everything else is converted by msgspec according to its type.
Unknown keys are ignored, so derived values can be added to a document.
"""

from collections.abc import Callable
from typing import Any, TypeVar, get_args

import msgspec
import numpy as np

from fedworth.errors import ArtefactError, FedworthError

T = TypeVar("T")


def document_of(record: Any, encode: Callable[[Any], Any] | None = None) -> Any:
    """A dataclass as JSON; `encode` converts types that msgspec does not know."""

    def hook(value: Any) -> Any:
        if isinstance(value, np.ndarray):
            return _nullable(value.tolist())
        if isinstance(value, np.generic):
            return value.item()
        if encode is None:
            raise NotImplementedError(f"{type(value).__name__} has no JSON form")
        return encode(value)

    return msgspec.to_builtins(record, enc_hook=hook)


def read_as(
    kind: type[T],
    document: Any,
    what: str,
    error: type[FedworthError] = ArtefactError,
    decode: Callable[[type[Any], Any], Any] | None = None,
) -> T:
    """The dataclass of this kind in a document, or an error that says it is not `what`."""

    def hook(wanted: Any, value: Any) -> Any:
        args = get_args(wanted)
        if args and getattr(wanted, "__origin__", None) is np.ndarray:
            dtype = get_args(args[1])[0]
            return np.array(_with_nan(value) if dtype is np.float64 else value, dtype=dtype)
        if decode is None:
            raise NotImplementedError(f"{wanted} has no JSON form")
        return decode(wanted, value)

    try:
        return msgspec.convert(document, kind, dec_hook=hook)
    except (msgspec.ValidationError, KeyError, TypeError, ValueError) as found:
        raise error(f"not {what}: {found}") from found


def _nullable(values: Any) -> Any:
    if isinstance(values, list):
        return [_nullable(value) for value in values]
    return None if isinstance(values, float) and values != values else values


def _with_nan(values: Any) -> Any:
    if isinstance(values, list):
        return [_with_nan(value) for value in values]
    return float("nan") if values is None else values
