"""Record a Flower federation as it happens, whatever its strategy or training loop.

    Message API   strategy.start(grid=fedworth.flower.record(grid, ledger="my.ledger"), …)
    old API       strategy = fedworth.flower.record(strategy, ledger="my.ledger"); start_server(strategy=strategy, …)
    client        app = ClientApp(mods=[fedworth.flower.identity])

`record` wraps the grid, or a strategy of the old API; the wrapper passes everything on and records it. Before 1.21
Flower has only the old API, which still works in the newest version.
"""

import importlib
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from fedworth.errors import UsageError
from fedworth.ledger.ledger import Ledger
from fedworth.names import Aggregation
from fedworth.recording.flower_identity import SAMPLES
from fedworth.recording.flower_strategy import RecordingStrategy
from fedworth.recording.identity import NodeNames, owners_of
from fedworth.recording.recorder import record_into
from fedworth.recording.trees import Trees
from fedworth.task.rules import (
    Adaptive,
    AdaptiveKind,
    Krum,
    LinearRule,
    Median,
    Private,
    Rule,
    ServerMomentum,
    Sum,
    TrimmedMean,
    WeightedMean,
)
from fedworth.task.task import Task
from fedworth.task.vertical import Vertical

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
    track: Any = None,
    task: Task | str | None = None,
    trees: Trees | None = None,
    vertical: Vertical | None = None,
) -> Any:
    """A grid, or a strategy of the old API, that does what `recorded` does and records every round into a ledger.

    The training stays the same to the last bit, unless `hear_everyone` is used.

    Args:
        recorded: Flower's grid, or a strategy of the old API.
        ledger: The folder to write.
        clients: The expected clients; the report names those that never took part.
        strategy: Its rule goes into the ledger, and the metric that it weights by is read; it is not changed.
        rule: The server's rule, if the strategy does not tell it.
        aggregation: `uniform` if the strategy weights all clients equally.
        weighted_by: The metric that the strategy weights by, if the strategy does not tell it.
        real_weights: Weights need not be whole numbers.
        arrays: The record that holds the model, if there are several.
        names: Old API: names of the tensors, as in `module.state_dict()`.
        n_rounds: Old API: close the ledger after this many rounds, if nobody can call `close()`.
        hear_everyone: The first round waits for this many nodes and asks all of them; this changes the training.
        wait_seconds: How long it waits for them.
        keys_last: The SuperLink authenticates its nodes, so a name stays with the key it was first heard from.
        resume: Continue the ledger of a stopped server.
        track: Where each round's values are shown, as in `record_into`.
        task: What values are measured on then.
        trees: The test set, if the federation appends XGBoost's trees (FedXgbBagging).
        vertical: The server's side of a vertical federation, with the head that it trains; replies have an ArrayRecord
            `embeddings` (or the one that `arrays` names) with `embedding`, and `samples` if it is a batch.

    Returns:
        What to give the strategy in place of the grid. Call its `close` with the final model.

    Example:
        grid = fedworth.flower.record(grid, ledger="my.ledger", strategy=strategy)
    """
    is_grid = _is_grid(recorded)
    if type(strategy).__name__ == "FedXgbCyclic":
        raise UsageError(
            "record: FedXgbCyclic passes one model on from client to client, so no coalition of a round can be formed "
            "and the clients cannot be valued; use FedXgbBagging"
        )
    if vertical is not None and (not is_grid or trees is not None or hear_everyone is not None):
        raise UsageError(
            "record: a vertical federation is recorded at the grid, without trees and hear_everyone: "
            "record(grid, ledger=…, vertical=…)"
        )
    if trees is not None and not is_grid:
        raise UsageError("record: trees are recorded at the grid: record(grid, ledger=…, trees=…)")
    seen = recorded if strategy is None and not is_grid else strategy
    by = weighted_by or strategy_weight_metric(seen) or SAMPLES
    recorder = record_into(
        ledger,
        clients,
        aggregation=aggregation,
        rule=Sum() if trees is not None else rule if rule is not None or seen is None else strategy_rule(seen),
        vertical=vertical,
        real_weights=real_weights or by != SAMPLES,
        settings={"source": "flower"},
        resume=resume,
        track=track,
        task=task,
    )
    nodes = NodeNames(owners_of(Ledger.open(recorder.writer.folder)), keys_last)
    common = (recorded, recorder, nodes, hear_everyone, wait_seconds)
    if not is_grid:
        return RecordingStrategy(*common, names=tuple(names), n_rounds=n_rounds)
    from fedworth.recording.flower_grid import RecordingGrid

    return RecordingGrid(*common, weighted_by=by, arrays=arrays, trees=trees, vertical=vertical)


def _is_grid(recorded: Any) -> bool:
    """Whether this is a grid; if not, it is a strategy of the old API. Any other kind would leave an empty ledger."""
    if all(callable(getattr(recorded, name, None)) for name in GRID):
        try:
            importlib.import_module("fedworth.recording.flower_grid")
        except ImportError as error:
            raise UsageError(
                f"record: this Flower has no grid ({error}); use 1.22 or later, or record the strategy"
            ) from error
        return True
    if all(callable(getattr(recorded, name, None)) for name in STRATEGY):
        return False
    found = f"found a {type(recorded).__name__}"
    if callable(getattr(recorded, "configure_train", None)):
        raise UsageError(
            f"record: {found}, a strategy of the Message API; give the grid: record(grid, strategy=strategy)"
        )
    raise UsageError(f"record: {found}, expected Flower's grid, or a strategy with configure_fit and aggregate_fit")


def strategy_rule(strategy: Any) -> Rule | None:
    """The rule of a strategy of either API, None if its class is not known.

    A derived class counts as its base class unless it aggregates in its own way. The rule is compared with the recorded
    models in any case.
    """
    make = MAKERS.get(_aggregating_class(strategy))
    return None if make is None else make(strategy)


def strategy_weight_metric(strategy: Any) -> str | None:
    """The metric that a strategy of the Message API weights by, None if it does not tell."""
    inner = getattr(strategy, "strategy", strategy)
    key = getattr(inner, "weighted_by_key", None)
    return key if isinstance(key, str) else None


def _aggregating_class(strategy: Any) -> str:
    """The name of the first class in the strategy's MRO that aggregates; empty if it is not one of Flower's."""
    for found in type(strategy).__mro__:
        if {"aggregate_train", "aggregate_fit"} & set(vars(found)):
            return found.__name__ if found.__module__.startswith("flwr.") else ""
    return ""


def _adaptive(kind: AdaptiveKind, strategy: Any) -> Rule:
    return Adaptive(kind, strategy.eta, strategy.beta_1, strategy.beta_2, strategy.tau)


def _krum(strategy: Any) -> Rule:
    """Krum of either API, whose attributes have different names."""
    if hasattr(strategy, "num_malicious_nodes"):
        return Krum(strategy.num_malicious_nodes, strategy.num_nodes_to_select)
    return Krum(strategy.num_malicious_clients, max(1, strategy.num_clients_to_keep))


def _private(strategy: Any, *, is_clipping: bool) -> Rule | None:
    inner = strategy_rule(strategy.strategy)
    noise = strategy.noise_multiplier * strategy.clipping_norm / strategy.num_sampled_clients
    return (
        Private(inner, strategy.clipping_norm if is_clipping else None, noise)
        if isinstance(inner, LinearRule)
        else None
    )


MAKERS: dict[str, Callable[[Any], Rule | None]] = {
    "FedAvg": lambda _: WeightedMean(),
    "FedAvgM": lambda s: ServerMomentum(s.server_learning_rate, s.server_momentum),
    "FedAdam": partial(_adaptive, "adam"),
    "FedYogi": partial(_adaptive, "yogi"),
    "FedAdagrad": partial(_adaptive, "adagrad"),
    "FedMedian": lambda _: Median(),
    "FedTrimmedAvg": lambda s: TrimmedMean(s.beta),
    "Krum": _krum,
    "MultiKrum": _krum,
    "DifferentialPrivacyServerSideFixedClipping": partial(_private, is_clipping=True),
    "DifferentialPrivacyClientSideFixedClipping": partial(_private, is_clipping=False),
}
