"""Writing a ledger: round after round, each completely or not at all.

A round's models go to disk as they arrive, into a file with a partial name. When the round ends, the file is flushed,
its line is appended to the manifest, which commits the round, and the file gets its final name. After a kill,
`LedgerWriter.resume` removes what no line commits. An answer that cannot be averaged is an error; with
`quarantine=True` it is quarantined, and the round continues without it.

A writer holds the ledger's lock from `create` or `resume` until `close` or `release`. A second writer gets an error
that names the first, and changes nothing.
"""

import contextlib
import logging
import os
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from fedworth.errors import FedworthError, LedgerError, ModelError
from fedworth.ledger.embeddings import EmbeddingForm, form_of
from fedworth.ledger.ledger import Ledger
from fedworth.ledger.lock import LedgerLock, locked
from fedworth.ledger.manifest import (
    FINAL,
    FORMAT,
    HEADER,
    MANIFEST,
    ClosedLine,
    Line,
    MissingRound,
    RoundEntry,
    check_names,
    line_bytes,
    read_header,
    read_manifest,
)
from fedworth.ledger.model import Model, WeightKind, check_alike, check_finite, checked_count, out_of_proportion
from fedworth.ledger.model_file import ModelFileWriter, file_sha256, give_final_name, partial_path, start_model_file
from fedworth.names import Aggregation, checked_name
from fedworth.storage import Place, json_bytes, make_folder, refuse_existing, write_whole

__all__ = ["Answer", "LedgerWriter"]

REAL_WEIGHTS = "real_weights"
"""The setting of a ledger whose server weights clients by something else than numbers of samples."""

MAX_REASON_LENGTH = 300

log = logging.getLogger("fedworth")
T = TypeVar("T")


@dataclass(frozen=True)
class Answer:
    """What one client sent back: its model and how many samples it was trained on.

    Args:
        model: Its tensors by name.
        n_samples: On how many samples it was trained.

    Example:
        answer = fedworth.Answer({"weight": torch.zeros(2)}, 120)
    """

    model: Model
    n_samples: float


class OpenRound:
    """One round between its start and its commit."""

    def __init__(
        self,
        folder: Path,
        round_index: int,
        number: int,
        model: Model,
        clients: list[str],
        asked: Sequence[str],
        form: EmbeddingForm | None = None,
    ) -> None:
        """Begin a round and write its global model; `form` is that of the answers in a vertical federation."""
        self.folder, self.round_index, self.number = folder, round_index, number
        self.global_model, self.form = model, form
        self.where, self.file_name = f"{folder}, round {number}", f"{round_index:06d}.safetensors"
        self.largest_global = check_finite(model, f"{self.where}, global model")  # absolute value
        self.asked = list(dict.fromkeys(asked))  # everyone announced, unless `end_round` corrects it
        check_names(self.asked, self.where)
        self.n_known = len(clients)
        self.positions = {name: k for k, name in enumerate(dict.fromkeys([*clients, *self.asked]))}
        self.answered: dict[str, float] = {}
        self.failed: dict[str, str] = {}
        self.quarantined: dict[str, str] = {}
        self.apart: dict[str, float] = {}
        self.largest: dict[str, float] = {}  # absolute value in each answer
        like = model if form is None else form.like(model)
        self.file = start_model_file(folder / "rounds" / self.file_name, like, 1 + len(self.asked))
        self.files = [self.file]  # and that of the models kept apart, if there are any
        try:
            self.file.add("global", model)
        except BaseException:
            self.file.remove()
            raise

    @property
    def joined(self) -> list[str]:
        """New clients, in the order in which they were announced."""
        return [*self.positions][self.n_known :]

    def expects(self, name: str) -> bool:
        """Whether this client was asked and has not been reported yet."""
        return name in self.asked and not (name in self.answered or name in self.failed or name in self.quarantined)

    def check_expected(self, name: str) -> None:
        """Refuse a report about a client that was not asked, or was reported already."""
        if not self.expects(name):
            found = "is reported twice" if name in self.asked else "was not asked; name it in start_round(asked=…)"
            raise LedgerError(f"{self.where}: client {name!r} {found}")

    def answer(self, name: str, model: Model, n_samples: float, kind: WeightKind) -> None:
        """Write one client's model, if it can be averaged."""
        self.check_expected(name)
        count = checked_count(n_samples, kind, f"{self.where}, client {name!r}")
        self.largest[name] = self._write(self.file, "client", name, model)
        self.answered[name] = count

    def quarantine(self, name: str, reason: str) -> None:
        """Exclude one client's answer."""
        self.check_expected(name)
        self.quarantined[name] = one_line(reason.removeprefix(f"{self.where}, client {name!r}: "))

    def keep_apart(self, answers: Mapping[str, Answer]) -> None:
        """Write the models of absent clients into a file of their own."""
        check_names([*answers], self.where)
        if not answers:
            return
        file = start_model_file(self.folder / "apart" / self.file_name, self.global_model, len(answers))
        self.files.append(file)
        for name, answer in answers.items():
            self.positions.setdefault(name, len(self.positions))
            self.apart[name] = checked_count(answer.n_samples, "any", f"{self.where}, client {name!r}")
            self._write(file, "apart", name, answer.model)

    def compare_clients(self, *, quarantine: bool) -> None:
        """Quarantine models so large that an average would lose the others; their bytes stay in the file, unread."""
        for name, reason in out_of_proportion(self.largest, self.largest_global).items():
            if not quarantine:
                raise ModelError(f"{self.where}, client {name!r}: {reason}")
            position = self._position(name)
            self.file.rename(f"client/{position}/", f"quarantined/{position}/")
            del self.answered[name]
            self.quarantined[name] = one_line(reason)

    def finish(
        self, participants: Sequence[str] | None, notes: Sequence[str], nodes: Mapping[str, str], contested: set[str]
    ) -> RoundEntry:
        """Flush the files and make the round's line."""
        averaged = [*self.answered] if participants is None else participants
        sha256, *apart_sha256 = [file.finish() for file in self.files]
        return RoundEntry(
            round_index=self.round_index,
            number=self.number,
            file=f"rounds/{self.file_name}",
            sha256=sha256,
            apart_file=f"apart/{self.file_name}" if apart_sha256 else None,
            apart_sha256=apart_sha256[0] if apart_sha256 else None,
            joined=tuple(self.joined),
            asked=self._positions(self.asked),
            answered=self._positions(self.answered),
            participants=self._positions(name for name in averaged if name not in self.quarantined),
            sample_counts=self._by_position(self.answered),
            failed=self._positions(self.failed),
            failure_reasons=self._by_position(self.failed),
            quarantined=self._positions(self.quarantined),
            quarantine_reasons=self._by_position(self.quarantined),
            apart=self._positions(self.apart),
            apart_sample_counts=self._by_position(self.apart),
            notes=tuple(one_line(note) for note in notes),
            nodes=self._by_position({name: nodes.get(name, "") for name in self.answered}) if nodes else (),
            contested=self._positions(contested.intersection(self.asked)),
        )

    def _write(self, file: ModelFileWriter, kind: str, name: str, model: Model) -> float:
        """Check and write a model; any error about its content is a ModelError, which costs only this client."""
        where, position = f"{self.where}, client {name!r}", self._position(name)
        try:
            if self.form is None:
                largest = check_alike(model, self.global_model, where)
            else:
                largest = self.form.check(model, position, where)
            file.add(f"{kind}/{position}", model)
        except (FedworthError, OSError):
            raise
        except Exception as error:  # torch has many kinds of tensors, each with errors of its own
            raise ModelError(f"{where}: not readable as numbers ({type(error).__name__}: {error})") from error
        return largest

    def _position(self, name: str) -> int:
        if name not in self.positions:
            raise LedgerError(f"{self.where}: client {name!r} was not asked")
        return self.positions[name]

    def _positions(self, names: Iterable[str]) -> tuple[int, ...]:
        return tuple(sorted(self._position(name) for name in names))

    def _by_position(self, values: Mapping[str, T]) -> tuple[T, ...]:
        return tuple(values[name] for name in sorted(values, key=self._position))


@dataclass
class LedgerWriter:
    """An open ledger: rounds are started, filled and ended one after the other, then the ledger is closed.

    Example:
        writer = fedworth.LedgerWriter.create("new.ledger", aggregation="samples")
        writer.start_round(model, asked=["north"])
        writer.client_model("north", answer, n_samples=120)      # goes to disk as it arrives
        writer.end_round()
        writer.close(model)
    """

    folder: Path
    aggregation: Aggregation
    clients: list[str]
    chain: str
    lock: LedgerLock
    n_rounds: int = 0
    next_number: int = 0
    manifest_size: int = 0  # bytes
    is_closed: bool = False
    quarantine: bool = False
    real_weights: bool = False
    form: EmbeddingForm | None = None  # of the answers in a vertical federation
    current: OpenRound | None = None
    unsettled: list[Path] = field(default_factory=list)  # committed files that still have their partial names

    @staticmethod
    def create(
        folder: Place,
        clients: Sequence[str] = (),
        *,
        aggregation: Aggregation,
        settings: Mapping[str, Any] | None = None,
        quarantine: bool = False,
    ) -> "LedgerWriter":
        """Create a ledger.

        Args:
            folder: Where to create it.
            clients: The expected clients; more may join.
            aggregation: How the server averages: by `samples`, or `uniform`.
            settings: What else to keep in the header.
            quarantine: Exclude answers that cannot be averaged, instead of raising an error.

        Example:
            writer = fedworth.LedgerWriter.create("new.ledger", ["north", "south"], aggregation="samples")
        """
        checked_name("aggregation", Aggregation, aggregation)
        folder, kept = Path(folder), dict(settings or {})
        check_names(list(clients), str(folder))
        form = form_of(kept)
        if form is not None and len(form.widths) != len(clients):
            raise LedgerError(
                f"{folder}: {len(clients)} clients, but embeddings of {len(form.widths)}; expected one of each"
            )
        refuse_existing(folder / HEADER, "a ledger")
        header = {"format": FORMAT, "clients": list(clients), "aggregation": aggregation, "settings": kept}
        try:
            make_folder(folder)
            _refuse_exposed(folder)
            with locked(folder) as lock:
                refuse_existing(folder / HEADER, "a ledger")  # made by another process meanwhile
                if (folder / MANIFEST).exists() and (folder / MANIFEST).stat().st_size:
                    raise LedgerError(f"{folder}: has rounds but no {HEADER}; restore it, or choose another folder")
                write_whole(folder / MANIFEST, b"", is_locked=True)
                write_whole(folder / HEADER, json_bytes(header), is_locked=True)
                chain, is_real = file_sha256(folder / HEADER), bool(kept.get(REAL_WEIGHTS))
                return LedgerWriter(
                    folder,
                    aggregation,
                    list(clients),
                    chain,
                    lock,
                    quarantine=quarantine,
                    real_weights=is_real,
                    form=form,
                )
        except OSError as error:
            raise LedgerError(f"{folder}: a ledger cannot be made here ({error.strerror or error})") from error

    @staticmethod
    def resume(folder: Place, *, quarantine: bool = False) -> "LedgerWriter":
        """Open a ledger for its next round, after removing what was never committed.

        Args:
            folder: The ledger's folder.
            quarantine: Exclude answers that cannot be averaged, instead of raising an error.

        Example:
            writer = fedworth.LedgerWriter.resume("my.ledger")
        """
        folder = Path(folder)
        read_header(folder)  # a folder without a ledger is not locked
        _refuse_exposed(folder)
        with locked(folder) as lock:
            ledger = Ledger.open(folder)
            try:
                size = _repair(ledger)
            except OSError as error:
                raise LedgerError(f"{folder}: cannot be resumed ({error.strerror or error})") from error
            if ledger.is_closed:
                lock.release()  # nothing can be written any more
            return LedgerWriter(
                folder=folder,
                aggregation=ledger.aggregation,
                clients=list(ledger.clients),
                chain=ledger.chain,
                lock=lock,
                n_rounds=ledger.n_rounds,
                next_number=ledger.next_number,
                manifest_size=size,
                is_closed=ledger.is_closed,
                quarantine=quarantine,
                real_weights=bool(ledger.settings.get(REAL_WEIGHTS)),
                form=ledger.form,
            )

    def start_round(self, global_model: Model, *, asked: Sequence[str], number: int | None = None) -> None:
        """Begin a round with the model that was sent and the clients that were asked.

        `number` is the federation's own number of the round.
        """
        self.abort_round()
        self._check_writable()
        self._settle([])
        own = self.next_number if number is None else number
        with self._device_errors("its models"):
            self.current = OpenRound(
                self.folder, self.n_rounds, own, self._model(global_model), self.clients, asked, self.form
            )

    def client_model(self, name: str, model: Model, n_samples: float) -> None:
        """Write the answer of one client; with `quarantine`, an answer that cannot be averaged is quarantined."""
        round_ = self._open_round()
        kind: WeightKind = "any" if not self.quarantine else "weights" if self.real_weights else "samples"
        try:
            with self._device_errors(f"the model of {name!r}"):
                round_.answer(name, model, n_samples, kind)
        except ModelError as error:
            if not self.quarantine:
                raise
            round_.quarantine(name, str(error))

    def client_failed(self, name: str, reason: str) -> None:
        """Report that a client failed."""
        round_ = self._open_round()
        round_.check_expected(name)
        round_.failed[name] = one_line(reason)

    def client_quarantined(self, name: str, reason: str) -> None:
        """Report that a client's answer must not be used."""
        self._open_round().quarantine(name, reason)

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
        """Commit the round.

        Args:
            asked: Who was asked in the end; default: everyone announced.
            participants: Whose models were averaged; default: everyone who answered.
            apart: Models of absent clients, kept for the ground truth.
            notes: Remarks about the round.
            nodes: From which node each client answered.
            contested: Clients whose name a second node claimed.
        """
        round_ = self._open_round()
        round_.asked = round_.asked if asked is None else list(asked)
        with self._committing("its models", round_.files):
            round_.compare_clients(quarantine=self.quarantine)
            round_.keep_apart(apart or {})
            self._append(round_.finish(participants, notes, nodes or {}, set(contested)))
        self.clients += round_.joined
        self.n_rounds, self.next_number, self.current = self.n_rounds + 1, round_.number + 1, None
        self._settle([file.path for file in round_.files])

    def abort_round(self) -> None:
        """Drop a round that was started, and its files."""
        if self.current is not None:
            for file in self.current.files:
                file.remove()
            self.current = None

    def missing_round(self, number: int, reason: str) -> None:
        """Commit that a round of the federation is not in the ledger."""
        self.abort_round()
        self._check_writable()
        with self._device_errors("that it is missing"):
            self._append(MissingRound(number, one_line(reason)))
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
        """Commit a whole round at once; by default the clients that answered are those that were asked."""
        try:
            self.start_round(global_model, asked=list(answers if asked is None else asked))
            for name, answer in answers.items():
                self.client_model(name, answer.model, answer.n_samples)
            self.end_round(participants=participants, apart=apart)
        finally:
            self.abort_round()

    def close(self, final_model: Model) -> None:
        """Commit the model after the last round; after that nothing can be recorded."""
        self.abort_round()
        self._check_writable()
        final_model = self._model(final_model)
        check_finite(final_model, f"{self.folder}, final model")
        files: list[ModelFileWriter] = []
        with self._committing("the final model", files):
            files.append(start_model_file(self.folder / FINAL, final_model, 1))
            files[0].add("global", final_model)
            self._append(ClosedLine(FINAL, files[0].finish()))
        self.is_closed = True
        self._settle([self.folder / FINAL])
        self.release()

    def release(self) -> None:
        """Stop writing, drop an open round, and let another recorder continue the ledger."""
        self.abort_round()
        if self.lock.is_held:
            self._settle([])
        self.lock.release()

    def _model(self, model: Model) -> Model:
        """The server's model as it is recorded: the head of a vertical federation may have no parameters."""
        return model if self.form is None else self.form.head(model)

    def _open_round(self) -> OpenRound:
        if self.current is None:
            raise LedgerError(f"{self.folder}, round {self.next_number}: not started; call start_round first")
        return self.current

    def _check_writable(self) -> None:
        if self.is_closed:
            raise LedgerError(f"{self.folder}: the ledger is closed; record into a new one")
        if not self.lock.is_held:
            found = "this recorder has released it, or another process has taken its lock"
            raise LedgerError(f"{self.folder}: {found}; continue with LedgerWriter.resume; nothing was written")

    def _append(self, line: Line) -> None:
        """Commit a line: all of it is on the device, or the manifest is as it was."""
        self._check_writable()
        data, chain = line_bytes(line, self.chain)
        path, size = self.folder / MANIFEST, self.manifest_size
        descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW)
        try:
            if os.fstat(descriptor).st_size != size:
                raise LedgerError(f"{path}: was written by someone else; a ledger has one recorder at a time")
            try:
                if os.pwrite(descriptor, data, size) != len(data):
                    raise OSError("the device is full")
                os.fsync(descriptor)
            except BaseException:  # an interrupt as well
                os.ftruncate(descriptor, size)
                raise
        finally:
            with contextlib.suppress(OSError):  # the line was flushed, so an error in closing changes nothing
                os.close(descriptor)
        self.chain, self.manifest_size = chain, size + len(data)

    def _settle(self, files: Sequence[Path]) -> None:
        """Give committed files their final names; one that cannot be renamed is tried again before the next round."""
        pending, self.unsettled = [*self.unsettled, *files], []
        for path in pending:
            try:
                give_final_name(path)
            except OSError as error:
                if not partial_path(path).exists():
                    raise LedgerError(f"{path}: was committed and is gone; somebody removed it: restore it") from error
                reason = error.strerror or error
                log.error("fedworth: %s: committed and complete, but still has its partial name (%s)", path, reason)
                self.unsettled.append(path)

    @contextlib.contextmanager
    def _committing(self, what: str, files: list[ModelFileWriter]) -> Iterator[None]:
        """Remove files that an error keeps from being committed."""
        try:
            with self._device_errors(what):
                yield
        except Exception:
            self.current = None
            for file in files:
                file.remove()
            raise
        except BaseException:  # interrupted: whether the line is on disk, only `LedgerWriter.resume` can tell
            self.current = None
            for file in files:
                file.close()
            self.lock.release()
            raise

    @contextlib.contextmanager
    def _device_errors(self, what: str) -> Iterator[None]:
        """Turn an error of the device into a LedgerError, and drop the round."""
        try:
            yield
        except OSError as error:
            where = self.folder if self.current is None else self.current.where
            self.abort_round()
            found = f"{what} could not be written ({error.strerror or error})"
            raise LedgerError(f"{where}: {found}; the {self.n_rounds} rounds before it are intact") from error


def _repair(ledger: Ledger) -> int:
    """Cut an unfinished line, rename committed files, remove all others; returns the manifest's size."""
    folder, size = ledger.folder, len(read_manifest(ledger.folder))
    if size < (folder / MANIFEST).stat().st_size:
        os.truncate(folder / MANIFEST, size)
    for file in ledger.files:
        if not (folder / file).exists() and partial_path(folder / file).exists():
            give_final_name(folder / file)
    for path in [*folder.glob("rounds/*"), *folder.glob("apart/*"), partial_path(folder / FINAL)]:
        if str(path.relative_to(folder)) not in ledger.files:
            path.unlink(missing_ok=True)
    return size


def exposures(folder: Path) -> tuple[str, ...]:
    """Who besides the owner could change this ledger."""
    own, parent = folder.stat(), folder.resolve().parent.stat()
    found = []
    if own.st_mode & (stat.S_IWOTH | stat.S_IWGRP):
        found.append(f"{folder}: others can write into the ledger (mode {stat.S_IMODE(own.st_mode):o}); chmod go-w")
    if own.st_uid not in (os.geteuid(), 0):
        found.append(f"{folder}: the ledger's folder belongs to another user, number {own.st_uid}")
    if parent.st_mode & stat.S_IWOTH and not parent.st_mode & stat.S_ISVTX:
        found.append(f"{folder}: everybody can rename or replace the ledger, because its parent folder is open to all")
    return tuple(found)


def _refuse_exposed(folder: Path) -> None:
    """Refuse to record through links or into a folder that everybody can write, and log what else is open."""
    for place in (folder / "rounds", folder / "apart", folder / MANIFEST):
        if place.is_symlink():
            raise LedgerError(
                f"{place}: a link, and a ledger is not written through links; put what it names in its place"
            )
    if folder.stat().st_mode & stat.S_IWOTH:
        raise LedgerError(f"{folder}: everybody can write into this folder; close it with chmod go-w, then record")
    for text in exposures(folder):
        log.warning("fedworth: %s", text)


def one_line(reason: str) -> str:
    """A reason as one printable line of bounded length; it may come from a client."""
    line = " ".join(str(reason).split())
    printable = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in line)
    return printable if len(printable) <= MAX_REASON_LENGTH else printable[: MAX_REASON_LENGTH - 1] + "…"
