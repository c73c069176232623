"""The ledger: what a federation leaves on disk, one folder, read back a round at a time.

    federation.json               clients, aggregation, how the model and the task are made
    manifest.jsonl                one line a round, appended; each line's chain covers all before it
    rounds/000000.safetensors     global/<tensor>, client/<index>/<tensor>: what the server held
    apart/000000.safetensors      apart/<index>/<tensor>: models of clients that did not take part, for the truth only
    final.safetensors             global/<tensor>: the model after the last round

A round's file is written under a partial name, its line commits it, and only then does it take its name. So a file
with its name and no line means that the manifest was cut; a partial file with no line, that a recorder is writing, or
was killed. The manifest holds the files' sha256, and a file is hashed before anything in it is believed.
Tensors are memory-mapped: what is not looked at is not loaded.
"""

import gc
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from fedworth.errors import LedgerError, unknown_name
from fedworth.ledger.manifest import (
    FINAL,
    HEADER,
    MANIFEST,
    ClosedLine,
    Line,
    MissingRound,
    RoundEntry,
    check_names,
    read_header,
    read_lines,
)
from fedworth.ledger.model import Model, check_alike, check_finite
from fedworth.ledger.model_file import read_models
from fedworth.ledger.remarks import gaps, unanswered
from fedworth.ledger.round import Round, read_file, read_round
from fedworth.names import Aggregation, Weighting
from fedworth.storage import PARTIAL, Place

__all__ = [
    "FINAL",
    "HEADER",
    "MANIFEST",
    "Ledger",
    "MissingRound",
    "Model",
    "Round",
    "RoundEntry",
    "check_alike",
    "check_finite",
    "open_ledger",
    "verify_ledger",
]


@dataclass(frozen=True)
class Ledger:
    """A recorded federation, its manifest checked; rounds are opened one at a time.

    Example:
        ledger = fedworth.open_ledger("my.ledger")
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
    next_number: int = 0  # the federation's own for the round after the last
    left_out: tuple[str, ...] = ()  # clients whose models count for nothing, as asked

    @property
    def n_rounds(self) -> int:
        return len(self.entries)

    @property
    def is_closed(self) -> bool:
        return self.closing is not None

    @property
    def default_weighting(self) -> Weighting:
        """How coalitions are averaged unless asked otherwise: as in the paper if simulated, else as the server did."""
        return "uniform" if self.simulation is not None else self.aggregation

    @property
    def simulation(self) -> Mapping[str, Any] | None:
        """The settings of a federation that was simulated, None of any other."""
        if "simulation" in self.settings or "test_sha256" not in self.settings:
            return self.settings.get("simulation")
        return {key: value for key, value in self.settings.items() if key != "test_sha256"}  # as first written

    @property
    def files(self) -> set[str]:
        """Every file of models that the manifest lists."""
        apart = {entry.apart_file for entry in self.entries if entry.apart_file is not None}
        return {entry.file for entry in self.entries} | apart | ({self.closing.file} if self.closing else set())

    def without(self, names: Iterable[str]) -> "Ledger":
        """The same federation as if these clients had never answered; they have no value, and the others are valued
        among themselves. Who is not known is an error, unless rounds are still to come."""
        left_out = tuple(dict.fromkeys([*self.left_out, *names]))
        unknown = [name for name in left_out if name not in self.clients]
        if unknown and self.is_closed:
            raise unknown_name("client", unknown[0], self.clients)
        return replace(self, left_out=left_out)

    def participants(self, round_index: int) -> tuple[int, ...]:
        """Whose models were aggregated in a round, but for the clients that are left out."""
        everyone = self.entries[round_index].participants
        return tuple(k for k in everyone if self.clients[k] not in self.left_out) if self.left_out else everyone

    def sample_counts(self, round_index: int | None = None) -> dict[int, float]:
        """Each client's number of samples as last reported, or as reported in this round where it was heard."""
        if round_index is None:
            return dict(self._last_counts)
        return {**self._last_counts, **_counts(self.entries[round_index])}

    @cached_property
    def _last_counts(self) -> dict[int, float]:
        """What each client last reported; what was kept apart counts only for who never answered."""
        counts: dict[int, float] = {}
        for entry in self.entries:
            counts.update(zip(entry.apart, entry.apart_sample_counts, strict=True))
        for entry in self.entries:
            counts.update(zip(entry.answered, entry.sample_counts, strict=True))
        return counts

    def open_round(self, round_index: int, *, with_apart: bool = False) -> Round:
        """The models of one round; every byte of its file is checked first."""
        return read_round(self.folder, self.entries[round_index], self.clients, with_apart=with_apart)

    def check_round(self, round_index: int) -> None:
        """Hash a round's file without opening it: for whoever knows already what is in it."""
        entry = self.entries[round_index]
        read_file(self.folder, entry.file, entry.sha256, round_index)

    def rounds(self, *, with_apart: bool = False) -> Iterator[Round]:
        """The rounds in order, one in memory at a time."""
        for entry in self.entries:
            yield self.open_round(entry.round_index, with_apart=with_apart)

    def final_model(self) -> Model:
        """The global model after the last round, of a ledger that was closed."""
        if self.closing is None:
            raise LedgerError(f"{self.folder}: the federation is not closed, so it has no final model yet")
        models = read_models(self.folder / FINAL, self.closing.sha256)
        if set(models) != {("global", -1)}:
            raise LedgerError(f"{self.folder / FINAL}: expected one global model in it")
        return models["global", -1]

    def unsettled(self) -> tuple[str, ...]:
        """Committed files that still have their partial names; a recorder names them when it goes on."""
        return tuple(sorted(file for file in self.files if not (self.folder / file).exists()))

    def warnings(self) -> tuple[str, ...]:
        """What a reader of any value from this ledger must know: what is missing, quarantined or unidentified."""
        told = [f"client {name!r} was left out, as asked: the others are valued without it" for name in self.left_out]
        told += [
            f"round {gone.number} is missing ({gone.reason}); it adds nothing to any value" for gone in self.missing
        ]
        numbers = [entry.number for entry in self.entries if not self.participants(entry.round_index)]
        told += [*gaps(self.entries, self.missing), *unanswered(numbers, is_reduced=bool(self.left_out))]
        for entry in self.entries:
            for client, reason in zip(entry.quarantined, entry.quarantine_reasons, strict=True):
                told.append(f"round {entry.number}: the answer of {self.clients[client]!r} was quarantined ({reason})")
            told += [f"round {entry.number}: {note}" for note in entry.notes]
        return tuple(told)


def open_ledger(folder: Place) -> Ledger:
    """Read a ledger, its manifest checked link by link.

    Args:
        folder: The ledger's folder.

    Returns:
        The ledger; its round files are checked when they are opened.

    Example:
        ledger = fedworth.open_ledger("my.ledger")
    """
    return _read_ledger(Path(folder), with_files=False)


def verify_ledger(folder: Place) -> Ledger:
    """Check every line and every byte of a ledger; the error names the first bad round.

    Args:
        folder: The ledger's folder.

    Returns:
        The ledger; its `chain` is the head to keep elsewhere.

    Example:
        head = fedworth.verify_ledger("my.ledger").chain
    """
    ledger = _read_ledger(Path(folder), with_files=True)
    if ledger.is_closed:
        ledger.final_model()
    return ledger


def _read_ledger(folder: Path, *, with_files: bool) -> Ledger:
    files = _files(folder)  # listed before the manifest is read: what has its name by now has its line by then
    header, chain = read_header(folder)
    manifest = str(folder / MANIFEST)
    clients, known = list(header["clients"]), set(header["clients"])
    entries, missing, closing, next_number = list[RoundEntry](), list[MissingRound](), None, 0
    for line, following in _read_in_one_go(folder, chain):
        chain = following
        if isinstance(line, ClosedLine):
            closing = line
            continue
        next_number = line.number + 1
        if isinstance(line, MissingRound):
            missing.append(line)
            continue
        _join(line, clients, known, manifest)
        entries.append(line)
        if with_files:
            read_round(folder, line, clients, with_apart=True)
    said = (header["aggregation"], header["settings"])
    ledger = Ledger(folder, tuple(clients), *said, tuple(entries), tuple(missing), closing, chain, next_number)
    _refuse_unlisted(ledger, files)
    return ledger


def _read_in_one_go(folder: Path, chain: str) -> list[tuple[Line, str]]:
    """All lines, read with the garbage collector off: its search for cycles took a third of the time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        return list(read_lines(folder, chain))
    finally:
        if was_enabled:
            gc.enable()


def _join(entry: RoundEntry, clients: list[str], known: set[str], manifest: str) -> None:
    """Take the new clients of a round into the list, and refuse positions beyond it."""
    if entry.joined:
        where = f"{manifest}, round {entry.round_index}"
        check_names([*entry.joined], where)
        if not known.isdisjoint(entry.joined):
            raise LedgerError(f"{where}: client names are not all different")
        clients += entry.joined
        known.update(entry.joined)
    furthest = max(max(entry.asked, default=-1), max(entry.apart, default=-1))
    if furthest >= len(clients):
        found = f"speaks of client {furthest}, but there are only {len(clients)}"
        raise LedgerError(f"{manifest}, round {entry.round_index}: {found}")


def _counts(entry: RoundEntry) -> dict[int, float]:
    apart = zip(entry.apart, entry.apart_sample_counts, strict=True)
    return {**dict(apart), **dict(zip(entry.answered, entry.sample_counts, strict=True))}


def _files(folder: Path) -> set[str]:
    """All files where models are kept, by their place in the ledger."""
    found = {name for name in _names_in(folder) if name.startswith(FINAL)}
    return found.union(f"{place}/{name}" for place in ("rounds", "apart") for name in _names_in(folder / place))


def _names_in(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise LedgerError(f"{folder}: cannot be read ({error.strerror})") from error


def _refuse_unlisted(ledger: Ledger, files: set[str]) -> None:
    stem = f"{ledger.n_rounds:06d}.safetensors"
    coming = {f"rounds/{stem}{PARTIAL}", f"apart/{stem}{PARTIAL}", f"{FINAL}{PARTIAL}"}
    listed = ledger.files
    unlisted = sorted(file for file in files - listed - coming if file.removesuffix(PARTIAL) not in listed)
    if unlisted:
        raise LedgerError(
            f"{ledger.folder}: after {ledger.n_rounds} good rounds the manifest ends, yet there is {unlisted[0]}; "
            "lines were cut off, or the file was put there; restore the ledger from a copy"
        )
