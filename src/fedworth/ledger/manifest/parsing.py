"""One line of the manifest, from the bytes on disk: every field is there, of its type, and nothing else is.

A round's line that is spelled as fedworth spells it is taken apart by `quick`; whatever is not, here.
"""

import json
import math
from collections.abc import Callable
from typing import Any, get_type_hints

from fedworth.errors import LedgerError
from fedworth.ledger.manifest.lines import KINDS, OPTIONAL, Line

MOST_SAMPLES = 2**53


def _is_position(value: Any) -> bool:
    return type(value) is int and value >= 0


def _is_text(value: Any) -> bool:
    return type(value) is str


def _is_list_of(types: set[type], most: float) -> Callable[[Any], bool]:
    """Whether a value is a list of these types, numbers from 0 to `most`; without a loop in Python: lines are many."""
    numbers = types != {str}
    return lambda value: (
        type(value) is list
        and (
            not value
            or (types.issuperset(map(type, value)) and (not numbers or (min(value) >= 0 and max(value) <= most)))
        )
    )


Check = tuple[Callable[[Any], bool], str]
CHECKED: dict[Any, Check] = {
    int: (_is_position, "a whole number from 0"),
    str: (_is_text, "text"),
    str | None: (lambda value: value is None or _is_text(value), "text or null"),
    tuple[int, ...]: (_is_list_of({int}, math.inf), "a list of whole numbers from 0"),
    tuple[str, ...]: (_is_list_of({str}, 0), "a list of texts"),
    tuple[float, ...]: (_is_list_of({int, float}, MOST_SAMPLES), "a list of numbers from 0 to 2^53"),
}
CHECKS: dict[str, dict[str, Check]] = {
    kind: {name: CHECKED[hint] for name, hint in get_type_hints(type_).items()} for kind, type_ in KINDS.items()
}


def parsed_line(raw: bytes) -> Line:
    try:
        document = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise LedgerError(f"not readable as JSON ({str(error)[:80]})") from error
    kind = document.pop("kind", None) if isinstance(document, dict) else None
    if not isinstance(kind, str) or kind not in KINDS:
        raise LedgerError("neither a round, a missing round nor the closing line")
    document.pop("chain", None)
    if not CHECKS[kind].keys() - OPTIONAL <= document.keys() <= CHECKS[kind].keys():
        raise LedgerError(f"not the fields of a line of kind {kind!r}")
    for key, value in document.items():
        is_right, expected = CHECKS[kind][key]
        if not is_right(value):
            raise LedgerError(f"{key}: found {type(value).__name__} {str(value)[:40]!r}, expected {expected}")
        if type(value) is list:
            document[key] = tuple(value)
    return KINDS[kind](**document)
