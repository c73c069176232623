"""How large a simulated federation may be, and of what kind its settings are.

A number beyond these is a slip of the pen, or was put into a ledger's header by somebody who wants its reader to hang.
"""

import math
from types import UnionType
from typing import Any, Literal, get_args, get_origin

MOST_CLIENTS = 100_000
MOST_ROUNDS = 1_000_000
MOST_STEPS = 1_000_000  # of one client in one round, or epochs
MOST_LAYERS, MOST_WIDTH = 100, 100_000


def fits(value: Any, hint: Any) -> bool:
    """Whether a value from a file is of the kind that a type hint asks for; numbers are finite, lists are tuples."""
    if get_origin(hint) is Literal:
        return value in get_args(hint)
    if get_origin(hint) is UnionType:
        return any(fits(value, each) for each in get_args(hint))
    if get_origin(hint) is tuple:
        kinds = get_args(hint)
        if not isinstance(value, tuple) or (Ellipsis not in kinds and len(value) != len(kinds)):
            return False
        return all(fits(item, kinds[0]) for item in value)
    if hint is float:
        return type(value) in (int, float) and math.isfinite(value)
    return type(value) is hint
