"""What is in a Flower message of training: the model that was sent or sent back, its weight, the round's number.

In: messages of the Message API. Out: arrays by name, or an error that says what was found instead: two records of
arrays (SCAFFOLD sends control variates beside the model), a model of its own for every node, no metric to weight by.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from fedworth.errors import ModelError, UsageError
from fedworth.names import Aggregation

SAMPLES = "num-examples"
"""The metric in which Flower's clients report how many samples they have; any other is a weight, whole or not."""

OF_THE_NODE = (1, 2, 6, 7, 8)
"""Codes of errors that a living node sends: its app was not loaded, raised or crashed, or a mod or the FAB is bad."""


@dataclass
class TrainRound:
    """Messages that went out together, and what came back for them."""

    messages: list[Any]
    number: int
    replies: list[Any] = field(default_factory=list)
    said: dict[int, str] = field(default_factory=dict)  # by node id: the name that it gave in this round

    def arrivals(self) -> list[int]:
        """The nodes in the order of their replies, which is the order in which a strategy adds them up."""
        nodes = {m.metadata.message_id: m.metadata.dst_node_id for m in self.messages}
        return [nodes[reply.metadata.reply_to_message_id] for reply in self.replies]

    def fates(self) -> list[tuple[int, Any | None]]:
        """For each node that was asked, its reply, or None."""
        by_id = {reply.metadata.reply_to_message_id: reply for reply in self.replies}
        return [(m.metadata.dst_node_id, by_id.get(m.metadata.message_id)) for m in self.messages]


def model_sent(messages: Sequence[Any], record: str | None) -> dict[str, Any]:
    """The one model that all nodes were sent."""
    first, *others = [_model_record(message.content, record) for message in messages]
    if not all(other is first or _is_equal(other, first) for other in others):
        raise ModelError(
            "nodes were sent different models; a coalition's model is an update of one global model, so a federation "
            "with a model for each node cannot be valued"
        )
    return _arrays(first)


def model_in(content: Any, record: str | None) -> dict[str, Any]:
    """The model that a reply brings."""
    return _arrays(_model_record(content, record))


def weight_in(content: Any, key: str, aggregation: Aggregation) -> Any:
    """What a reply is weighted by; 1 where the server weights by nothing."""
    for metrics in content.metric_records.values():
        if key in metrics:
            return metrics[key]
    if aggregation == "uniform":
        return 1
    raise ModelError(f"no metric {key!r} to weight it by; name the metric: record(…, weighted_by=…)")


def set_weight(content: Any, key: str, weight: float) -> None:
    """Have a reply weighted by this instead of what it reports."""
    for metrics in content.metric_records.values():
        if key in metrics:
            metrics[key] = weight
            return
    raise UsageError(f"no metric {key!r} in the reply that could be set")


def round_number(message: Any, count: int) -> int:
    """Flower's own number of the round, or how many have passed."""
    said = [config["server-round"] for config in message.content.config_records.values() if "server-round" in config]
    return int(said[0]) if said else count


def is_gone(reply: Any) -> bool:
    """Whether a reply is the SuperLink's error about a node that it cannot reach, and not the node's own."""
    return bool(reply.has_error()) and reply.error.code not in OF_THE_NODE


def fate_of(reply: Any | None) -> str:
    """What became of a message, in words."""
    if reply is None:
        return "was silent"
    return f"failed ({reply.error.reason})" if reply.has_error() else "sent a reply that cannot be read"


def _model_record(content: Any, record: str | None) -> Any:
    found = dict(content.array_records.items())
    if record is not None and record in found:
        return found[record]
    if record is None and len(found) == 1:
        return next(iter(found.values()))
    names = ", ".join(repr(name) for name in found) or "none"
    remedy = "say which one is the model: record(…, arrays=…)" if found else "a model is sent as one"
    raise ModelError(f"{len(found)} ArrayRecords in it ({names}), expected {record!r}; {remedy}".replace("None", "one"))


def _is_equal(one: Any, other: Any) -> bool:
    return [*one] == [*other] and all(one[name].data == other[name].data for name in one)


def _arrays(record: Any) -> dict[str, Any]:
    return {name: array.numpy() for name, array in record.items()}
