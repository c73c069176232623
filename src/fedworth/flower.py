"""For users of Flower: `record` a grid, or a strategy of the old API; put `identity` into the client's mods."""

from functools import wraps
from typing import Any

try:
    from fedworth.federation.live import flower as live
    from fedworth.federation.live.flower_identity import identity
except ImportError as error:  # pragma: no cover - without the extra
    raise ImportError(f"{error}; install Flower beside fedworth: pip install 'fedworth[flower]'") from error

from fedworth.pipeline.acting import values_so_far

__all__ = ["identity", "record"]


@wraps(live.record)
def record(recorded: Any, **options: Any) -> Any:
    """As `federation.live.flower.record`; the recording can value its rounds while it trains."""
    return live.record(recorded, **{"valued_by": values_so_far, **options})
