"""Recording for users of Flower: `record` wraps a grid or an old strategy, `identity` is the mod for clients."""

from functools import wraps
from typing import Any

try:
    from fedworth.recording import flower as live
    from fedworth.recording.flower_identity import identity
except ImportError as error:  # pragma: no cover - without the extra
    raise ImportError(f"{error}; install Flower beside fedworth: pip install 'fedworth[flower]'") from error

from fedworth.pipeline.run import live_values

__all__ = ["identity", "record"]


@wraps(live.record)
def record(recorded: Any, **options: Any) -> Any:
    """A grid, or a strategy of the old API, that does what `recorded` does and records every round into a ledger.

    The training stays the same to the last bit, unless `hear_everyone` is used.

    Args:
        recorded: Flower's grid, or a strategy of the old API.
        **options: `ledger` is the folder to write. `strategy` tells the server's rule and the metric that it weights
            by; otherwise `rule`, `weighted_by`, `aggregation` and `real_weights` do. `arrays` names the record that
            holds the model, `clients` the expected clients. `hear_everyone=N` waits for N nodes and asks all of them in
            the first round, which changes the training. `keys_last=True` if nodes are authenticated, `resume=True`
            after a stop. `track="mlflow"` and `task` show each round's values in a tracker, as in `record_into`.
            `trees=fedworth.Trees(…)` if XGBoost's trees are appended, `vertical=fedworth.Vertical(…)` with the server's
            own head if clients send embeddings. Old API: `names` of the tensors, and `n_rounds`.

    Returns:
        What to give the strategy in place of the grid. Call its `close` with the final model.

    Example:
        grid = fedworth.flower.record(grid, ledger="my.ledger", strategy=strategy)
    """
    return live.record(recorded, **{"valued_by": live_values, **options})
