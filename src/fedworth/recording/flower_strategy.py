"""Record a federation of Flower's old API at its strategy: `start_server`, `ServerApp(server_fn)`, `DefaultWorkflow`.

    strategy = fedworth.flower.record(FedAvg(…), ledger="my.ledger", names=net.state_dict().keys())

The wrapper passes every call on and records what it sees: whom `configure_fit` asks and with which parameters, and what
came back to `aggregate_fit`. Parameters are lists of arrays, named by `names` or else 0, 1, …. A client says its name
in a metric (`flower_identity`), or goes by its id. An exception among the failures does not tell whose it is, so every
client that was asked and did not answer counts as failed.
"""

import logging
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import Any

from flwr.common import parameters_to_ndarrays

from fedworth.errors import ModelError
from fedworth.recording.flower_identity import NAME_METRIC
from fedworth.recording.identity import NodeNames
from fedworth.recording.recorder import LiveRecorder, attempt
from fedworth.task.task import Task

log = logging.getLogger("fedworth")

SUMMED = "all answers are the same object: secure aggregation has summed them, so single clients cannot be valued"


@dataclass
class RecordingStrategy:
    """A strategy of the old API that passes everything on and records the training rounds."""

    inner: Any
    recorder: LiveRecorder
    names: tuple[str, ...] = ()
    n_rounds: int | None = None
    hear_everyone: int | None = None
    wait_seconds: float = 600.0
    nodes: NodeNames = field(default_factory=NodeNames)
    asked: list[Any] = field(default_factory=list)  # (proxy, instructions) of the current round
    connected: set[str] = field(default_factory=set)
    after: Any = None  # the last aggregate

    def __getattr__(self, name: str) -> Any:
        """Everything else is the inner strategy's."""
        if name == "inner":  # not there yet, as while copying
            raise AttributeError(name)
        return getattr(self.inner, name)

    def __repr__(self) -> str:
        return repr(self.inner)

    def configure_fit(self, server_round: int, parameters: Any, client_manager: Any) -> Any:
        """The inner strategy's instructions, and with `hear_everyone` at first those for all other clients."""
        given = self.inner.configure_fit(server_round, parameters, client_manager)
        sent = attempt(self._begin, given, client_manager)
        return given if sent is None else sent

    def aggregate_fit(self, server_round: int, results: Any, failures: Any) -> Any:
        """Record the answers, then let the inner strategy aggregate them."""
        attempt(self._record, server_round, results, failures)
        aggregated = self.inner.aggregate_fit(server_round, results, failures)
        attempt(self._keep, server_round, aggregated)
        return aggregated

    def close(self) -> None:
        """Commit the model after the last round."""
        attempt(self._close)

    def values(self, task: Task, **how: Any) -> dict[str, float]:
        """Each client's value so far, by its name; see `LiveRecorder.values`."""
        return self.recorder.values(task, **how)

    def name_of(self, cid: str) -> str | None:
        """A client proxy's name; None if it has not answered yet."""
        return self.nodes.names.get(cid)

    def _begin(self, given: Any, client_manager: Any) -> Any:
        sent = list(given)
        if self.hear_everyone is not None and self.recorder.writer.n_rounds == 0 and self.after is None and sent:
            if not client_manager.wait_for(self.hear_everyone, int(self.wait_seconds)):
                there = client_manager.num_available()
                log.warning(
                    "fedworth: only %d of %d clients are connected for the first round", there, self.hear_everyone
                )
            asked = {proxy.cid for proxy, _ in sent}
            sent += [(proxy, sent[0][1]) for cid, proxy in client_manager.all().items() if cid not in asked]
        self.asked, self.connected = sent, set(client_manager.all())
        return sent

    def _record(self, number: int, results: Any, failures: Any) -> None:
        try:
            said = {proxy.cid: _take_name(proxy.cid, answer) for proxy, answer in results}
            self._write(number, results, failures, said)
        except Exception as error:
            self.recorder.lose_round(number, f"{type(error).__name__}: {error}")

    def _write(self, number: int, results: Any, failures: Any, said: dict[str, str]) -> None:
        for proxy, _ in self.asked:
            self.nodes.meet(proxy.cid)
        settled = self.nodes.settle(said, self.connected)
        known = {proxy.cid: self.nodes.names[proxy.cid] for proxy, _ in self.asked if proxy.cid in self.nodes.names}
        model = self._model_sent()
        if len(results) > 1 and all(answer.parameters is results[0][1].parameters for _, answer in results):
            raise ModelError(SUMMED)
        self.recorder.start_round(model, asked=[*known.values(), *settled.conflicts], number=number)
        self.recorder.report_claims(settled, set(known.values()))
        for proxy, answer in results:
            if proxy.cid in known:
                self._write_answer(known[proxy.cid], answer)
        self._write_failures([p.cid for p, _ in self.asked if p.cid not in said], failures, known)
        answered_from = {name: self.nodes.labels[cid] for cid, name in known.items()}
        self.recorder.end_round(nodes=answered_from, contested=[*settled.conflicts])

    def _model_sent(self) -> dict[str, Any]:
        """The global model; an error if clients were sent different ones."""
        first, *others = [instructions.parameters for _, instructions in self.asked]
        if not all(other is first or other.tensors == first.tensors for other in others):
            raise ModelError(
                "clients were sent different models; a federation with a model for each client cannot be valued, "
                "because a coalition's model is an update of one global model"
            )
        return self._named(first)

    def _named(self, parameters: Any) -> dict[str, Any]:
        """Parameters as arrays by name."""
        if parameters.tensor_type != "numpy.ndarray":
            raise ModelError(f"parameters of type {parameters.tensor_type!r}, expected arrays of numpy")
        arrays = parameters_to_ndarrays(parameters)
        names = self.names or tuple(str(place) for place in range(len(arrays)))
        if len(names) != len(arrays):
            raise ModelError(f"{len(arrays)} arrays, and {len(names)} names for them; give record(…, names=…) as many")
        return dict(zip(names, arrays, strict=True))

    def _write_answer(self, name: str, answer: Any) -> None:
        try:
            model = self._named(answer.parameters)
        except Exception as error:  # an answer may hold anything
            self.recorder.client_quarantined(name, f"its answer cannot be read ({type(error).__name__}: {error})")
            return
        self.recorder.client_model(name, model, answer.num_examples)

    def _write_failures(self, cids: list[str], failures: Any, known: Mapping[str, str]) -> None:
        """Report the clients that did not answer, each with its own reason if the failure tells whose it is."""
        own = {f[0].cid: str(f[1].status.message) for f in failures if isinstance(f, tuple)}
        others = "; ".join(str(f) for f in failures if not isinstance(f, tuple))
        for cid in cids:
            reason = own.get(cid) or others or "no reason given"
            if cid in known:
                self.recorder.client_failed(known[cid], reason)
            else:
                self.recorder.note(f"client {cid}, which has never said who it is, failed ({reason})")

    def _keep(self, number: int, aggregated: Any) -> None:
        if aggregated[0] is not None:
            self.after = aggregated[0]
        if self.n_rounds is not None and number >= self.n_rounds:
            self._close()

    def _close(self) -> None:
        if self.after is None:
            raise ModelError("no round was aggregated, so there is no model to close the ledger with")
        self.recorder.close(self._named(self.after))


def _take_name(cid: str, answer: Any) -> str:
    """The name in an answer, which is removed from it."""
    said = answer.metrics.pop(NAME_METRIC, None) if isinstance(answer.metrics, MutableMapping) else None
    if said is None:
        log.warning("fedworth: client %s does not say who it is; put fedworth.flower.identity into its mods", cid)
    return f"node-{cid}" if said is None else str(said)
