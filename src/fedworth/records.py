"""Dataclasses to JSON and back, and how two documents of settings differ.

Arrays become lists in which null stands for NaN; everything else is converted by msgspec according to its type.
Unknown keys are ignored, so derived values can be added to a document.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar, get_args, get_origin

import msgspec
import numpy as np

from fedworth.errors import ArtefactError, FedworthError
from fedworth.storage import json_bytes

T = TypeVar("T")

MOST_SHOWN = 60
"""Characters of a setting in a message."""


def document_of(record: Any) -> Any:
    """A dataclass as JSON."""
    return _plain(msgspec.to_builtins(record, enc_hook=_encode))


def read_as(kind: type[T], document: Any, what: str, error: type[FedworthError] = ArtefactError) -> T:
    """The dataclass of this kind in a document, or an error that says it is not `what`."""
    try:
        return msgspec.convert(document, kind, dec_hook=_decode)
    except (msgspec.ValidationError, NotImplementedError, TypeError, ValueError) as found:
        raise error(f"not {what}: {found}") from found


def differing(found: Mapping[str, Any], expected: Mapping[str, Any]) -> str:
    """The settings that differ, as `n_rounds 8 instead of 10; …`; empty if all are the same as JSON."""
    return "; ".join(dict.fromkeys(_differing(*(json.loads(json_bytes(one)) for one in (found, expected)))))


def _differing(found: Mapping[str, Any], expected: Mapping[str, Any]) -> Iterator[str]:
    for name in {**expected, **found}:
        one, other = found.get(name), expected.get(name)
        if isinstance(one, dict) and isinstance(other, dict):
            yield from _differing(one, other)
        elif one != other:
            texts = [value if isinstance(value, str) else json.dumps(value) for value in (one, other)]
            yield " instead of ".join([f"{name} {texts[0][:MOST_SHOWN]}", texts[1][:MOST_SHOWN]])


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
