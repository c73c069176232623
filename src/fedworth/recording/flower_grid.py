"""Record a Flower federation at its grid, through which every message of the Message API passes.

The grid tells apart who was asked, answered, failed or stayed silent: a client's exception comes back as an error; the
SuperLink sends an error for a dead node, which is matched by the message that it answers; a node that times out sends
nothing. Node ids are random and change at a restart, so each client says its name (`flower_identity`). A node that
never did is noted as unknown. A name belongs to one node, known by its public key if the grid tells it (`identity`).
"""

import contextlib
import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from flwr.app import Message, MessageType

from fedworth.errors import ModelError
from fedworth.ledger.embeddings import EMBEDDING, EMBEDDINGS
from fedworth.ledger.embeddings import SAMPLES as PLACES
from fedworth.names import Aggregation
from fedworth.recording.flower_identity import SAMPLES, name_taken_from
from fedworth.recording.flower_wrapper import DIFFERENT_MODELS, Outcome, RecordingWrapper
from fedworth.recording.recorder import Arrays, attempt, embeddings_of, reason_of
from fedworth.recording.trees import Trees
from fedworth.task.vertical import Vertical

log = logging.getLogger("fedworth")

POLL_SECONDS = 1.0

NODE_ERRORS = (1, 2, 6, 7, 8)
"""Codes of errors that a living node sends: its app was not loaded, raised or crashed, or a mod or the FAB is bad."""


@dataclass
class TrainRound:
    """Messages that were sent together, and their replies."""

    messages: list[Any]
    number: int
    replies: dict[int, Any] = field(default_factory=dict)  # by node, in the order of their arrival
    said: dict[int, str] = field(default_factory=dict)  # node id → the name that it gave in this round
    head: Mapping[str, Any] | None = None  # of a vertical federation, when the messages were sent

    def by_node(self) -> dict[int, Any | None]:
        """Each node that was asked, with its reply or None."""
        asked = [message.metadata.dst_node_id for message in self.messages]
        return {node: self.replies.get(node) for node in asked}


@dataclass
class RecordingGrid(RecordingWrapper):
    """A grid that passes everything on and records the training rounds."""

    weighted_by: str = SAMPLES
    arrays: str | None = None
    n_rounds: int = 0
    current: TrainRound | None = None
    trees: Trees | None = None
    vertical: Vertical | None = None

    def send_and_receive(self, messages: Iterable[Any], *, timeout: float | None = None) -> list[Any]:
        """Send messages, wait for the replies, and record a training round."""
        replies = list(self.inner.send_and_receive(self._sent(messages), timeout=timeout))
        attempt(self._take, replies)
        attempt(self._end)
        return replies

    def push_messages(self, messages: Iterable[Any]) -> Iterable[str]:
        """Send messages; a training round lasts until all have answered or the next one begins."""
        ids: Iterable[str] = list(self.inner.push_messages(self._sent(messages)))
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> list[Any]:
        replies = list(self.inner.pull_messages(message_ids))
        attempt(self._take, replies)
        attempt(self._end_if_complete)
        return replies

    def close(self, final_arrays: Any = None) -> None:
        """Commit the model after the last round, `grid.close(result.arrays)`, or the head of a vertical federation."""
        attempt(self._end)
        attempt(self._close, final_arrays)

    def _sent(self, messages: Iterable[Any]) -> list[Any]:
        """The strategy's messages, and with `hear_everyone` in the first round those to all other nodes."""
        given = list(messages)  # errors of the strategy itself must reach it
        sent = attempt(self._begin, given)
        return given if sent is None else sent

    def _close(self, final_arrays: Any) -> None:
        if self.vertical is not None:
            self.recorder.close(_head_of(self.vertical))
            return
        final = _arrays(final_arrays)
        self.recorder.close(final if self.trees is None else self.trees.start(final, None))

    def _end_if_complete(self) -> None:
        if self.current is not None and None not in self.current.by_node().values():
            self._end()

    def _begin(self, sent: list[Any]) -> list[Any]:
        train = [m for m in sent if m.metadata.message_type.split(".")[0] == MessageType.TRAIN]
        if self.vertical is not None:
            train = sent  # embeddings may answer any kind of message
        if not train:
            return sent
        self._end()
        if self.hear_everyone is not None and self.n_rounds == 0 and self.recorder.writer.n_rounds == 0:
            more = self._to_everyone_else(train)
            sent, train = sent + more, train + more
        self.n_rounds += 1
        self.current = TrainRound(train, round_number(train[0], self.n_rounds))
        if self.vertical is not None:
            self.current.head = _head_of(self.vertical)
        return sent

    def _to_everyone_else(self, train: Sequence[Any]) -> list[Any]:
        """The same message for the nodes that the strategy left out, once as many nodes are connected as expected."""
        expected = self.hear_everyone or 0
        deadline = time.monotonic() + self.wait_seconds
        while len(nodes := list(self.inner.get_node_ids())) < expected and time.monotonic() < deadline:
            log.info("fedworth: the first round asks everyone; %d of %d are connected", len(nodes), expected)
            time.sleep(POLL_SECONDS)
        if len(nodes) < expected:
            self._warn_of_missing(len(nodes))
        asked, first = {m.metadata.dst_node_id for m in train}, train[0]
        kind = first.metadata.message_type
        return [Message(content=first.content, dst_node_id=n, message_type=kind) for n in nodes if n not in asked]

    def _take(self, replies: Sequence[Any]) -> None:
        """Keep the replies of the current round and learn the names of their nodes."""
        if self.current is None:
            return
        nodes = {m.metadata.message_id: m.metadata.dst_node_id for m in self.current.messages}
        for reply in replies:
            node = nodes.get(reply.metadata.reply_to_message_id)
            if node is not None:
                self.current.replies[node] = reply
                with contextlib.suppress(Exception):  # a reply may hold anything; its node stays unknown then
                    self._learn_name(node, reply)

    def _learn_name(self, node: int, reply: Any) -> None:
        if self.current is not None and not reply.has_error():
            # The name is removed, so that the strategy does not see it.
            self.current.said[node] = self._claim(node, name_taken_from(reply.content))

    def _end(self) -> None:
        """Write the round, or report it missing."""
        round_, self.current = self.current, None
        if round_ is None:
            return
        if self.vertical is not None and not any(
            has_embeddings(reply, self.arrays) for reply in round_.replies.values()
        ):
            self.n_rounds -= 1  # the server sent gradients, or asked something else
            return
        try:
            self._write(round_)
        except Exception as error:
            self.recorder.lose_round(round_.number, reason_of(error))

    def _write(self, round_: TrainRound) -> None:
        model = model_sent(round_.messages, self.arrays) if round_.head is None else dict(round_.head)
        first = next((reply for reply in round_.replies.values() if not reply.has_error()), None)
        whole = first if self.trees is not None and not any(map(np.size, model.values())) else None
        if self.trees is not None:
            model = self.trees.start(model, None if first is None else model_in(first.content, self.arrays))
        outcomes = {
            node: self._outcome(reply, model, is_whole=reply is whole) for node, reply in round_.by_node().items()
        }
        infos = attempt(lambda: list(self.inner.get_nodes())) or []
        for info in infos:
            self.nodes.meet(info.node_id, bytes(getattr(info, "public_key", b"")))
        # A node that the SuperLink reports gone is not connected. A node that sent an error is, otherwise a client that
        # fails once could lose its name to another node.
        gone = {node for node, reply in round_.replies.items() if is_gone(reply)}
        self._write_round(round_.number, model, outcomes, round_.said, {info.node_id for info in infos} - gone)

    def _outcome(self, reply: Any | None, start: Mapping[str, Any], *, is_whole: bool) -> Outcome:
        if reply is None:
            return None
        if reply.has_error():
            return f"error {reply.error.code}: {reply.error.reason}"
        return partial(self._read, reply.content, start, is_whole=is_whole)

    def _read(self, content: Any, start: Mapping[str, Any], *, is_whole: bool) -> tuple[Arrays, Any]:
        """The model in a reply and its weight."""
        if self.vertical is not None:
            found = embeddings_in(content, self.arrays)
            return embeddings_of(found[EMBEDDING], found.get(PLACES))
        model = model_in(content, self.arrays)
        if self.trees is not None:
            model = self.trees.answer(start, model, is_whole=is_whole)
        return model, weight_in(content, self.weighted_by, self.recorder.writer.aggregation)


def model_sent(messages: Sequence[Any], record: str | None) -> dict[str, Any]:
    """The global model; an error if nodes were sent different ones."""
    first, *others = [_model_record(message.content, record) for message in messages]
    if not all(other is first or _is_equal(other, first) for other in others):
        raise ModelError(DIFFERENT_MODELS)
    return _arrays(first)


def model_in(content: Any, record: str | None) -> dict[str, Any]:
    return _arrays(_model_record(content, record))


def has_embeddings(reply: Any, record: str | None) -> bool:
    """Whether a reply has a record of embeddings."""
    return not reply.has_error() and (record or EMBEDDINGS) in reply.content.array_records


def embeddings_in(content: Any, record: str | None) -> dict[str, Any]:
    """The embeddings in a reply, and the places of their samples if it has them."""
    found = _arrays(content.array_records[record or EMBEDDINGS])
    return found if EMBEDDING in found or len(found) != 1 else {EMBEDDING: next(iter(found.values()))}


def _head_of(vertical: Vertical) -> dict[str, Any]:
    """A copy of the head as it is now."""
    return {name: tensor.detach().cpu().clone() for name, tensor in vertical.head.state_dict().items()}


def weight_in(content: Any, key: str, aggregation: Aggregation) -> Any:
    """The weight of a reply; 1 if the server weights all equally."""
    for metrics in content.metric_records.values():
        if key in metrics:
            return metrics[key]
    if aggregation == "uniform":
        return 1
    raise ModelError(f"no metric {key!r} to weight it by; name the metric: record(…, weighted_by=…)")


def round_number(message: Any, count: int) -> int:
    """Flower's own number of the round, or else the count of rounds."""
    said = [config["server-round"] for config in message.content.config_records.values() if "server-round" in config]
    return int(said[0]) if said else count


def is_gone(reply: Any) -> bool:
    """Whether a reply is the SuperLink's error about a node that it cannot reach."""
    return bool(reply.has_error()) and reply.error.code not in NODE_ERRORS


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
