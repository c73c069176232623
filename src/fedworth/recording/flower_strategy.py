"""Record a federation of Flower's old API at its strategy: `start_server`, `ServerApp(server_fn)`, `DefaultWorkflow`.

    strategy = fedworth.flower.record(FedAvg(…), ledger="my.ledger", names=net.state_dict().keys())

The wrapper passes every call on and records what it sees: whom `configure_fit` asks and with which parameters, and what
came back to `aggregate_fit`. Parameters are lists of arrays, named by `names` or else 0, 1, …. A client says its name
in a metric (`flower_identity`), or goes by its id. An exception among the failures does not tell whose it is, so every
client that was asked and did not answer counts as failed.
"""

from collections.abc import MutableMapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from flwr.common import parameters_to_ndarrays

from fedworth.errors import ModelError
from fedworth.recording.flower_identity import NAME_METRIC
from fedworth.recording.flower_wrapper import DIFFERENT_MODELS, Outcome, RecordingWrapper
from fedworth.recording.recorder import attempt, named, reason_of

SUMMED = "all answers are the same object: secure aggregation has summed them, so single clients cannot be valued"


@dataclass
class RecordingStrategy(RecordingWrapper):
    """A strategy of the old API that passes everything on and records the training rounds."""

    names: tuple[str, ...] = ()  # of the tensors
    n_rounds: int | None = None  # after which the ledger is closed
    asked: list[Any] = field(default_factory=list)  # (proxy, instructions) of the current round
    connected: set[str] = field(default_factory=set)
    after: Any = None  # the last aggregate

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

    def _begin(self, given: Any, client_manager: Any) -> Any:
        sent = list(given)
        if self.hear_everyone is not None and self.recorder.writer.n_rounds == 0 and self.after is None and sent:
            if not client_manager.wait_for(self.hear_everyone, int(self.wait_seconds)):
                self._warn_of_missing(client_manager.num_available())
            asked = {proxy.cid for proxy, _ in sent}
            sent += [(proxy, sent[0][1]) for cid, proxy in client_manager.all().items() if cid not in asked]
        self.asked, self.connected = sent, set(client_manager.all())
        return sent

    def _record(self, number: int, results: Any, failures: Any) -> None:
        try:
            said = {proxy.cid: self._claim(proxy.cid, _take_name(answer)) for proxy, answer in results}
            if len(results) > 1 and all(answer.parameters is results[0][1].parameters for _, answer in results):
                raise ModelError(SUMMED)
            outcomes = _failures([proxy.cid for proxy, _ in self.asked], failures)
            outcomes |= {proxy.cid: partial(self._read, answer) for proxy, answer in results if proxy.cid in outcomes}
            self._write_round(number, self._model_sent(), outcomes, said, self.connected)
        except Exception as error:
            self.recorder.lose_round(number, reason_of(error))

    def _read(self, answer: Any) -> tuple[dict[str, Any], Any]:
        return self._named(answer.parameters), answer.num_examples

    def _model_sent(self) -> dict[str, Any]:
        """The global model; an error if clients were sent different ones."""
        first, *others = [instructions.parameters for _, instructions in self.asked]
        if not all(other is first or other.tensors == first.tensors for other in others):
            raise ModelError(DIFFERENT_MODELS)
        return self._named(first)

    def _named(self, parameters: Any) -> dict[str, Any]:
        """Parameters as arrays by name."""
        if parameters.tensor_type != "numpy.ndarray":
            raise ModelError(f"parameters of type {parameters.tensor_type!r}, expected arrays of numpy")
        return named(parameters_to_ndarrays(parameters), self.names or None)

    def _keep(self, number: int, aggregated: Any) -> None:
        if aggregated[0] is not None:
            self.after = aggregated[0]
        if self.n_rounds is not None and number >= self.n_rounds:
            self._close()

    def _close(self) -> None:
        if self.after is None:
            raise ModelError("no round was aggregated, so there is no model to close the ledger with")
        self.recorder.close(self._named(self.after))


def _take_name(answer: Any) -> str | None:
    """The name in an answer, which is removed from it."""
    said = answer.metrics.pop(NAME_METRIC, None) if isinstance(answer.metrics, MutableMapping) else None
    return None if said is None else str(said)


def _failures(cids: list[str], failures: Any) -> dict[str, Outcome]:
    """Why each client failed, unless it answered: its own reason if the failure tells whose it is."""
    own = {f[0].cid: str(f[1].status.message) for f in failures if isinstance(f, tuple)}
    others = "; ".join(str(f) for f in failures if not isinstance(f, tuple))
    return {cid: own.get(cid) or others or "no reason given" for cid in cids}
