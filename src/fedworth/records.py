"""Dataclasses to JSON and back.

Arrays become lists in which null stands for NaN; everything else is converted by msgspec according to its type.
Unknown keys are ignored, so derived values can be added to a document.
"""

from typing import Any, TypeVar, get_args, get_origin

import msgspec
import numpy as np

from fedworth.errors import ArtefactError, FedworthError

T = TypeVar("T")


def document_of(record: Any) -> Any:
    """A dataclass as JSON."""
    return _plain(msgspec.to_builtins(record, enc_hook=_encode))


def read_as(kind: type[T], document: Any, what: str, error: type[FedworthError] = ArtefactError) -> T:
    """The dataclass of this kind in a document, or an error that says it is not `what`."""
    try:
        return msgspec.convert(document, kind, dec_hook=_decode)
    except (msgspec.ValidationError, NotImplementedError, TypeError, ValueError) as found:
        raise error(f"not {what}: {found}") from found


def _encode(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, np.generic):
        return value.item()
    raise NotImplementedError(f"{type(value).__name__} has no JSON form")


def _decode(wanted: Any, value: Any) -> Any:
    if get_origin(wanted) is not np.ndarray:
        raise NotImplementedError(f"{wanted} has no JSON form")
    dtype = get_args(get_args(wanted)[1])[0]
    return np.array(_with_nan(value) if dtype is np.float64 else value, dtype=dtype)


def _plain(value: Any) -> Any:
    """Lists for tuples, and None for NaN."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return None if isinstance(value, float) and value != value else value


def _with_nan(values: Any) -> Any:
    if isinstance(values, list):
        return [_with_nan(value) for value in values]
    return float("nan") if values is None else values
