"""Recording a live federation: no error of the recorder ever reaches the training.

    recorder = record_into(Path("my.ledger"), aggregation="samples")
    recorder.start_round(global_model, asked=chosen)
    recorder.client_model("clinic-a", model, n_samples=120)
    recorder.client_failed("clinic-b", "out of memory")
    recorder.end_round()
    recorder.close(global_model)              # or recorder.release(), if the federation continues another day

The methods are those of `LedgerWriter`, but none of them raises; errors are logged. An answer that cannot be averaged
is quarantined and the others are kept. A round that cannot be recorded becomes a line in the ledger that says why.
Models are state dicts of tensors or numpy arrays, or lists of arrays, which are named 0, 1, ….
"""

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch

from fedworth.errors import FedworthError, LedgerError, ModelError, UsageError
from fedworth.ledger.embeddings import EMBEDDING, EMBEDDINGS, SAMPLES
from fedworth.ledger.ledger import Ledger
from fedworth.ledger.manifest import check_names, is_ledger
from fedworth.ledger.model import Model
from fedworth.ledger.receipts import Receipt, receipts_of
from fedworth.ledger.writer import REAL_WEIGHTS, LedgerWriter, OpenRound
from fedworth.names import Aggregation
from fedworth.recording.identity import Settled
from fedworth.storage import Place
from fedworth.task.rules import Rule
from fedworth.task.task import Task
from fedworth.task.vertical import Vertical

if TYPE_CHECKING:
    from fedworth.pipeline.track import LiveTracking

log = logging.getLogger("fedworth")
T = TypeVar("T")

Arrays = Mapping[str, Any] | Sequence[Any]
"""A state dict: tensors or numpy arrays by name; or a list of them."""


def reason_of(error: Exception) -> str:
    """An error in a sentence: fedworth's own are sentences, others need their kind."""
    return str(error) if isinstance(error, FedworthError) else f"{type(error).__name__}: {error}"


def attempt(action: Callable[..., T], *args: Any) -> T | None:
    """Call `action`; an error is logged and the result is None, so that the training continues."""
    try:
        return action(*args)
    except Exception as error:
        log.error("fedworth: recording failed (%s); training continues", reason_of(error))
        return None


@dataclass
class LiveRecorder:
    """Writes a ledger beside a training, and never raises into it."""

    writer: LedgerWriter
    number: int = 0
    trouble: str | None = None  # why the current round cannot be recorded
    notes: list[str] = field(default_factory=list)
    logged: set[str] = field(default_factory=set)  # whose answers in the current round are not used
    nodes: dict[str, str] = field(default_factory=dict)  # in the current round: from which node a client answers
    contested: list[str] = field(default_factory=list)  # … and whose name a second node claimed
    unreported: list[tuple[int, str]] = field(default_factory=list)  # missing rounds that the ledger lacks yet
    tracking: "LiveTracking | None" = None

    def start_round(self, global_model: Arrays, *, asked: Sequence[str], number: int | None = None) -> None:
        """Begin a round with the model that was sent and the clients that were asked."""
        self.number = self.writer.next_number if number is None else number
        self.trouble, self.notes, self.logged, self.nodes, self.contested = None, [], set(), {}, []
        self._report_missing()
        names = [name for name in dict.fromkeys(asked) if self._is_usable(name)]
        self._attempt(lambda: self.writer.start_round(model_of(global_model), asked=names, number=self.number))

    def client_model(self, name: str, model: Arrays, n_samples: Any) -> None:
        """Write one client's answer, or quarantine it."""
        self.client_answer(name, lambda: (model, n_samples))

    def client_embedding(self, name: str, embedding: Any, samples: Any = None) -> None:
        """Write the embeddings that a client of a vertical federation sent: of all samples, or of these places."""
        self.client_answer(name, lambda: embeddings_of(embedding, samples))

    def client_answer(self, name: str, read: Callable[[], tuple[Arrays, Any]]) -> None:
        """Write the answer that `read` gives, (model, n_samples); an answer that cannot be read is quarantined."""
        self._attempt(lambda: self._client_answer(name, read), of_client=name)

    def client_failed(self, name: str, reason: str) -> None:
        """Report that a client failed."""
        self._attempt(lambda: self.writer.client_failed(name, reason), of_client=name)

    def client_quarantined(self, name: str, reason: str) -> None:
        """Report that a client's answer must not be used."""
        self._attempt(lambda: self.writer.client_quarantined(name, reason), of_client=name)

    def report_claims(self, settled: Settled, heard: Collection[str]) -> None:
        """Note every name that was refused or has moved; an answer under a refused name is quarantined."""
        self.nodes.update({name: node for node, name in settled.names.items()})
        self.contested += settled.conflicts
        for name, why in settled.reasons().items():
            log.warning("fedworth: client %r: %s", name, why)
            self.note(f"client {name!r}: {why}")
            if name in settled.conflicts and name not in heard:
                self.client_quarantined(name, why)

    def note(self, text: str) -> None:
        self.notes.append(text)

    def end_round(self, *, asked: Sequence[str] | None = None) -> None:
        """Commit the round, or report in the ledger that it is missing; `asked` as in `LedgerWriter.end_round`."""
        round_ = self.writer.current
        known: dict[str, Any] = {"notes": self.notes, "nodes": self.nodes, "contested": self.contested}
        self._attempt(lambda: self.writer.end_round(asked=asked, **known))
        if self.trouble is not None:
            self.unreported.append((self.number, self.trouble))
            self._report_missing()
        elif round_ is not None:
            if not round_.answered:
                n_asked, n_failed, n_quarantined = len(round_.asked), len(round_.failed), len(round_.quarantined)
                counts = f"{n_asked} asked, {n_failed} failed, {n_quarantined} quarantined"
                silent = f"{n_asked - n_failed - n_quarantined} silent; it adds nothing to a value"
                log.error("fedworth: round %s HAS NO USABLE ANSWER: %s, %s", self.number, counts, silent)
            if self.tracking is not None:
                attempt(self.tracking.round_ended)

    def lose_round(self, number: int, reason: str) -> None:
        """Give up a round and report it missing."""
        log.error("fedworth: round %s is not recorded: %s", number, reason)
        self.writer.abort_round()
        self.unreported.append((number, reason))
        self._report_missing()

    def values(self, task: Task, **how: Any) -> dict[str, float]:
        """Each client's value after the rounds so far; empty, with an error in the log, if they cannot be valued.

        Args:
            task: What to measure models on.
            **how: `method` and `settings` of the valuation.
        """
        try:
            from fedworth.pipeline.run import live_values  # valuing is not loaded by those who only record

            return live_values(self.writer.folder, task, **how)
        except Exception as error:
            log.error("fedworth: no values after round %s (%s)", self.number, reason_of(error))
            return {}

    def receipts(self) -> dict[str, Receipt]:
        """A receipt for each client whose model the last recorded round keeps, to be sent to the client."""
        return attempt(self._receipts) or {}

    def _receipts(self) -> dict[str, Receipt]:
        ledger = Ledger.open(self.writer.folder)
        by_name = {name: receipts_of(ledger, name, slice(-1, None)) for name in ledger.clients}
        return {name: found[0] for name, found in by_name.items() if found}

    def close(self, final_model: Arrays) -> None:
        """Commit the model after the last round."""
        self._report_missing()
        self.trouble = None
        self._attempt(lambda: self.writer.close(model_of(final_model)))
        self._finish_tracking()

    def release(self) -> None:
        """Stop recording without a final model, so that another recorder can continue the ledger."""
        self._report_missing()
        attempt(self.writer.release)
        self._finish_tracking()

    def _finish_tracking(self) -> None:
        tracking, self.tracking = self.tracking, None
        if tracking is not None:
            attempt(tracking.finish)

    def _client_answer(self, name: str, read: Callable[[], tuple[Arrays, Any]]) -> None:
        try:
            arrays, n_samples = read()
            model = model_of(arrays)
        except ModelError as error:
            self.writer.client_quarantined(name, str(error))
        except (MemoryError, OSError):  # the server's own trouble, not the client's
            raise
        except Exception as error:  # an answer may hold anything
            self.writer.client_quarantined(name, f"its answer cannot be read ({reason_of(error)})")
        else:
            self.writer.client_model(name, model, n_samples)

    def _is_usable(self, name: Any) -> bool:
        try:
            check_names([name], "asked")
        except LedgerError as error:
            self.note(f"{error}; it is left out")
            return False
        return True

    def _attempt(self, action: Callable[[], None], *, of_client: str | None = None) -> None:
        """Run an action of the writer; its first error ends the recording of the round, and is logged."""
        if self.trouble is not None:
            return
        round_ = self.writer.current
        if of_client is not None and round_ is not None and not round_.expects(of_client):
            self.note(f"an answer as client {str(of_client)[:40]!r} is left out: not asked, or not its first")
            return
        try:
            action()
            if round_ is not None:
                self._log_refused(round_)
        except Exception as error:
            self.trouble = reason_of(error)
            log.error("fedworth: round %s is not recorded: %s", self.number, self.trouble)
            self.writer.abort_round()

    def _log_refused(self, round_: OpenRound) -> None:
        """Log at once whose answers are not used, and why."""
        for what, found in (("is quarantined", round_.quarantined), ("failed", round_.failed)):
            for name in found.keys() - self.logged:
                log.warning("fedworth: round %s: %r %s: %s", self.number, name, what, found[name])
            self.logged |= found.keys()

    def _report_missing(self) -> None:
        """Report missing rounds in the ledger; if that fails, it is tried again later."""
        while self.unreported:
            try:
                self.writer.missing_round(*self.unreported[0])
            except Exception as error:
                log.error(
                    "fedworth: the ledger cannot report that round %s is missing: %s", self.unreported[0][0], error
                )
                return
            self.unreported.pop(0)


def record_into(
    folder: Place,
    clients: Sequence[str] = (),
    *,
    aggregation: Aggregation = "samples",
    rule: Rule | None = None,
    vertical: Vertical | None = None,
    real_weights: bool = False,
    settings: Mapping[str, Any] | None = None,
    resume: bool = False,
    track: Any = None,
    task: Task | str | None = None,
) -> LiveRecorder:
    """A recorder for your own training loop; only this call may raise, errors after it are logged.

    Args:
        folder: A folder that is not there yet, or with `resume` a ledger.
        clients: The expected clients; more may join.
        aggregation: How the server averages: by `samples`, or `uniform`.
        rule: How the server combines the models, if it is not the weighted mean.
        vertical: The clients and the head of a vertical federation, whose clients send embeddings of their features.
        real_weights: Clients report any weight above 0 instead of a number of samples.
        settings: What else to write into the ledger's header.
        resume: Continue the ledger of a stopped server.
        track: Where each round's values are shown: `mlflow`, `wandb`, `tensorboard:FOLDER`, `prometheus:FILE`, an
            object with the methods of `fedworth.report.trackers.Tracker`, or several of these.
        task: What values are measured on then: a task, or its place, such as `mytask.py:task`.

    Returns:
        A recorder: `start_round`, `client_model` (`client_embedding` of a vertical federation), `client_failed`,
        `end_round`, `close`.

    Example:
        recorder = fedworth.record_into("new.ledger", ["north", "south"])
    """
    place = Path(folder)
    is_new = not (resume and is_ledger(place))
    tracking = None
    if track is not None:
        from fedworth.pipeline.track import LiveTracking  # valuing is not loaded by those who only record

        tracking = LiveTracking(place, task, track, is_new=is_new)
    if vertical is not None and clients and tuple(clients) != vertical.clients:
        raise UsageError(f"record_into: clients {', '.join(clients)}, but a vertical federation of {vertical.clients}")
    if not is_new:
        ledger = Ledger.open(place)
        is_same = vertical is None or (
            ledger.form is not None and ledger.form.fits(vertical.form) and ledger.clients == vertical.clients
        )
        if not is_same:
            recorded = "models" if ledger.form is None else "embeddings of other clients, widths, samples or labels"
            raise LedgerError(f"{place}: records {recorded}; name another folder")
        return LiveRecorder(LedgerWriter.resume(place, quarantine=True), tracking=tracking)
    seen = {} if rule is None else {"rule": rule.document()}
    weights = {REAL_WEIGHTS: True} if real_weights else {}
    header = {**(settings or {}), **seen, **weights}
    if vertical is not None:
        clients, aggregation, header = vertical.clients, "uniform", {**header, EMBEDDINGS: vertical.form.document()}
    writer = LedgerWriter.create(place, clients, aggregation=aggregation, settings=header, quarantine=True)
    return LiveRecorder(writer, tracking=tracking)


def named(arrays: Arrays, names: Iterable[str] | None = None) -> dict[str, Any]:
    """Arrays by name; those of a list are named 0, 1, …, unless `names` says otherwise."""
    if not isinstance(arrays, list | tuple):
        return dict(arrays)
    known = [str(name) for name in (range(len(arrays)) if names is None else names)]
    if len(known) != len(arrays):
        raise ModelError(f"{len(arrays)} arrays, and {len(known)} names for them; expected as many: names=…")
    return dict(zip(known, arrays, strict=True))


def model_of(arrays: Arrays) -> Model:
    """A state dict of tensors or numpy arrays, or a list of them, as a model."""
    try:
        return {str(name): _tensor(value) for name, value in named(arrays).items()}
    except (TypeError, ValueError, AttributeError, RuntimeError) as error:
        raise ModelError(f"not a state dict of arrays of numbers ({error})") from None


def embeddings_of(embedding: Any, samples: Any = None) -> tuple[dict[str, Any], int]:
    """What a client of a vertical federation sent, and of how many samples: all, or those at these places."""
    places = {} if samples is None else {SAMPLES: np.asarray(samples).astype(np.int64)}
    return {EMBEDDING: embedding, **places}, len(embedding)


def with_difference(start: Mapping[str, Any], difference: Mapping[str, Any]) -> dict[str, Any]:
    """The global model plus the difference that a client sent."""
    # Shapes are compared first, because shapes that broadcast can give a sum a million times as large as either.
    for name, value in difference.items():
        if name not in start:
            raise ModelError(f"a difference for {str(name)[:80]!r}, which the global model does not have")
        found, expected = np.shape(value), np.shape(start[name])
        if tuple(found) != tuple(expected):
            raise ModelError(f"a difference of shape {tuple(found)} for {name!r}, expected {tuple(expected)}")
    return {name: start[name] + value for name, value in difference.items()}


def _tensor(value: Any) -> torch.Tensor:
    if isinstance(value, torch.Tensor):
        return value
    if callable(getattr(value, "numpy", None)):  # an array of Flower's
        value = value.numpy()
    if not isinstance(value, np.ndarray | np.generic):
        raise TypeError(f"found a {type(value).__name__}")
    array = np.asarray(value, order="C")
    return torch.from_numpy(array if array.flags.writeable else array.copy())
