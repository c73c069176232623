"""Reading a ledger: the folder that holds everything a federation trained.

    federation.json               clients, aggregation, how the model and the task are made
    manifest.jsonl                one line per round; the chain in each line covers all lines before it
    rounds/000000.safetensors     global/<tensor>, client/<index>/<tensor>: what the server held
    apart/000000.safetensors      apart/<index>/<tensor>: models of absent clients, for the ground truth only
    final.safetensors             global/<tensor>: the model after the last round

A round's file is written under a partial name, its line commits it, and then it gets its final name. So a final name
without a line means that lines were cut off the manifest, and a partial name without a line means that a recorder is
writing, or was killed. The manifest holds the sha256 of each file, and a file is hashed before it is used. Tensors are
memory-mapped, so only what is used is loaded.
"""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

from fedworth.errors import LedgerError, unknown_name
from fedworth.ledger.embeddings import EmbeddingForm, form_of
from fedworth.ledger.manifest import (
    FINAL,
    MANIFEST,
    ClosedLine,
    MissingRound,
    RoundEntry,
    check_names,
    read_header,
    read_lines,
)
from fedworth.ledger.model import Model, check_alike, check_finite
from fedworth.ledger.model_file import GLOBAL, Owner, read_models
from fedworth.names import Aggregation
from fedworth.storage import PARTIAL, Place

__all__ = ["Ledger", "Model", "Round", "read_round"]

MAX_LISTED_ROUNDS = 8


MOST_OPEN = 4096
"""Rounds that stay open, each with a memory-mapped file; a process may have 65,530 on Linux."""


@dataclass(frozen=True)
class Round:
    """The models of one round, memory-mapped: the global model before it, and each client's model after it."""

    entry: RoundEntry
    global_model: Model
    client_models: Mapping[int, Model]
    apart_models: Mapping[int, Model]


@dataclass(frozen=True)
class Ledger:
    """A recorded federation whose manifest has been checked; rounds are opened one at a time.

    Example:
        ledger = fedworth.Ledger.open("my.ledger")
        print(ledger.clients, ledger.n_rounds, ledger.without(["north"]).clients)
    """

    folder: Path
    clients: tuple[str, ...]
    aggregation: Aggregation
    settings: Mapping[str, Any]
    entries: tuple[RoundEntry, ...]
    missing: tuple[MissingRound, ...]
    closing: ClosedLine | None
    chain: str
    next_number: int = 0  # the federation's own number of the next round
    left_out: tuple[str, ...] = ()  # clients that the user excluded
    _opened: dict[tuple[int, bool], Round] = field(default_factory=dict, compare=False, repr=False)

    @staticmethod
    def open(folder: Place) -> "Ledger":
        """Read a ledger and check its manifest.

        Args:
            folder: The ledger's folder.

        Returns:
            The ledger; its round files are checked when they are opened.

        Example:
            ledger = fedworth.Ledger.open("my.ledger")
        """
        return _read_ledger(Path(folder), with_files=False)

    @staticmethod
    def verify(folder: Place) -> "Ledger":
        """Check every line and every byte of a ledger; the error names the first bad round.

        Args:
            folder: The ledger's folder.

        Returns:
            The ledger; its `chain` is the head to keep elsewhere.

        Example:
            head = fedworth.Ledger.verify("my.ledger").chain
        """
        ledger = _read_ledger(Path(folder), with_files=True)
        if ledger.is_closed:
            ledger.final_model()
        return ledger

    @property
    def n_rounds(self) -> int:
        return len(self.entries)

    @property
    def is_closed(self) -> bool:
        return self.closing is not None

    @property
    def simulation(self) -> Mapping[str, Any] | None:
        """The settings of a simulated federation, None for any other."""
        return self.settings.get("simulation")

    @cached_property
    def form(self) -> EmbeddingForm | None:
        """What clients of a vertical federation send; None if they send models."""
        return form_of(self.settings)

    @property
    def files(self) -> set[str]:
        """Every model file that the manifest lists."""
        apart = {entry.apart_file for entry in self.entries if entry.apart_file is not None}
        return {entry.file for entry in self.entries} | apart | ({self.closing.file} if self.closing else set())

    def without(self, names: Iterable[str]) -> "Ledger":
        """The same federation as if these clients had never answered; the others are valued among themselves.

        An unknown client is an error if the ledger is closed; otherwise it may still join.
        """
        left_out = tuple(dict.fromkeys([*self.left_out, *names]))
        unknown = [name for name in left_out if name not in self.clients]
        if unknown and self.is_closed:
            raise unknown_name("client", unknown[0], self.clients)
        return replace(self, left_out=left_out)

    def participants(self, round_index: int) -> tuple[int, ...]:
        """The clients whose models were averaged in a round, without those that are left out."""
        everyone = self.entries[round_index].participants
        return tuple(k for k in everyone if self.clients[k] not in self.left_out) if self.left_out else everyone

    @cached_property
    def heard(self) -> frozenset[int]:
        """The clients that took part in some round."""
        return frozenset(k for t in range(self.n_rounds) for k in self.participants(t))

    def sample_counts(self, round_index: int | None = None) -> dict[int, float]:
        """Each client's number of samples as last reported, or as reported in this round if it answered in it."""
        if round_index is None:
            return dict(self._last_counts)
        entry = self.entries[round_index]
        apart = dict(zip(entry.apart, entry.apart_sample_counts, strict=True))
        return {**self._last_counts, **apart, **dict(zip(entry.answered, entry.sample_counts, strict=True))}

    @cached_property
    def _last_counts(self) -> dict[int, float]:
        """The last report of each client; counts of models kept apart are used only for clients that never answered."""
        counts: dict[int, float] = {}
        for entry in self.entries:
            counts.update(zip(entry.apart, entry.apart_sample_counts, strict=True))
        for entry in self.entries:
            counts.update(zip(entry.answered, entry.sample_counts, strict=True))
        return counts

    def open_round(self, round_index: int, *, with_apart: bool = False) -> Round:
        """The models of one round; its files are hashed when they are first opened.

        The last rounds stay open, memory-mapped, so that a report reads and hashes every round once.
        """
        key = round_index, with_apart
        if key not in self._opened:
            if len(self._opened) >= MOST_OPEN:
                self._opened.pop(next(iter(self._opened)))
            if with_apart:
                found = _with_apart(self.open_round(round_index), self.folder, self.clients)
            else:
                found = read_round(self.folder, self.entries[round_index], self.clients, self.form)
            self._opened[key] = found
        return self._opened[key]

    def with_rounds_of(self, earlier: "Ledger") -> "Ledger":
        """This ledger with the rounds that an earlier reading of it has opened, so that they are not read again."""
        for (t, with_apart), round_ in earlier._opened.items():
            if earlier.folder == self.folder and t < self.n_rounds and self.entries[t] == earlier.entries[t]:
                self._opened.setdefault((t, with_apart), round_)
        return self

    def rounds(self, *, with_apart: bool = False) -> Iterator[Round]:
        """The rounds in order, one in memory at a time."""
        for entry in self.entries:
            yield self.open_round(entry.round_index, with_apart=with_apart)

    def final_model(self) -> Model:
        """The global model after the last round of a closed ledger."""
        if self.closing is None:
            raise LedgerError(f"{self.folder}: the federation is not closed, so it has no final model yet")
        models = read_models(self.folder / FINAL, self.closing.sha256)
        if set(models) != {GLOBAL}:
            raise LedgerError(f"{self.folder / FINAL}: expected one global model in it")
        return models[GLOBAL]

    def unsettled(self) -> tuple[str, ...]:
        """Committed files that still have their partial names; a recorder renames them when it resumes."""
        return tuple(sorted(file for file in self.files if not (self.folder / file).exists()))

    def warnings(self) -> tuple[str, ...]:
        """What a reader of any value from this ledger must know: rounds and answers that do not count."""
        texts = [f"client {name!r} was left out, as asked: the others are valued without it" for name in self.left_out]
        texts += [
            f"round {gone.number} is missing ({gone.reason}); it adds nothing to any value" for gone in self.missing
        ]
        texts += [*self._gaps(), *self._unanswered()]
        for entry in self.entries:
            for client, reason in zip(entry.quarantined, entry.quarantine_reasons, strict=True):
                texts.append(f"round {entry.number}: the answer of {self.clients[client]!r} was quarantined ({reason})")
            texts += [f"round {entry.number}: {note}" for note in entry.notes]
        return tuple(texts)

    def _gaps(self) -> Iterator[str]:
        """Rounds that were neither recorded nor reported missing, as a killed recorder leaves them."""
        seen = sorted({entry.number for entry in self.entries} | {gone.number for gone in self.missing})
        for before, after in pairwise(seen):
            if after - before > 1:
                first, last = before + 1, after - 1
                rounds = f"round {first} is" if first == last else f"rounds {first} to {last} are"
                yield f"{rounds} missing (the recorder was stopped); no value counts what happened there"

    def _unanswered(self) -> Iterator[str]:
        """Rounds without participants, in one sentence."""
        numbers = [str(entry.number) for entry in self.entries if not self.participants(entry.round_index)]
        nobody = "nobody else" if self.left_out else "nobody"
        if len(numbers) == 1:
            yield f"{nobody} answered in round {numbers[0]}; it adds nothing to any value"
        elif numbers:
            shown = ", ".join(numbers[:MAX_LISTED_ROUNDS] + (["…"] if len(numbers) > MAX_LISTED_ROUNDS else []))
            yield f"{nobody} answered in {len(numbers)} rounds ({shown}); they add nothing to any value"


def read_round(folder: Path, entry: RoundEntry, clients: Sequence[str], form: EmbeddingForm | None = None) -> Round:
    """The checked models of one round, without those kept apart; or embeddings of this form."""
    models = _read_models(folder, entry, entry.file, entry.sha256, {GLOBAL, *(("client", k) for k in entry.answered)})
    where, global_model = f"round {entry.number}, {folder / entry.file}", models.pop(GLOBAL)
    check_finite(global_model, f"{where}, global model")
    for (_, k), model in models.items():
        owner = f"{where}, client {clients[k]!r}"
        check_alike(model, global_model, owner) if form is None else form.check(model, k, owner)
    return Round(entry, global_model, {k: model for (_, k), model in models.items()}, {})


def _with_apart(round_: Round, folder: Path, clients: Sequence[str]) -> Round:
    """The round with the models that were kept apart, which are checked too."""
    entry = round_.entry
    if entry.apart_file is None and not entry.apart:
        return round_
    file, sha256 = str(entry.apart_file), str(entry.apart_sha256)
    models = _read_models(folder, entry, file, sha256, {("apart", k) for k in entry.apart})
    for (_, k), model in models.items():
        where = f"round {entry.number}, {folder / file}, client {clients[k]!r}"
        check_alike(model, round_.global_model, where)
    return replace(round_, apart_models={k: model for (_, k), model in models.items()})


def _read_models(folder: Path, entry: RoundEntry, file: str, sha256: str, expected: set[Owner]) -> dict[Owner, Model]:
    """The models of a file in order, if they are those that the manifest names."""
    try:
        models = read_models(folder / file, sha256)
    except LedgerError as error:
        raise LedgerError(f"round {entry.number}: {error}") from None
    if set(models) != expected:
        found = f"holds models of {sorted(models)}, expected {sorted(expected)}"
        raise LedgerError(f"round {entry.number}, {folder / file}: {found}")
    return dict(sorted(models.items()))


def _read_ledger(folder: Path, *, with_files: bool) -> Ledger:
    # Files are listed before the manifest is read: a file that has its final name now has its line by then.
    files = {name for name in _names_in(folder) if name.startswith(FINAL)}
    files |= {f"{place}/{name}" for place in ("rounds", "apart") for name in _names_in(folder / place)}
    header, chain = read_header(folder)
    form = form_of(header.settings)
    clients, known = [*header.clients], {*header.clients}
    entries, missing, closing, next_number = list[RoundEntry](), list[MissingRound](), None, 0
    for line, following in read_lines(folder, chain):
        chain = following
        if isinstance(line, ClosedLine):
            closing = line
            continue
        next_number = line.number + 1
        if isinstance(line, MissingRound):
            missing.append(line)
            continue
        _add_joined(line, clients, known, f"{folder / MANIFEST}, round {line.number}")
        entries.append(line)
        if with_files:
            _with_apart(read_round(folder, line, clients, form), folder, clients)
    ledger = Ledger(
        folder=folder,
        clients=tuple(clients),
        aggregation=header.aggregation,
        settings=header.settings,
        entries=tuple(entries),
        missing=tuple(missing),
        closing=closing,
        chain=chain,
        next_number=next_number,
    )
    stem = f"{ledger.n_rounds:06d}.safetensors"
    being_written = {f"rounds/{stem}{PARTIAL}", f"apart/{stem}{PARTIAL}", f"{FINAL}{PARTIAL}"}
    listed = ledger.files
    unlisted = sorted(file for file in files - listed - being_written if file.removesuffix(PARTIAL) not in listed)
    if unlisted:
        raise LedgerError(
            f"{ledger.folder}: the manifest ends after {ledger.n_rounds} good rounds, but there is {unlisted[0]}; "
            "lines were cut off, or the file was put there; restore the ledger from a copy"
        )
    return ledger


def _add_joined(entry: RoundEntry, clients: list[str], known: set[str], where: str) -> None:
    """Add a round's new clients to the list, and refuse positions beyond its end."""
    if entry.joined:
        check_names([*entry.joined], where)
        if not known.isdisjoint(entry.joined):
            raise LedgerError(f"{where}: client names are not all different")
        clients += entry.joined
        known.update(entry.joined)
    last = max(max(entry.asked, default=-1), max(entry.apart, default=-1))
    if last >= len(clients):
        raise LedgerError(f"{where}: names client {last}, but there are only {len(clients)}")


def _names_in(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise LedgerError(f"{folder}: cannot be read ({error.strerror})") from error
