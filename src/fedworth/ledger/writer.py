"""Writing a ledger: one round after the other, each whole or not at all.

    ledger = create_ledger(Path("my.ledger"), clients, aggregation="samples")
    ledger.start_round(global_model, asked=chosen)
    ledger.client_model("clinic-a", model, n_samples=120)      # as each arrives: it goes to disk and is not kept
    ledger.end_round()
    ledger.close(global_model)

A round's file is written and flushed under a partial name, then its line is appended to the manifest: the line commits
the round; then the file takes its name. After a kill, `resume_ledger` drops what no line speaks of.
An answer that cannot be averaged is an error; with `quarantine=True` it is refused alone and the round goes on.
"""

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedworth.errors import LedgerError, ModelError, unknown_name
from fedworth.ledger.ledger import Ledger, open_ledger
from fedworth.ledger.manifest import (
    AGGREGATIONS,
    FINAL,
    FORMAT,
    HEADER,
    MANIFEST,
    ClosedLine,
    Line,
    MissingRound,
    check_names,
    line_bytes,
    read_lines,
    write_line,
)
from fedworth.ledger.model import Model, check_finite
from fedworth.ledger.model_file import file_sha256, partial_of, settle, start_model_file
from fedworth.ledger.round_writer import Answer, OpenRound, open_round, shown
from fedworth.storage import json_bytes, make_folder, refuse_existing, write_whole

__all__ = ["Answer", "LedgerWriter", "create_ledger", "resume_ledger"]


@dataclass
class LedgerWriter:
    """An open ledger: rounds are started, filled and ended one after the other, then the ledger is closed."""

    folder: Path
    aggregation: str
    clients: list[str]
    chain: str
    n_rounds: int
    next_number: int
    manifest_size: int
    is_closed: bool = False
    quarantine: bool = False
    current: OpenRound | None = None

    def start_round(self, global_model: Model, *, asked: Sequence[str], number: int | None = None) -> None:
        """Begin a round: the model that was sent, and to whom. `number` is the federation's own for the round."""
        self.abort_round()
        self._refuse_closed()
        own = self.next_number if number is None else number
        with self._told("its models"):
            self.current = open_round(self.folder, self.n_rounds, own, global_model, self.clients, asked)

    def client_model(self, name: str, model: Model, n_samples: float) -> None:
        """Put the answer of one client on disk; with `quarantine`, refuse what cannot be averaged."""
        round_ = self._open()
        try:
            with self._told(f"the model of {name!r}"):
                round_.answer(name, Answer(model, n_samples), expect_samples=self.quarantine)
        except ModelError as error:
            if not self.quarantine:
                raise
            round_.refuse(name, str(error))

    def client_failed(self, name: str, reason: str) -> None:
        """One client said that it could not do its part."""
        self._open().fail(name, reason)

    def client_refused(self, name: str, reason: str) -> None:
        """One client's answer is not to be used, and why."""
        self._open().refuse(name, reason)

    def end_round(
        self,
        *,
        asked: Sequence[str] | None = None,
        participants: Sequence[str] | None = None,
        apart: Mapping[str, Answer] | None = None,
        notes: Sequence[str] = (),
    ) -> None:
        """Commit the round: who was asked after all (default: all announced), whose models were averaged (default: all
        that answered), and, kept apart, models of absent clients for the ground truth."""
        round_ = self._open()
        round_.asked = round_.asked if asked is None else list(asked)
        try:
            with self._told("its models"):
                round_.keep_apart(apart or {})
                self._append(round_.finish(participants, notes))
        except BaseException:
            self.abort_round()
            raise
        self.clients += round_.joined
        self.n_rounds, self.next_number, self.current = self.n_rounds + 1, round_.number + 1, None
        round_.settle()

    def abort_round(self) -> None:
        """Forget a round that was started; nothing of it stays."""
        if self.current is not None:
            self.current.abandon()
            self.current = None

    def missing_round(self, number: int, reason: str) -> None:
        """Say in the ledger that a round of the federation is not in it."""
        self.abort_round()
        self._refuse_closed()
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
        self._refuse_closed()
        check_finite(final_model, f"{self.folder}, final model")
        with self._told("the final model"):
            file = start_model_file(self.folder / FINAL, final_model, 1)
            try:
                file.add("global", final_model)
                self._append(ClosedLine(FINAL, file.finish()))
            except BaseException:
                file.abandon()
                raise
        self.is_closed = True
        settle(self.folder / FINAL)

    def _open(self) -> OpenRound:
        if self.current is None:
            raise LedgerError(f"{self.folder}, round {self.n_rounds}: not started; call start_round first")
        return self.current

    def _refuse_closed(self) -> None:
        if self.is_closed:
            raise LedgerError(f"{self.folder}: the ledger is closed; record into a new one")

    def _append(self, line: Line) -> None:
        """Commit a line: all of it goes to the device, or nothing of it stays."""
        data, chain = line_bytes(line, self.chain)
        descriptor = os.open(self.folder / MANIFEST, os.O_RDWR)
        try:
            if os.fstat(descriptor).st_size != self.manifest_size:
                raise LedgerError(f"{self.folder}: the manifest was written by someone else; one ledger, one recorder")
            write_line(descriptor, data, self.manifest_size)
        finally:
            os.close(descriptor)
        self.chain, self.manifest_size = chain, self.manifest_size + len(data)

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
    folder: Path,
    clients: Sequence[str] = (),
    *,
    aggregation: str,
    settings: Mapping[str, Any] | None = None,
    quarantine: bool = False,
) -> LedgerWriter:
    """A new ledger for these clients (more may join); `aggregation` is how the server averages."""
    if aggregation not in AGGREGATIONS:
        raise unknown_name("aggregation", aggregation, AGGREGATIONS)
    check_names(list(clients), str(folder))
    refuse_existing(folder / HEADER, "a ledger")
    header = {"format": FORMAT, "clients": list(clients), "aggregation": aggregation, "settings": dict(settings or {})}
    try:
        make_folder(folder)
        if (folder / MANIFEST).exists() and (folder / MANIFEST).stat().st_size:
            raise LedgerError(f"{folder}: rounds without a {HEADER}; restore it, or name another folder")
        write_whole(folder / MANIFEST, b"")
        write_whole(folder / HEADER, json_bytes(header))
    except OSError as error:
        raise LedgerError(f"{folder}: a ledger cannot be made here ({error.strerror or error})") from error
    return LedgerWriter(
        folder, aggregation, list(clients), file_sha256(folder / HEADER), 0, 0, 0, quarantine=quarantine
    )


def resume_ledger(folder: Path, *, quarantine: bool = False) -> LedgerWriter:
    """The ledger at `folder`, ready for its next round, with what was never committed cleared away."""
    ledger = open_ledger(folder)
    header_chain = file_sha256(folder / HEADER)
    lines = [line for line, _ in read_lines(folder, header_chain)]
    manifest = (folder / MANIFEST).read_bytes()
    size = manifest.rfind(b"\n") + 1
    try:
        if size < len(manifest):
            os.truncate(folder / MANIFEST, size)
        _clear_away(ledger)
    except OSError as error:
        raise LedgerError(f"{folder}: cannot be resumed ({error.strerror or error})") from error
    numbers = [-1, *(line.number for line in lines if not isinstance(line, ClosedLine))]
    return LedgerWriter(
        folder,
        ledger.aggregation,
        list(ledger.clients),
        ledger.chain,
        ledger.n_rounds,
        numbers[-1] + 1,
        size,
        ledger.is_closed,
        quarantine,
    )


def _clear_away(ledger: Ledger) -> None:
    """Finish what was committed, remove what was not."""
    for file in ledger.files:
        if not (ledger.folder / file).exists() and partial_of(ledger.folder / file).exists():
            settle(ledger.folder / file)
    for path in [*ledger.folder.glob("rounds/*"), *ledger.folder.glob("apart/*"), partial_of(ledger.folder / FINAL)]:
        if str(path.relative_to(ledger.folder)) not in ledger.files:
            path.unlink(missing_ok=True)
