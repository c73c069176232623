"""Strategies that act on values while they train. The grid that they are given is the recording: it values, and weighs.

Each is Flower's FedAvg and a few lines. Values are FedSV after the rounds so far, measured on the server's own samples.
"""

import random
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg

from fedworth import Task


class Weighing(FedAvg):  # type: ignore[misc]
    """Weighs clients by what they have been worth so far; who has done harm counts a hundredth of the best."""

    def __init__(self, task: Task, **options: Any) -> None:
        super().__init__(**options)
        self.task = task

    def configure_train(self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid) -> Any:
        values = grid.values(self.task) if server_round > 1 else {}
        best = max(values.values(), default=0.0)
        if best > 0:
            grid.weigh({name: max(worth, best / 100) for name, worth in values.items()})
        return super().configure_train(server_round, arrays, config, grid)


class Dropping(FedAvg):  # type: ignore[misc]
    """Does not ask clients again whose value is below 0 after `patience` rounds; two are always asked."""

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


class Choosing(FedAvg):  # type: ignore[misc]
    """Asks the half that has been worth most, and one of the others by lot, so that nobody is forgotten."""

    def __init__(self, task: Task, seed: int = 0, **options: Any) -> None:
        super().__init__(**options)
        self.task, self.lot = task, random.Random(seed)

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> list[Message]:
        messages = list(super().configure_train(server_round, arrays, config, grid))
        values = grid.values(self.task) if server_round > 1 else {}
        if not values:
            return messages
        messages.sort(key=lambda m: -values.get(grid.name_of(m.metadata.dst_node_id), 0.0))
        half = (len(messages) + 1) // 2
        return [*messages[:half], self.lot.choice(messages[half:])]
