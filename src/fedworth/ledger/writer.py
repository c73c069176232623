"""Writing a ledger: one round after the other, each whole or not at all.

A round's file is written and flushed under a partial name, then its line is appended to the manifest: the line commits
the round; then the file takes its name. After a kill, `resume_ledger` drops what no line speaks of. An answer that
cannot be averaged is an error; with `quarantine=True` it is quarantined and the round goes on without it.

A writer holds the ledger's lock from `create_ledger` or `resume_ledger` until `close` or `release`: a second one gets
an error that names the first, and changes nothing.
"""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedworth.errors import LedgerError, ModelError
from fedworth.ledger.counts import Counting
from fedworth.ledger.exposure import refuse_exposed
from fedworth.ledger.ledger import open_ledger
from fedworth.ledger.lock import LedgerLock, locked
from fedworth.ledger.manifest import (
    FINAL,
    FORMAT,
    HEADER,
    MANIFEST,
    ClosedLine,
    Line,
    MissingRound,
    check_names,
    line_bytes,
    read_header,
)
from fedworth.ledger.model import Model, check_finite
from fedworth.ledger.model_file import file_sha256, start_model_file
from fedworth.ledger.repair import append_line, clear_away, cut_unfinished_line, is_settled
from fedworth.ledger.round_writer import Answer, OpenRound, open_round, shown
from fedworth.names import Aggregation, checked_name
from fedworth.storage import Place, json_bytes, make_folder, refuse_existing, write_whole

__all__ = ["Answer", "LedgerWriter", "create_ledger", "resume_ledger"]

REAL_WEIGHTS = "real_weights"
"""The setting of a ledger whose server weighs clients by something that is no number of samples."""


@dataclass
class LedgerWriter:
    """An open ledger: rounds are started, filled and ended one after the other, then the ledger is closed.

    Example:
        writer = fedworth.create_ledger("new.ledger", aggregation="samples")
        writer.start_round(model, asked=["north"])
        writer.client_model("north", answer, n_samples=120)      # as each arrives: it goes to disk and is not kept
        writer.end_round()
        writer.close(model)
    """

    folder: Path
    aggregation: Aggregation
    clients: list[str]
    chain: str
    n_rounds: int
    next_number: int
    manifest_size: int
    lock: LedgerLock
    is_closed: bool = False
    quarantine: bool = False
    real_weights: bool = False
    current: OpenRound | None = None
    unsettled: list[Path] = field(default_factory=list)  # committed, but still under their partial names

    @property
    def counting(self) -> Counting:
        """What a client may report as its number of samples: see `counts`."""
        return "any" if not self.quarantine else "weights" if self.real_weights else "samples"

    def start_round(self, global_model: Model, *, asked: Sequence[str], number: int | None = None) -> None:
        """Begin a round: the model that was sent, and to whom. `number` is the federation's own for the round."""
        self.abort_round()
        self._check_writable()
        self._settle([])
        own = self.next_number if number is None else number
        with self._told("its models"):
            self.current = open_round(self.folder, self.n_rounds, own, global_model, self.clients, asked)

    def client_model(self, name: str, model: Model, n_samples: float) -> None:
        """Put the answer of one client on disk; with `quarantine`, what cannot be averaged is quarantined."""
        round_ = self._open()
        try:
            with self._told(f"the model of {name!r}"):
                round_.answer(name, Answer(model, n_samples), self.counting)
        except ModelError as error:
            if not self.quarantine:
                raise
            round_.quarantine(name, str(error))

    def client_failed(self, name: str, reason: str) -> None:
        """One client said that it could not do its part."""
        self._open().fail(name, reason)

    def client_quarantined(self, name: str, reason: str) -> None:
        """One client's answer is not to be used, and why."""
        self._open().quarantine(name, reason)

    def end_round(
        self,
        *,
        asked: Sequence[str] | None = None,
        participants: Sequence[str] | None = None,
        apart: Mapping[str, Answer] | None = None,
        notes: Sequence[str] = (),
        nodes: Mapping[str, str] | None = None,
        contested: Sequence[str] = (),
    ) -> None:
        """Commit the round: who was asked after all (default: all announced), whose models were averaged (default: all
        that answered), and, kept apart, models of absent clients for the ground truth. `nodes`: from which node each
        client answered, if that is known; `contested`: whose name a second node claimed."""
        round_ = self._open()
        round_.nodes, round_.contested = nodes or {}, contested
        round_.asked = round_.asked if asked is None else list(asked)
        try:
            with self._told("its models"):
                round_.hold_against_each_other(quarantine=self.quarantine)
                round_.keep_apart(apart or {})
                self._append(round_.finish(participants, notes))
        except Exception:
            self.abort_round()
            raise
        except BaseException:  # interrupted: the line may be on disk or not, so only `resume_ledger` can tell
            self.current = None
            round_.leave()
            self.lock.release()
            raise
        self.clients += round_.joined
        self.n_rounds, self.next_number, self.current = self.n_rounds + 1, round_.number + 1, None
        self._settle(round_.files)

    def abort_round(self) -> None:
        """Forget a round that was started; nothing of it stays."""
        if self.current is not None:
            self.current.abandon()
            self.current = None

    def missing_round(self, number: int, reason: str) -> None:
        """Say in the ledger that a round of the federation is not in it."""
        self.abort_round()
        self._check_writable()
        with self._told("that it is missing"):
            self._append(MissingRound(number, shown(reason)))
        self.next_number = number + 1

    def record_round(
        self,
        global_model: Model,
        answers: Mapping[str, Answer],
        *,
        asked: Sequence[str] | None = None,
        participants: Sequence[str] | None = None,
        apart: Mapping[str, Answer] | None = None,
    ) -> None:
        """Commit a round of which everything is at hand: who was asked (default: who answered), who answered."""
        try:
            self.start_round(global_model, asked=list(answers if asked is None else asked))
            for name, answer in answers.items():
                self.client_model(name, answer.model, answer.n_samples)
            self.end_round(participants=participants, apart=apart)
        finally:
            self.abort_round()

    def close(self, final_model: Model) -> None:
        """Commit the model after the last round; nothing can be recorded after that."""
        self.abort_round()
        self._check_writable()
        check_finite(final_model, f"{self.folder}, final model")
        with self._told("the final model"):
            file = start_model_file(self.folder / FINAL, final_model, 1)
            try:
                file.add("global", final_model)
                self._append(ClosedLine(FINAL, file.finish()))
            except Exception:
                file.abandon()
                raise
            except BaseException:
                file.leave()
                self.lock.release()
                raise
        self.is_closed = True
        self._settle([self.folder / FINAL])
        self.release()

    def release(self) -> None:
        """Stop writing and let another recorder go on with the ledger; an open round is forgotten."""
        self.abort_round()
        if self.lock.is_held:
            self._settle([])
        self.lock.release()

    def _open(self) -> OpenRound:
        if self.current is None:
            raise LedgerError(f"{self.folder}, round {self.n_rounds}: not started; call start_round first")
        return self.current

    def _check_writable(self) -> None:
        if self.is_closed:
            raise LedgerError(f"{self.folder}: the ledger is closed; record into a new one")
        if not self.lock.is_held:
            found = "this recorder has let go of it, or another process has taken its lock"
            raise LedgerError(f"{self.folder}: {found}; go on with resume_ledger; nothing was written")

    def _append(self, line: Line) -> None:
        """Commit a line: all of it goes to the device, or nothing of it stays."""
        self._check_writable()
        data, chain = line_bytes(line, self.chain)
        append_line(self.folder / MANIFEST, data, self.manifest_size)
        self.chain, self.manifest_size = chain, self.manifest_size + len(data)

    def _settle(self, files: Sequence[Path]) -> None:
        """Give committed files their names; what cannot have it yet is said, and tried again before the next round."""
        self.unsettled = [path for path in [*self.unsettled, *files] if not is_settled(path)]

    @contextlib.contextmanager
    def _told(self, what: str) -> Iterator[None]:
        """What the device refuses, said in words; the round is given up, those before it are as they were."""
        try:
            yield
        except OSError as error:
            self.abort_round()
            found = f"{what} could not be written ({error.strerror or error})"
            where = f"{self.folder}, round {self.n_rounds}"
            raise LedgerError(f"{where}: {found}; the {self.n_rounds} rounds before it are intact") from error


def create_ledger(
    folder: Place,
    clients: Sequence[str] = (),
    *,
    aggregation: Aggregation,
    settings: Mapping[str, Any] | None = None,
    quarantine: bool = False,
) -> LedgerWriter:
    """A new ledger at `folder` for these `clients` (more may join); `aggregation` is how the server averages.
    `settings` are kept in its header; with `quarantine` an unusable answer is set aside instead of being an error.

    Example:
        writer = fedworth.create_ledger("new.ledger", ["north", "south"], aggregation="samples")
    """
    checked_name("aggregation", aggregation)
    folder = Path(folder)
    check_names(list(clients), str(folder))
    refuse_existing(folder / HEADER, "a ledger")
    header = {"format": FORMAT, "clients": list(clients), "aggregation": aggregation, "settings": dict(settings or {})}
    try:
        make_folder(folder)
    except OSError as error:
        raise LedgerError(f"{folder}: a ledger cannot be made here ({error.strerror or error})") from error
    refuse_exposed(folder)
    with locked(folder) as lock:
        _begin(folder, header)
        chain = file_sha256(folder / HEADER)
        writer = LedgerWriter(folder, aggregation, list(clients), chain, 0, 0, 0, lock, quarantine=quarantine)
        writer.real_weights = bool((settings or {}).get(REAL_WEIGHTS))
        return writer


def resume_ledger(folder: Place, *, quarantine: bool = False) -> LedgerWriter:
    """The ledger at `folder`, ready for its next round, what was never committed cleared away; `quarantine` as above.

    Example:
        writer = fedworth.resume_ledger("my.ledger")
    """
    folder = Path(folder)
    read_header(folder)  # what is no ledger is not locked either
    refuse_exposed(folder)
    with locked(folder) as lock:
        ledger = open_ledger(folder)
        try:
            size = cut_unfinished_line(folder)
            clear_away(ledger)
        except OSError as error:
            raise LedgerError(f"{folder}: cannot be resumed ({error.strerror or error})") from error
        clients, following = list(ledger.clients), ledger.next_number
        writer = LedgerWriter(folder, ledger.aggregation, clients, ledger.chain, ledger.n_rounds, following, size, lock)
        writer.is_closed, writer.quarantine = ledger.is_closed, quarantine
        writer.real_weights = bool(ledger.settings.get(REAL_WEIGHTS))
        if writer.is_closed:
            lock.release()  # there is nothing left to write
        return writer


def _begin(folder: Path, header: Mapping[str, Any]) -> None:
    """The header of a new ledger, and an empty manifest."""
    refuse_existing(folder / HEADER, "a ledger")
    try:
        if (folder / MANIFEST).exists() and (folder / MANIFEST).stat().st_size:
            raise LedgerError(f"{folder}: rounds without a {HEADER}; restore it, or name another folder")
        write_whole(folder / MANIFEST, b"")
        write_whole(folder / HEADER, json_bytes(header))
    except OSError as error:
        raise LedgerError(f"{folder}: a ledger cannot be made here ({error.strerror or error})") from error
