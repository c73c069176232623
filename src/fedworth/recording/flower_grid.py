"""Record a Flower federation at its grid, where every message passes: any strategy of the Message API, any loop.

Asked, answered, failed and silent are told apart here: a client's exception comes back as an error; a dead node's error
comes from the SuperLink, and is matched by the message that it answers; a node that times out sends nothing. Node ids
are random and change at a restart, so each client says who it is (`flower_identity`). A node that has never said so is
noted as a stranger. A name belongs to one node, which is known by its public key where the grid tells it (`claims`).
"""

import contextlib
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from flwr.app import Message, MessageType

from fedworth.recording.claims import NodeNames, Settled
from fedworth.recording.flower_identity import name_taken_from
from fedworth.recording.flower_messages import (
    SAMPLES,
    TrainRound,
    fate_of,
    is_gone,
    model_in,
    model_sent,
    round_number,
    set_weight,
    weight_in,
)
from fedworth.recording.guard import attempt
from fedworth.recording.recorder import LiveRecorder
from fedworth.task.task import Task

log = logging.getLogger("fedworth")

POLL_SECONDS = 1.0

T = TypeVar("T")


@dataclass
class RecordingGrid:
    """A grid that passes everything on, and records the training rounds that pass."""

    inner: Any
    recorder: LiveRecorder
    weighted_by: str = SAMPLES
    arrays: str | None = None
    hear_everyone: int | None = None
    wait_seconds: float = 600.0
    n_rounds: int = 0
    nodes: NodeNames = field(default_factory=NodeNames)
    current: TrainRound | None = None

    def __getattr__(self, name: str) -> Any:
        """Whatever is not about messages is the inner grid's."""
        if name == "inner":  # not there yet, as while copying
            raise AttributeError(name)
        return getattr(self.inner, name)

    def send_and_receive(self, messages: Iterable[Any], *, timeout: float | None = None) -> list[Any]:
        """Send, wait, and record what was training."""
        replies = list(self.inner.send_and_receive(self._sent(messages), timeout=timeout))
        self._attempt(self._take, replies)
        self._attempt(self._end)
        return replies

    def push_messages(self, messages: Iterable[Any]) -> Iterable[str]:
        """Send; if it was training, the round lasts until all have answered or the next one begins."""
        ids: Iterable[str] = list(self.inner.push_messages(self._sent(messages)))
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> list[Any]:
        """What has come back so far."""
        replies = list(self.inner.pull_messages(message_ids))
        self._attempt(self._take, replies)
        self._attempt(self._end_if_complete)
        return replies

    def close(self, final_arrays: Any) -> None:
        """Commit the model after the last round: `grid.close(result.arrays)`."""
        self._attempt(self._end)
        self._attempt(self._close, final_arrays)

    def values(self, task: Task, **how: Any) -> dict[str, float]:
        """What each client is worth so far, by its name; see `LiveRecorder.values`."""
        return self.recorder.values(task, **how)

    def weigh(self, weights: Mapping[str, float]) -> None:
        """From the next round on, weight these clients by these numbers instead of what they report: the strategy gets
        them in the metric that it weights by, and the ledger keeps them."""
        self.recorder.weigh(weights)

    def name_of(self, node: int) -> str | None:
        """The name that a node goes by; None of one that has not been heard."""
        return self.nodes.names.get(node)

    def _attempt(self, action: Callable[..., T], *args: Any) -> T | None:
        """Do something of ours, which must not reach the training."""
        return attempt(action, *args)

    def _sent(self, messages: Iterable[Any]) -> list[Any]:
        """What is to be sent: the strategy's messages, and those that let the first round hear everyone."""
        given = list(messages)  # an error of the strategy's own is the strategy's
        sent = self._attempt(self._begin, given)
        return given if sent is None else sent

    def _close(self, final_arrays: Any) -> None:
        self.recorder.close({name: array.numpy() for name, array in final_arrays.items()})

    def _end_if_complete(self) -> None:
        if self.current is not None and all(reply is not None for _, reply in self.current.fates()):
            self._end()

    def _begin(self, sent: list[Any]) -> list[Any]:
        train = [m for m in sent if m.metadata.message_type.split(".")[0] == MessageType.TRAIN]
        if not train:
            return sent
        self._end()
        if self.hear_everyone is not None and self.n_rounds == 0 and self.recorder.writer.n_rounds == 0:
            more = self._to_everyone_else(train)
            sent, train = sent + more, train + more
        self.n_rounds += 1
        self.current = TrainRound(train, round_number(train[0], self.n_rounds))
        return sent

    def _to_everyone_else(self, train: Sequence[Any]) -> list[Any]:
        """The same message for the nodes that the strategy left out, once as many are there as were announced."""
        expected = self.hear_everyone or 0
        deadline = time.monotonic() + self.wait_seconds
        while len(nodes := list(self.inner.get_node_ids())) < expected and time.monotonic() < deadline:
            log.info("fedworth: the first round hears everyone; %d of %d are connected", len(nodes), expected)
            time.sleep(POLL_SECONDS)
        if len(nodes) < expected:
            log.warning(
                "fedworth: only %d of %d clients are there to be heard in the first round", len(nodes), expected
            )
        asked, first = {m.metadata.dst_node_id for m in train}, train[0]
        kind = first.metadata.message_type
        return [Message(content=first.content, dst_node_id=n, message_type=kind) for n in nodes if n not in asked]

    def _take(self, replies: Sequence[Any]) -> None:
        """Keep the replies of the current round, take note of who sent them, and weigh them as asked."""
        if self.current is None:
            return
        nodes = {m.metadata.message_id: m.metadata.dst_node_id for m in self.current.messages}
        for reply in replies:
            node = nodes.get(reply.metadata.reply_to_message_id)
            if node is not None:
                self.current.replies.append(reply)
                with contextlib.suppress(Exception):  # a reply may hold anything; a stranger it stays then
                    self._learn_name(node, reply)
                self._attempt(self._weigh_one, self.current.said.get(node) or self.name_of(node), reply)

    def _learn_name(self, node: int, reply: Any) -> None:
        if reply.has_error():
            return
        said = name_taken_from(reply.content)  # taken out: no strategy need know of it
        if self.current is not None and said is not None:
            self.current.said[node] = said
        elif self.current is not None and node not in self.nodes.names:
            log.warning("fedworth: node %d does not say who it is; put fedworth.flower.identity into its mods", node)
            self.current.said[node] = f"node-{node}"

    def _weigh_one(self, name: str | None, reply: Any) -> None:
        weight = self.recorder.weights.get(name or "")
        if weight is not None and not reply.has_error():
            set_weight(reply.content, self.weighted_by, weight)

    def _end(self) -> None:
        """Write the round; whatever goes wrong here must not reach the training."""
        round_, self.current = self.current, None
        if round_ is None:
            return
        try:
            self._write(round_)
        except Exception as error:
            self.recorder.lose_round(round_.number, f"{type(error).__name__}: {error}")

    def _settle(self, round_: TrainRound) -> Settled:
        """Who goes by which name. A node of which the SuperLink says that it is gone is not taken to be there; one
        whose own error came back is, or a client that fails once would lose its name to whoever claims it."""
        infos = self._attempt(lambda: list(self.inner.get_nodes())) or []
        for info in infos:
            self.nodes.meet(info.node_id, bytes(getattr(info, "public_key", b"")))
        for node, _ in round_.fates():
            self.nodes.meet(node)
        gone = {node for node, reply in round_.fates() if reply is not None and is_gone(reply)}
        return self.nodes.settle(round_.said, {info.node_id for info in infos} - gone)

    def _write(self, round_: TrainRound) -> None:
        fates, settled = round_.fates(), self._settle(round_)
        known = [(node, reply) for node, reply in fates if node in self.nodes.names]
        model = model_sent(round_.messages, self.arrays)
        asked = [*(self.nodes.names[node] for node, _ in known), *settled.conflicts]
        self.recorder.start_round(model, asked=asked, number=round_.number)
        self.recorder.say_claims(settled, {self.nodes.names[node] for node, _ in known})
        for node, reply in fates:
            if node not in self.nodes.names and node not in round_.said:
                self.recorder.note(f"node {node}, which has never said who it is, {fate_of(reply)}")
        by_node = dict(known)
        for node in round_.arrivals():
            if by_node.get(node) is not None:
                self._write_reply(self.nodes.names[node], by_node[node])
        answered_from = {self.nodes.names[node]: self.nodes.labels[node] for node, _ in known}
        self.recorder.end_round(nodes=answered_from, contested=[*settled.conflicts])

    def _write_reply(self, name: str, reply: Any) -> None:
        if reply.has_error():
            self.recorder.client_failed(name, f"error {reply.error.code}: {reply.error.reason}")
            return
        try:
            model = model_in(reply.content, self.arrays)
            n_samples = weight_in(reply.content, self.weighted_by, self.recorder.writer.aggregation)
        except Exception as error:  # a reply may hold anything
            self.recorder.client_quarantined(name, f"its reply cannot be read ({type(error).__name__}: {error})")
            return
        self.recorder.client_model(name, model, n_samples)
