"""A strategy that acts on values while it trains: Flower's FedAvg, which stops asking clients that do harm."""

from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg

from fedworth import Task


class Dropping(FedAvg):  # type: ignore[misc]
    """Does not ask clients again whose value is below 0 after `patience` rounds; two are always asked.

    The grid that it is given is the recording, which knows the values after the rounds so far (FedSV, measured on the
    server's own samples) and who is behind a node.
    """

    def __init__(self, task: Task, patience: int = 2, **options: Any) -> None:
        super().__init__(**options)
        self.task, self.patience = task, patience

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> list[Message]:
        messages = list(super().configure_train(server_round, arrays, config, grid))
        values = grid.values(self.task) if server_round > self.patience else {}
        worth = {m.metadata.dst_node_id: values.get(grid.name_of(m.metadata.dst_node_id), 0.0) for m in messages}
        best = sorted(worth, key=lambda node: -worth[node])
        kept = {node for node in best if worth[node] >= 0} | {*best[:2]}
        return [m for m in messages if m.metadata.dst_node_id in kept]
