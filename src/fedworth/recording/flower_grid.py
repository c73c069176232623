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
from typing import Any

import numpy as np
from flwr.app import Message, MessageType

from fedworth.errors import ModelError
from fedworth.ledger.embeddings import EMBEDDING, EMBEDDINGS
from fedworth.ledger.embeddings import SAMPLES as PLACES
from fedworth.names import Aggregation
from fedworth.recording.flower_identity import SAMPLES, name_taken_from
from fedworth.recording.identity import NodeNames, Settled
from fedworth.recording.recorder import LiveRecorder, attempt
from fedworth.recording.trees import Trees
from fedworth.task.task import Task
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
    replies: list[Any] = field(default_factory=list)
    said: dict[int, str] = field(default_factory=dict)  # node id → the name that it gave in this round
    head: Mapping[str, Any] | None = None  # of a vertical federation, when the messages were sent

    def arrivals(self) -> list[int]:
        """The nodes in the order of their replies, in which a strategy adds them up."""
        nodes = {m.metadata.message_id: m.metadata.dst_node_id for m in self.messages}
        return [nodes[reply.metadata.reply_to_message_id] for reply in self.replies]

    def replies_by_node(self) -> list[tuple[int, Any | None]]:
        """Each node that was asked, with its reply or None."""
        by_id = {reply.metadata.reply_to_message_id: reply for reply in self.replies}
        return [(m.metadata.dst_node_id, by_id.get(m.metadata.message_id)) for m in self.messages]


@dataclass
class RecordingGrid:
    """A grid that passes everything on and records the training rounds."""

    inner: Any
    recorder: LiveRecorder
    weighted_by: str = SAMPLES
    arrays: str | None = None
    hear_everyone: int | None = None
    wait_seconds: float = 600.0
    n_rounds: int = 0
    nodes: NodeNames = field(default_factory=NodeNames)
    current: TrainRound | None = None
    trees: Trees | None = None
    vertical: Vertical | None = None

    def __getattr__(self, name: str) -> Any:
        """Everything else is the inner grid's."""
        if name == "inner":  # not there yet, as while copying
            raise AttributeError(name)
        return getattr(self.inner, name)

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

    def values(self, task: Task, **how: Any) -> dict[str, float]:
        """Each client's value so far, by its name; see `LiveRecorder.values`."""
        return self.recorder.values(task, **how)

    def name_of(self, node: int) -> str | None:
        """A node's name; None if it has not answered yet."""
        return self.nodes.names.get(node)

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
        if self.current is not None and all(reply is not None for _, reply in self.current.replies_by_node()):
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
            log.warning("fedworth: only %d of %d clients are connected for the first round", len(nodes), expected)
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
                self.current.replies.append(reply)
                with contextlib.suppress(Exception):  # a reply may hold anything; its node stays unknown then
                    self._learn_name(node, reply)

    def _learn_name(self, node: int, reply: Any) -> None:
        if reply.has_error():
            return
        said = name_taken_from(reply.content)  # and removed, so that the strategy does not see it
        if self.current is not None and said is not None:
            self.current.said[node] = said
        elif self.current is not None and node not in self.nodes.names:
            log.warning("fedworth: node %d does not say who it is; put fedworth.flower.identity into its mods", node)
            self.current.said[node] = f"node-{node}"

    def _end(self) -> None:
        """Write the round, or report it missing."""
        round_, self.current = self.current, None
        if round_ is None:
            return
        if self.vertical is not None and not any(has_embeddings(reply, self.arrays) for reply in round_.replies):
            self.n_rounds -= 1  # the server sent gradients, or asked something else
            return
        try:
            self._write(round_)
        except Exception as error:
            self.recorder.lose_round(round_.number, f"{type(error).__name__}: {error}")

    def _settle(self, round_: TrainRound) -> Settled:
        # A node that the SuperLink reports gone is not present. A node that sent an error is, otherwise a client that
        # fails once could lose its name to another node.
        infos = attempt(lambda: list(self.inner.get_nodes())) or []
        for info in infos:
            self.nodes.meet(info.node_id, bytes(getattr(info, "public_key", b"")))
        for node, _ in round_.replies_by_node():
            self.nodes.meet(node)
        gone = {node for node, reply in round_.replies_by_node() if reply is not None and is_gone(reply)}
        return self.nodes.settle(round_.said, {info.node_id for info in infos} - gone)

    def _write(self, round_: TrainRound) -> None:
        by_node, settled = round_.replies_by_node(), self._settle(round_)
        known = [(node, reply) for node, reply in by_node if node in self.nodes.names]
        model = model_sent(round_.messages, self.arrays) if round_.head is None else dict(round_.head)
        replies = [reply for reply in round_.replies if not reply.has_error()]  # in the order of their arrival
        is_first = self.trees is not None and not any(map(np.size, model.values()))
        if self.trees is not None:
            model = self.trees.start(model, model_in(replies[0].content, self.arrays) if replies else None)
        asked = [*(self.nodes.names[node] for node, _ in known), *settled.conflicts]
        self.recorder.start_round(model, asked=asked, number=round_.number)
        self.recorder.report_claims(settled, {self.nodes.names[node] for node, _ in known})
        for node, reply in by_node:
            if node not in self.nodes.names and node not in round_.said:
                self.recorder.note(f"node {node}, which has never said who it is, {outcome_of(reply)}")
        answers = dict(known)
        for node in round_.arrivals():
            if answers.get(node) is not None:
                is_whole = is_first and answers[node] is replies[0] if replies else False
                self._write_reply(self.nodes.names[node], answers[node], model, is_whole=is_whole)
        answered_from = {self.nodes.names[node]: self.nodes.labels[node] for node, _ in known}
        self.recorder.end_round(nodes=answered_from, contested=[*settled.conflicts])

    def _write_reply(self, name: str, reply: Any, start: Mapping[str, Any], *, is_whole: bool) -> None:
        if reply.has_error():
            self.recorder.client_failed(name, f"error {reply.error.code}: {reply.error.reason}")
            return
        try:
            if self.vertical is not None:
                found = embeddings_in(reply.content, self.arrays)
                self.recorder.client_embedding(name, found[EMBEDDING], found.get(PLACES))
                return
            model = model_in(reply.content, self.arrays)
            if self.trees is not None:
                model = self.trees.answer(start, model, is_whole=is_whole)
            n_samples = weight_in(reply.content, self.weighted_by, self.recorder.writer.aggregation)
        except Exception as error:  # a reply may hold anything
            self.recorder.client_quarantined(name, f"its reply cannot be read ({type(error).__name__}: {error})")
            return
        self.recorder.client_model(name, model, n_samples)


def model_sent(messages: Sequence[Any], record: str | None) -> dict[str, Any]:
    """The global model; an error if nodes were sent different ones."""
    first, *others = [_model_record(message.content, record) for message in messages]
    if not all(other is first or _is_equal(other, first) for other in others):
        raise ModelError(
            "nodes were sent different models; a federation with a model for each node cannot be valued, because a "
            "coalition's model is an update of one global model"
        )
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


def outcome_of(reply: Any | None) -> str:
    """The outcome of a message, in words."""
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
