"""Record a Flower federation as it happens: any strategy, any hand-written loop, unchanged.

    Message API   strategy.start(grid=fedworth.flower.record(grid, ledger="my.ledger"), …)
    old API       strategy = fedworth.flower.record(strategy, ledger="my.ledger"); start_server(strategy=strategy, …)
    client        app = ClientApp(mods=[fedworth.flower.identity])

In: the grid, or a strategy of the old API. Out: the same thing, which records what passes through it. Flower's old API
is all that there is before 1.21, and still works in the newest.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from fedworth.errors import UsageError
from fedworth.ledger.ledger import open_ledger
from fedworth.names import Aggregation
from fedworth.recording.claims import NodeNames, owners_of
from fedworth.recording.flower_messages import SAMPLES
from fedworth.recording.flower_strategy import RecordingStrategy
from fedworth.recording.recorder import Valuer, record_into
from fedworth.recording.strategies import rule_seen, weights_seen
from fedworth.task.rules import Rule

GRID, STRATEGY = ("send_and_receive", "push_messages"), ("configure_fit", "aggregate_fit")


def record(
    recorded: Any,
    *,
    ledger: Path | str,
    clients: Sequence[str] = (),
    strategy: Any = None,
    rule: Rule | None = None,
    aggregation: Aggregation = "samples",
    weighted_by: str | None = None,
    real_weights: bool = False,
    arrays: str | None = None,
    names: Sequence[str] = (),
    n_rounds: int | None = None,
    hear_everyone: int | None = None,
    wait_seconds: float = 600.0,
    keys_last: bool = False,
    resume: bool = False,
    valued_by: Valuer | None = None,
) -> Any:
    """A grid, or a strategy of the old API, that does what `recorded` does and records the rounds into `ledger`.

    `strategy` is looked at, and not changed: its rule goes into the ledger, and the metric that it weights by is read.
    `rule` and `weighted_by` say these where the strategy does not (`aggregation="uniform"`: it weights by none); with
    `real_weights` weights need not be whole numbers. `arrays` names the record that holds the model, if there are
    several. Of the old API: `names` are the tensors' names, as in `module.state_dict()`; after `n_rounds` rounds the
    ledger is closed, where nobody can call `close()`.
    With `hear_everyone=N` the first round waits for N nodes and asks all of them: that changes the training. `clients`
    names those who are expected: who is never heard will be named as such. `keys_last=True` if the SuperLink
    authenticates its nodes: a name then stays with the key that it was first heard from. `resume` goes on with the
    ledger of a server that was stopped.
    """
    make = _maker(recorded)
    looked_at = recorded if strategy is None and make is RecordingStrategy else strategy
    by = weighted_by or weights_seen(looked_at) or SAMPLES
    recorder = record_into(
        ledger,
        clients,
        aggregation=aggregation,
        rule=rule if rule is not None or looked_at is None else rule_seen(looked_at),
        real_weights=real_weights or by != SAMPLES,
        settings={"source": "flower"},
        resume=resume,
    )
    recorder.valued_by = valued_by
    nodes = NodeNames(owners_of(open_ledger(recorder.writer.folder)), keys_last)
    own = (tuple(names), n_rounds) if make is RecordingStrategy else (by, arrays)
    return make(recorded, recorder, *own, hear_everyone=hear_everyone, wait_seconds=wait_seconds, nodes=nodes)


def _maker(recorded: Any) -> Callable[..., Any]:
    """What records this kind of object; an object of another kind would leave an empty ledger."""
    if all(callable(getattr(recorded, name, None)) for name in GRID):
        return _grid_maker()
    if all(callable(getattr(recorded, name, None)) for name in STRATEGY):
        return RecordingStrategy
    found = f"found a {type(recorded).__name__}"
    if callable(getattr(recorded, "configure_train", None)):
        raise UsageError(
            f"record: {found}, a strategy of the Message API; give the grid: record(grid, strategy=strategy)"
        )
    raise UsageError(f"record: {found}, expected Flower's grid, or a strategy with configure_fit and aggregate_fit")


def _grid_maker() -> Callable[..., Any]:
    try:
        from fedworth.recording.flower_grid import RecordingGrid
    except ImportError as error:
        raise UsageError(
            f"record: this Flower has no messages to listen to ({error}); from 1.22 on it does; or record the strategy"
        ) from error
    return RecordingGrid
