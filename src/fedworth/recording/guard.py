"""Recording must not reach the training: whatever goes wrong in it is logged, and the training goes on."""

import logging
from collections.abc import Callable
from typing import Any, TypeVar

log = logging.getLogger("fedworth")

T = TypeVar("T")


def attempt(action: Callable[..., T], *args: Any) -> T | None:
    """What the action gives, or nothing if it fails."""
    try:
        return action(*args)
    except Exception as error:
        log.error("fedworth: recording failed (%s: %s); training goes on", type(error).__name__, error)
        return None
