"""Record a Flower federation as it happens, at the grid: any strategy, any hand-written loop, unchanged.

    server   strategy.start(grid=fedworth.flower.record(grid, ledger="my.ledger"), …)
    client   app = ClientApp(mods=[fedworth.flower.identity])

The grid is where every message passes, so asked, answered, failed and silent are told apart there: a client's exception
comes back as an error; a dead node's error comes from the SuperLink, and is matched by the message that it answers; a
node that times out sends nothing. Node ids are random and change at a restart, so each client says who it is: the
`identity` mod puts its name, or its partition, into its replies. A node that has never said so is noted as a stranger.
A name belongs to one node, which is known by its public key where the grid tells it (`claims`).
"""

import contextlib
import logging
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from flwr.app import ConfigRecord, Message, MessageType

from fedworth.federation.live.claims import NodeNames, Settled, owners_of
from fedworth.federation.live.recorder import LiveRecorder, record_into
from fedworth.federation.live.strategies import rule_seen, weights_seen
from fedworth.federation.rules.rule import Rule
from fedworth.ledger.ledger import open_ledger
from fedworth.names import Aggregation

log = logging.getLogger("fedworth")

IDENTITY = "fedworth.identity"
POLL_SECONDS = 1.0
SAMPLES = "num-examples"
"""The metric in which Flower's clients report how many samples they have; any other is a weight, whole or not."""

T = TypeVar("T")


def identity(message: Any, context: Any, call_next: Any) -> Any:
    """Client mod: say in every reply who this client is: `client` of the node's config, or else its partition.

    A node without either says nothing, and goes by its node id. Whatever goes wrong here, the reply is sent.
    """
    reply = call_next(message, context)
    try:
        _say_who(reply, context.node_config)
    except Exception as error:
        log.warning("fedworth: this client could not say who it is (%s: %s)", type(error).__name__, error)
    return reply


def _say_who(reply: Any, config: Any) -> None:
    if "client" not in config and "partition-id" not in config:
        log.warning("fedworth: this client has no name; start its SuperNode with --node-config 'client=\"my-name\"'")
    elif reply.has_content():
        name = config["client"] if "client" in config else f"partition-{config['partition-id']}"
        reply.content[IDENTITY] = ConfigRecord({"client": str(name)})


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


@dataclass
class RecordingGrid:
    """A grid that passes everything on, and records the training rounds that pass."""

    inner: Any
    recorder: LiveRecorder
    weighted_by: str = SAMPLES
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

    def _attempt(self, action: Callable[..., T], *args: Any) -> T | None:
        """Do something of ours; whatever goes wrong in it is logged, and never reaches the training."""
        try:
            return action(*args)
        except Exception as error:
            log.error("fedworth: recording failed (%s: %s); training goes on", type(error).__name__, error)
            return None

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
        self.current = TrainRound(train, _round_number(train[0], self.n_rounds))
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
        """Keep the replies of the current round, and take note of who sent them."""
        if self.current is None:
            return
        nodes = {m.metadata.message_id: m.metadata.dst_node_id for m in self.current.messages}
        for reply in replies:
            node = nodes.get(reply.metadata.reply_to_message_id)
            if node is not None:
                self.current.replies.append(reply)
                with contextlib.suppress(Exception):  # a reply may hold anything; a stranger it stays then
                    self._learn_name(node, reply)

    def _learn_name(self, node: int, reply: Any) -> None:
        if reply.has_error():
            return
        said = reply.content.pop(IDENTITY, None)  # taken out: no strategy need know of it
        if self.current is not None and said is not None:
            self.current.said[node] = str(said["client"])
        elif self.current is not None and node not in self.nodes.names:
            log.warning("fedworth: node %d does not say who it is; put fedworth.flower.identity into its mods", node)
            self.current.said[node] = f"node-{node}"

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
        """Who goes by which name. A node whose error came back is not taken to be there still."""
        infos = self._attempt(lambda: list(self.inner.get_nodes())) or []
        for info in infos:
            self.nodes.meet(info.node_id, bytes(getattr(info, "public_key", b"")))
        for node, _ in round_.fates():
            self.nodes.meet(node)
        failed = {node for node, reply in round_.fates() if reply is not None and reply.has_error()}
        return self.nodes.settle(round_.said, {info.node_id for info in infos} - failed)

    def _write(self, round_: TrainRound) -> None:
        fates, settled = round_.fates(), self._settle(round_)
        known = [(node, reply) for node, reply in fates if node in self.nodes.names]
        sent = next(iter(round_.messages[0].content.array_records.values()))
        model = {name: array.numpy() for name, array in sent.items()}
        asked = [*(self.nodes.names[node] for node, _ in known), *settled.conflicts]
        self.recorder.start_round(model, asked=asked, number=round_.number)
        self.recorder.say_claims(settled, {self.nodes.names[node] for node, _ in known})
        for node, reply in fates:
            if node not in self.nodes.names and node not in round_.said:
                self.recorder.note(f"node {node}, which has never said who it is, {_fate(reply)}")
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
            (arrays,) = reply.content.array_records.values()
            model = {key: array.numpy() for key, array in arrays.items()}
            n_samples = _sample_count(reply, self.weighted_by, self.recorder.writer.aggregation)
        except Exception as error:  # a reply may hold anything
            self.recorder.client_quarantined(name, f"its reply cannot be read ({type(error).__name__}: {error})")
            return
        self.recorder.client_model(name, model, n_samples)


def record(
    grid: Any,
    *,
    ledger: Path | str,
    clients: Sequence[str] = (),
    strategy: Any = None,
    rule: Rule | None = None,
    aggregation: Aggregation = "samples",
    weighted_by: str | None = None,
    hear_everyone: int | None = None,
    wait_seconds: float = 600.0,
    keys_last: bool = False,
    resume: bool = False,
) -> RecordingGrid:
    """A grid to hand to a strategy instead of `grid`: it does the same and records the rounds into `ledger`.

    `strategy` is looked at, and not changed: its rule goes into the ledger, and the metric that it weights by is read.
    `rule` and `weighted_by` say these where the strategy does not (`aggregation="uniform"`: it weights by none). With
    `hear_everyone=N` the first round waits for N nodes and asks all of them. `clients` names those who are expected:
    who is never heard will be named as such. `keys_last=True` if the SuperLink authenticates its nodes: a name then
    stays with the key that it was first heard from. `resume` goes on with the ledger of a server that was stopped.
    """
    by = weighted_by or weights_seen(strategy) or SAMPLES
    recorder = record_into(
        ledger,
        clients,
        aggregation=aggregation,
        rule=rule if rule is not None or strategy is None else rule_seen(strategy),
        real_weights=by != SAMPLES,
        settings={"source": "flower"},
        resume=resume,
    )
    nodes = NodeNames(owners_of(open_ledger(recorder.writer.folder)), keys_last)
    return RecordingGrid(grid, recorder, by, hear_everyone, wait_seconds, nodes=nodes)


def _fate(reply: Any | None) -> str:
    if reply is None:
        return "was silent"
    return f"failed ({reply.error.reason})" if reply.has_error() else "sent a reply that cannot be read"


def _round_number(message: Any, count: int) -> int:
    """Flower's own number of the round, or how many have passed."""
    said = [config["server-round"] for config in message.content.config_records.values() if "server-round" in config]
    return int(said[0]) if said else count


def _sample_count(reply: Any, weighted_by: str, aggregation: Aggregation) -> Any:
    for metrics in reply.content.metric_records.values():
        if weighted_by in metrics:
            return metrics[weighted_by]
    if aggregation == "uniform":
        return 1
    raise KeyError(f"no metric {weighted_by!r} to weight it by")
