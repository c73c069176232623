"""The ledger: what a federation leaves on disk, one folder, read back a round at a time.

    federation.json               clients, aggregation, how the model and the task are made
    manifest.jsonl                one line a round, appended; each line's chain covers all before it
    rounds/000000.safetensors     global/<tensor>, client/<index>/<tensor>: what the server held
    apart/000000.safetensors      absent/<index>/<tensor>: absent clients' models, for the truth only
    final.safetensors             global/<tensor>: the model after the last round

A round's file is written under a partial name, its line commits it, and only then does it take its name. So a file
with its name and no line means that the manifest was cut; a partial file with no line, that a recorder is writing, or
was killed. The manifest holds the files' sha256, and a file is hashed before anything in it is believed.
Tensors are memory-mapped: what is not looked at is not loaded.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fedworth.errors import LedgerError
from fedworth.ledger.manifest import (
    FINAL,
    HEADER,
    MANIFEST,
    ClosedLine,
    MissingRound,
    RoundEntry,
    check_names,
    read_header,
    read_lines,
)
from fedworth.ledger.model import Model, check_alike, check_finite
from fedworth.ledger.model_file import read_models
from fedworth.storage import PARTIAL

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
class Round:
    """One round's models, memory-mapped: the global one before it, and each client's after it."""

    entry: RoundEntry
    global_model: Model
    client_models: Mapping[int, Model]
    apart_models: Mapping[int, Model]


@dataclass(frozen=True)
class Ledger:
    """A recorded federation, its manifest checked; rounds are opened one at a time."""

    folder: Path
    clients: tuple[str, ...]
    aggregation: str
    settings: Mapping[str, Any]
    entries: tuple[RoundEntry, ...]
    missing: tuple[MissingRound, ...]
    closing: ClosedLine | None
    chain: str

    @property
    def n_rounds(self) -> int:
        return len(self.entries)

    @property
    def is_closed(self) -> bool:
        return self.closing is not None

    @property
    def default_weighting(self) -> str:
        """How coalitions are averaged unless asked otherwise: as in the paper if simulated, else as the server did."""
        return "uniform" if "test_sha256" in self.settings else self.aggregation

    @property
    def files(self) -> set[str]:
        """Every file of models that the manifest lists."""
        apart = {entry.apart_file for entry in self.entries if entry.apart_file is not None}
        return {entry.file for entry in self.entries} | apart | ({self.closing.file} if self.closing else set())

    def sample_counts(self, round_index: int | None = None) -> dict[int, float]:
        """Each client's number of samples as last reported, or as reported in this round where it was heard."""
        counts: dict[int, float] = {}
        for entry in self.entries:
            counts.update(zip(entry.apart, entry.apart_sample_counts, strict=True))
        for entry in self.entries:
            counts.update(zip(entry.answered, entry.sample_counts, strict=True))
        if round_index is not None:
            entry = self.entries[round_index]
            counts.update(zip(entry.apart, entry.apart_sample_counts, strict=True))
            counts.update(zip(entry.answered, entry.sample_counts, strict=True))
        return counts

    def open_round(self, round_index: int, *, with_apart: bool = False) -> Round:
        """The models of one round; every byte of its file is checked first."""
        return _open_round(self.folder, self.entries[round_index], self.clients, with_apart=with_apart)

    def check_round(self, round_index: int) -> None:
        """Hash a round's file without opening it: for whoever knows already what is in it."""
        entry = self.entries[round_index]
        _read(self.folder, entry.file, entry.sha256, round_index)

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

    def warnings(self) -> tuple[str, ...]:
        """What a reader of any value from this ledger must know: what is missing, refused or unidentified."""
        told = [
            f"round {gone.number} is missing ({gone.reason}); it adds nothing to any value" for gone in self.missing
        ]
        told += _gaps(self)
        for entry in self.entries:
            for client, reason in zip(entry.quarantined, entry.quarantine_reasons, strict=True):
                told.append(f"round {entry.number}: the answer of {self.clients[client]!r} was refused ({reason})")
            told += [f"round {entry.number}: {note}" for note in entry.notes]
        return tuple(told)


def open_ledger(folder: Path) -> Ledger:
    """The ledger at `folder`, its manifest checked link by link; the round files are checked when opened."""
    return _read_ledger(folder, with_files=False)


def verify_ledger(folder: Path) -> Ledger:
    """Check every line and every byte of a ledger; the error names the first bad round."""
    ledger = _read_ledger(folder, with_files=True)
    if ledger.is_closed:
        ledger.final_model()
    return ledger


def _read_ledger(folder: Path, *, with_files: bool) -> Ledger:
    files = _files(folder)  # listed before the manifest is read: what has its name by now has its line by then
    header, chain = read_header(folder)
    ledger = Ledger(folder, tuple(header["clients"]), header["aggregation"], header["settings"], (), (), None, chain)
    for longer in _growing(ledger):
        if with_files and longer.n_rounds > ledger.n_rounds:
            longer.open_round(ledger.n_rounds, with_apart=True)
        ledger = longer
    _refuse_unlisted(ledger, files)
    return ledger


def _growing(ledger: Ledger) -> Iterator[Ledger]:
    """The ledger after each line of its manifest."""
    clients, entries, missing = list(ledger.clients), list(ledger.entries), list(ledger.missing)
    closing: ClosedLine | None = None
    for line, chain in read_lines(ledger.folder, ledger.chain):
        if isinstance(line, RoundEntry):
            clients += line.joined
            _check_clients(line, clients, f"{ledger.folder / MANIFEST}, round {line.round_index}")
            entries.append(line)
        elif isinstance(line, MissingRound):
            missing.append(line)
        else:
            closing = line
        ledger = replace(ledger, clients=tuple(clients), entries=tuple(entries), closing=closing, chain=chain)
        yield replace(ledger, missing=tuple(missing))


def _check_clients(entry: RoundEntry, clients: list[str], where: str) -> None:
    if entry.joined:
        check_names(clients, where)
    for positions in (entry.asked, entry.apart):
        if any(k >= len(clients) for k in positions):
            raise LedgerError(f"{where}: speaks of client {max(positions)}, but there are only {len(clients)}")


def _open_round(folder: Path, entry: RoundEntry, clients: tuple[str, ...], *, with_apart: bool) -> Round:
    where = f"round {entry.round_index}, {folder / entry.file}"
    models = _read(folder, entry.file, entry.sha256, entry.round_index)
    global_model = models.pop(("global", -1), None)
    if global_model is None:
        raise LedgerError(f"{where}: no global model in it")
    apart = {}
    if with_apart and entry.apart_file is not None and entry.apart_sha256 is not None:
        apart = _read(folder, entry.apart_file, entry.apart_sha256, entry.round_index)
    expected = {("client", k) for k in entry.answered}
    if set(models) != expected or (with_apart and set(apart) != {("absent", k) for k in entry.apart}):
        raise LedgerError(f"{where}: holds models of {sorted(models)}, expected {sorted(expected)}")
    check_finite(global_model, f"{where}, global model")
    for (_, index), model in sorted({**models, **apart}.items()):
        check_alike(model, global_model, f"{where}, client {clients[index]!r}")
    return Round(
        entry,
        global_model,
        {index: model for (_, index), model in sorted(models.items())},
        {index: model for (_, index), model in sorted(apart.items())},
    )


def _read(folder: Path, file: str, sha256: str, round_index: int) -> dict[tuple[str, int], Model]:
    try:
        return read_models(folder / file, sha256)
    except LedgerError as error:
        raise LedgerError(f"round {round_index}: {error}") from None


def _files(folder: Path) -> set[str]:
    """All files where models are kept, by their place in the ledger."""
    kept = [*folder.glob("rounds/*"), *folder.glob("apart/*"), *folder.glob(f"{FINAL}*")]
    return {str(path.relative_to(folder)) for path in kept}


def _refuse_unlisted(ledger: Ledger, files: set[str]) -> None:
    stem = f"{ledger.n_rounds:06d}.safetensors"
    coming = {f"rounds/{stem}{PARTIAL}", f"apart/{stem}{PARTIAL}", f"{FINAL}{PARTIAL}"}
    settling = {f"{file}{PARTIAL}" for file in ledger.files}
    unlisted = sorted(files - ledger.files - coming - settling)
    if unlisted:
        raise LedgerError(
            f"{ledger.folder}: after {ledger.n_rounds} good rounds the manifest ends, yet there is {unlisted[0]}; "
            "lines were cut off, or the file was put there; restore the ledger from a copy"
        )


def _gaps(ledger: Ledger) -> list[str]:
    """Rounds that were neither recorded nor reported missing, as a killed recorder leaves them."""
    seen = {entry.number for entry in ledger.entries} | {gone.number for gone in ledger.missing}
    gone = sorted(set(range(min(seen), max(seen))) - seen) if seen else []
    return [f"round {number} is missing (its recorder was stopped); it adds nothing to any value" for number in gone]
