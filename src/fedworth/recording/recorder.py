"""Recording a federation that must not be stopped: what goes wrong is said, and training goes on.

    recorder = record_into(Path("my.ledger"), aggregation="samples")
    recorder.start_round(global_model, asked=chosen)
    recorder.client_model("clinic-a", model, n_samples=120)
    recorder.client_failed("clinic-b", "out of memory")
    recorder.end_round()
    recorder.close(global_model)              # or recorder.release(), if the federation goes on another day

The same verbs as the `LedgerWriter`'s, but none of them raises. An answer that cannot be averaged is quarantined and
the others are kept; a round that cannot be recorded leaves a line in the ledger that says why. Models are state dicts
of tensors, or of numpy arrays.
"""

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedworth.errors import LedgerError, ModelError
from fedworth.ledger.manifest import check_names, is_ledger
from fedworth.ledger.model import Model, checked_count
from fedworth.ledger.writer import REAL_WEIGHTS, LedgerWriter, OpenRound, create_ledger, resume_ledger
from fedworth.names import Aggregation
from fedworth.recording.claims import Settled
from fedworth.recording.guard import attempt
from fedworth.storage import Place
from fedworth.task.rules import Rule
from fedworth.task.task import Task

log = logging.getLogger("fedworth")

Arrays = Mapping[str, Any]
"""A state dict: tensors or numpy arrays by name."""

Valuer = Callable[..., dict[str, float]]
"""What values a ledger that is being written: (folder, task, …) → a value for each client's name."""


@dataclass
class LiveRecorder:
    """A ledger being written beside a training that it never stops."""

    writer: LedgerWriter
    number: int = 0
    trouble: str | None = None  # why the current round cannot be recorded
    notes: list[str] = field(default_factory=list)
    unsaid: list[tuple[int, str]] = field(default_factory=list)  # missing rounds the ledger does not know of yet
    weights: dict[str, float] = field(default_factory=dict)  # of clients that the server weighs by numbers of its own
    valued_by: Valuer | None = None

    def start_round(self, global_model: Arrays, *, asked: Sequence[str], number: int | None = None) -> None:
        """Begin a round: the model that was sent, and to whom."""
        self.number = self.writer.next_number if number is None else number
        self.trouble, self.notes = None, []
        self._say_missing()
        names = [name for name in dict.fromkeys(asked) if self._is_usable(name)]
        self._attempt(lambda: self.writer.start_round(model_of(global_model), asked=names, number=self.number))

    def client_model(self, name: str, model: Arrays, n_samples: Any) -> None:
        """Put one client's answer on disk, or quarantine it."""
        self._attempt(lambda: self._client_model(name, model, n_samples), of_client=name)

    def client_failed(self, name: str, reason: str) -> None:
        """One client said that it could not do its part."""
        self._attempt(lambda: self.writer.client_failed(name, reason), of_client=name)

    def client_quarantined(self, name: str, reason: str) -> None:
        """One client's answer is not to be used."""
        self._attempt(lambda: self.writer.client_quarantined(name, reason), of_client=name)

    def say_claims(self, settled: Settled, heard: Collection[str]) -> None:
        """Note every claim to a name that was turned down or moved; who answered under such a name is quarantined."""
        for name, why in settled.reasons().items():
            log.warning("fedworth: client %r: %s", name, why)
            self.note(f"client {name!r}: {why}")
            if name in settled.conflicts and name not in heard:
                self.client_quarantined(name, why)

    def note(self, text: str) -> None:
        """Something about the round that is of no client's doing."""
        self.notes.append(text)

    def end_round(
        self,
        *,
        asked: Sequence[str] | None = None,
        nodes: Mapping[str, str] | None = None,
        contested: Sequence[str] = (),
    ) -> None:
        """Commit the round, or say in the ledger that it is missing. `asked`: who was, of those announced; `nodes`:
        from which node each client answered; `contested`: whose name a second node claimed."""
        round_ = self.writer.current
        told = {} if round_ is None else dict(round_.quarantined)
        self._attempt(lambda: self.writer.end_round(asked=asked, notes=self.notes, nodes=nodes, contested=contested))
        if self.trouble is not None:
            self.unsaid.append((self.number, self.trouble))
            self._say_missing()
        elif round_ is not None:
            self._tell_end(round_, told)

    def lose_round(self, number: int, reason: str) -> None:
        """Give up a round, for a reason of the caller's."""
        log.error("fedworth: round %s is not recorded: %s", number, reason)
        self.writer.abort_round()
        self.unsaid.append((number, reason))
        self._say_missing()

    def values(self, task: Task, **how: Any) -> dict[str, float]:
        """What each client is worth after the rounds so far; clients without a value are not in it.

        `how`: method="fedsv" (default), "comfedsv" or any other, settings=ValuationSettings(…). If they cannot be valued,
        nobody is in it, and the log says why: no error reaches the training.
        """
        try:
            if self.valued_by is None:
                raise LedgerError("this recorder was made without the means to value; use fedworth.flower.record")
            return self.valued_by(self.writer.folder, task, **how)
        except Exception as error:
            log.error("fedworth: no values after round %s (%s: %s)", self.number, type(error).__name__, error)
            return {}

    def weigh(self, weights: Mapping[str, float]) -> None:
        """Keep the weights that the server gives these clients from now on; one that cannot be used is left out."""
        given: dict[str, Any] = attempt(lambda: {**weights}) or {}
        for name, weight in given.items():
            try:
                self.weights[name] = checked_count(weight, self.writer.weight_kind, f"weight of client {name!r}")
            except Exception as error:  # a server may give anything
                log.error("fedworth: %s; for weights that are not whole: record(…, real_weights=True)", error)

    def close(self, final_model: Arrays) -> None:
        """Commit the model after the last round."""
        self._say_missing()
        self.trouble = None
        self._attempt(lambda: self.writer.close(model_of(final_model)))

    def release(self) -> None:
        """Stop recording without a final model, so that another recorder can go on with the ledger."""
        self._say_missing()
        try:
            self.writer.release()
        except Exception as error:
            log.error("fedworth: %s", error)

    def _client_model(self, name: str, model: Arrays, n_samples: Any) -> None:
        try:
            self.writer.client_model(name, model_of(model), n_samples)
        except ModelError as error:
            self.writer.client_quarantined(name, str(error))

    def _is_usable(self, name: Any) -> bool:
        try:
            check_names([name], "asked")
        except LedgerError as error:
            self.note(f"{error}; it is left out")
            return False
        return True

    def _attempt(self, action: Callable[[], None], *, of_client: str | None = None) -> None:
        """Nothing that goes wrong in here reaches the training; the first trouble ends the recording of the round."""
        if self.trouble is not None:
            return
        round_ = self.writer.current
        if of_client is not None and round_ is not None and not round_.expects(of_client):
            self.note(f"an answer as client {str(of_client)[:40]!r} is left out: not asked, or not its first")
            return
        try:
            action()
            if of_client is not None and round_ is not None:
                self._tell_fate(of_client, round_)
        except Exception as error:
            self.trouble = str(error) or type(error).__name__
            log.error("fedworth: round %s is not recorded: %s", self.number, self.trouble)
            self.writer.abort_round()

    def _tell_end(self, round_: OpenRound, told: Mapping[str, str]) -> None:
        """Say who was refused as the models were held against each other, and loudly if nobody is left."""
        for name in round_.quarantined:
            if name not in told:
                self._tell_fate(name, round_)
        if not round_.answered:
            log.error("fedworth: round %s HAS NO USABLE ANSWER: %s", self.number, _fates(round_))

    def _tell_fate(self, name: str, round_: OpenRound) -> None:
        """Say at once that a client's answer is not used, and why."""
        if name in round_.quarantined:
            log.warning("fedworth: round %s: %r is quarantined: %s", self.number, name, round_.quarantined[name])
        elif name in round_.failed:
            log.warning("fedworth: round %s: %r failed: %s", self.number, name, round_.failed[name])

    def _say_missing(self) -> None:
        """Put into the ledger what it does not know of yet; if even that fails, try again later."""
        while self.unsaid:
            try:
                self.writer.missing_round(*self.unsaid[0])
            except Exception as error:
                log.error("fedworth: the ledger cannot say that round %s is missing: %s", self.unsaid[0][0], error)
                return
            self.unsaid.pop(0)


def record_into(
    folder: Place,
    clients: Sequence[str] = (),
    *,
    aggregation: Aggregation = "samples",
    rule: Rule | None = None,
    real_weights: bool = False,
    settings: Mapping[str, Any] | None = None,
    resume: bool = False,
) -> LiveRecorder:
    """A recorder for a training loop of your own. Only this call may raise: what goes wrong later never reaches the
    training.

    Args:
        folder: A folder that is not there yet, or with `resume` a ledger.
        clients: Who is expected; more may join.
        aggregation: How the server averages: by `samples`, or `uniform`.
        rule: What the server makes of its clients' models, if it is not the weighted mean.
        real_weights: Clients report any weight above 0 instead of a number of samples.
        settings: What else to write into the ledger's head.
        resume: Go on with the ledger that a stopped server left.

    Returns:
        A recorder: `start_round`, `client_model`, `client_failed`, `end_round`, `close`.

    Example:
        recorder = fedworth.record_into("new.ledger", ["north", "south"])
    """
    place = Path(folder)
    if resume and is_ledger(place):
        return LiveRecorder(resume_ledger(place, quarantine=True))
    seen = {} if rule is None else {"rule": rule.document()}
    weights = {REAL_WEIGHTS: True} if real_weights else {}
    header = {**(settings or {}), **seen, **weights}
    writer = create_ledger(place, clients, aggregation=aggregation, settings=header, quarantine=True)
    return LiveRecorder(writer)


def model_of(arrays: Arrays) -> Model:
    """A state dict of tensors or numpy arrays as a model; what is no array of numbers is refused."""
    try:
        return {str(name): _tensor(value) for name, value in arrays.items()}
    except (TypeError, ValueError, AttributeError, RuntimeError) as error:
        raise ModelError(f"not a state dict of arrays of numbers ({error})") from None


def with_difference(start: Arrays, difference: Arrays) -> dict[str, Any]:
    """w^t + the difference that a client sent; names and shapes are compared before any arithmetic, since a sum of two
    shapes that merely broadcast can be a million times as large as either."""
    for name, value in difference.items():
        if name not in start:
            raise ModelError(f"a difference for {str(name)[:80]!r}, which the global model does not have")
        found, expected = np.shape(value), np.shape(start[name])
        if tuple(found) != tuple(expected):
            raise ModelError(f"a difference of shape {tuple(found)} for {name!r}, expected {tuple(expected)}")
    return {name: start[name] + value for name, value in difference.items()}


def _fates(round_: OpenRound) -> str:
    """How many did what in a round that nobody can be valued by."""
    n_silent = len(round_.asked) - len(round_.failed) - len(round_.quarantined)
    counts = f"{len(round_.asked)} asked, {len(round_.failed)} failed, {len(round_.quarantined)} quarantined"
    return f"{counts}, {n_silent} silent; it adds nothing to a value"


def _tensor(value: Any) -> torch.Tensor:
    if isinstance(value, torch.Tensor):
        return value
    if not isinstance(value, np.ndarray | np.generic):
        raise TypeError(f"found a {type(value).__name__}")
    array = np.asarray(value, order="C")
    return torch.from_numpy(array if array.flags.writeable else array.copy())
