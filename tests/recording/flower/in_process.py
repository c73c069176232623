"""A Flower grid that calls the client app in this process: no ray, no SuperLink, no network, no waiting."""

import itertools
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from flwr.app import Context, Error, Message, RecordDict
from flwr.serverapp import Grid

try:
    from flwr.supercore.task_identity import TaskIdentity
except ImportError:  # Flower of before 1.30 does not ask

    class TaskIdentity:  # type: ignore[no-redef]
        """Nothing to say."""


@dataclass
class InProcessGrid(Grid):  # type: ignore[misc]
    """Nodes with partitions 0…n−1 behind ids 1000…; `silent` nodes never answer, late ones connect when looked for."""

    app: Any
    n_nodes: int
    run_config: dict[str, Any] = field(default_factory=dict)
    first_id: int = 1000
    silent: set[int] = field(default_factory=set)
    late: set[int] = field(default_factory=set)
    nameless: bool = False  # nodes that were started without a node config
    clients: dict[int, str] = field(default_factory=dict)  # by partition: the name in its node config
    keys: dict[int, bytes] = field(default_factory=dict)  # by partition: the public key of its node
    replies: dict[str, Any] = field(default_factory=dict)
    counter: Any = field(default_factory=itertools.count)

    def __post_init__(self) -> None:
        TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, 1

    def set_run(self, run: Any) -> None:
        raise NotImplementedError

    @property
    def run(self) -> Any:
        raise NotImplementedError

    def create_message(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError

    def get_node_ids(self) -> list[int]:
        return [self.first_id + k for k in range(self.n_nodes) if k not in self.late]

    def get_nodes(self) -> list[Any]:
        """As Flower's own messages about nodes, which older versions do not have."""
        keys = {node: self.keys.get(node - self.first_id, b"") for node in self.get_node_ids()}
        return [SimpleNamespace(node_id=node, public_key=key) for node, key in keys.items()]

    def _config(self, partition: int) -> dict[str, Any]:
        named = {"client": self.clients[partition]} if partition in self.clients else {}
        return {"partition-id": partition, "num-partitions": self.n_nodes, **named}

    def connect(self, _seconds: float) -> None:
        """What passes while somebody waits: the late ones arrive, one at a time."""
        self.late.discard(min(self.late))

    def push_messages(self, messages: Any) -> list[str]:
        ids = []
        for message in messages:
            message.metadata.__dict__["_message_id"] = f"m{next(self.counter)}"
            ids.append(message.metadata.message_id)
            partition = message.metadata.dst_node_id - self.first_id
            if partition not in self.silent:
                self.replies[ids[-1]] = self._reply(message, partition)
        return ids

    def pull_messages(self, message_ids: Any) -> list[Any]:
        return [self.replies.pop(i) for i in list(message_ids) if i in self.replies]

    def send_and_receive(self, messages: Any, *, timeout: float | None = None) -> list[Any]:  # noqa: ARG002
        return self.pull_messages(self.push_messages(messages))

    def _reply(self, message: Any, partition: int) -> Any:
        context = Context(
            run_id=1,
            node_id=message.metadata.dst_node_id,
            node_config={} if self.nameless else self._config(partition),
            state=RecordDict(),
            run_config=self.run_config,
        )
        try:
            return self.app(message, context)
        except Exception as error:
            return Message(Error(code=2, reason=str(error)), reply_to=message)
