"""The ledger: what a federation leaves on disk, one folder, read back a round at a time.

    federation.json               clients, aggregation, how the model and the task are made
    manifest.jsonl                one line a round, appended; each line's chain covers all before it
    rounds/000000.safetensors     global/<tensor>, client/<index>/<tensor>: what the server held
    apart/000000.safetensors      absent/<index>/<tensor>: absent clients' models, for the truth only
    final.safetensors             global/<tensor>: the model after the last round

chain_0 = sha256(federation.json), chain_{t+1} = sha256(chain_t + line t without its chain). The format
of the round files has no checksum of its own, so the manifest holds their sha256, and a file is hashed
before anything in it is believed. Tensors are memory-mapped: what is not looked at is not loaded.
"""

import hashlib
import json
import mmap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from fedworth.errors import LedgerError, ModelError
from fedworth.storage import read_json

FORMAT = 1
HEADER, MANIFEST, FINAL = "federation.json", "manifest.jsonl", "final.safetensors"

Model = dict[str, torch.Tensor]


@dataclass(frozen=True, slots=True)
class RoundEntry:
    """What the manifest says of one round; clients by their position in the ledger's list."""

    round_index: int
    file: str
    sha256: str
    apart_file: str | None
    apart_sha256: str | None
    joined: tuple[str, ...]
    asked: tuple[int, ...]
    answered: tuple[int, ...]
    participants: tuple[int, ...]
    sample_counts: tuple[int, ...]
    apart: tuple[int, ...]
    apart_sample_counts: tuple[int, ...]

    def __post_init__(self) -> None:
        where = f"round {self.round_index}"
        if not set(self.participants) <= set(self.answered):
            raise LedgerError(f"{where}: participants {self.participants} not all among {self.answered}")
        if not set(self.answered) <= set(self.asked):
            raise LedgerError(f"{where}: answered {self.answered} but only {self.asked} were asked")
        if len(self.sample_counts) != len(self.answered):
            raise LedgerError(
                f"{where}: {len(self.sample_counts)} sample counts, {len(self.answered)} answers"
            )
        if set(self.apart) & set(self.answered):
            raise LedgerError(f"{where}: clients {self.apart} kept apart, yet some of them answered")


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
    chain: str
    is_closed: bool

    @property
    def n_rounds(self) -> int:
        return len(self.entries)

    def sample_counts(self) -> dict[int, int]:
        """Each client's number of samples, as last reported."""
        counts: dict[int, int] = {}
        for entry in self.entries:
            counts.update(zip(entry.apart, entry.apart_sample_counts, strict=True))
        for entry in self.entries:
            counts.update(zip(entry.answered, entry.sample_counts, strict=True))
        return counts

    def open_round(self, round_index: int, *, with_apart: bool = False) -> Round:
        """The models of one round; every byte of its file is checked first."""
        entry = self.entries[round_index]
        tensors = _checked_tensors(self.folder / entry.file, entry.sha256)
        where = f"{self.folder / entry.file}"
        global_model = tensors.pop(("global", -1), None)
        if global_model is None:
            raise LedgerError(f"{where}: no global model in it")
        reported = {index: model for (kind, index), model in tensors.items() if kind == "client"}
        apart: dict[int, Model] = {}
        if with_apart and entry.apart_file is not None and entry.apart_sha256 is not None:
            kept = _checked_tensors(self.folder / entry.apart_file, entry.apart_sha256)
            apart = {index: model for (_, index), model in kept.items()}
        if set(reported) != set(entry.answered) or (with_apart and set(apart) != set(entry.apart)):
            raise LedgerError(
                f"{where}: holds models of clients {sorted(reported)}, expected {entry.answered}"
            )
        for index, model in sorted({**reported, **apart}.items()):
            check_alike(model, global_model, f"{where}, client {self.clients[index]!r}")
        check_finite(global_model, f"{where}, global model")
        return Round(entry, global_model, dict(sorted(reported.items())), dict(sorted(apart.items())))

    def rounds(self, *, with_apart: bool = False) -> Iterator[Round]:
        """The rounds in order, one in memory at a time."""
        for entry in self.entries:
            yield self.open_round(entry.round_index, with_apart=with_apart)

    def final_model(self) -> Model:
        """The global model after the last round, of a ledger that was closed."""
        line = _manifest_lines(self.folder)[-1]
        if line.get("kind") != "closed":
            raise LedgerError(f"{self.folder}: the federation is not closed, so it has no final model yet")
        return _checked_tensors(self.folder / FINAL, line["sha256"])["global", -1]


def open_ledger(folder: Path) -> Ledger:
    """The ledger at `folder`, its manifest checked link by link; the round files are checked when opened."""
    header = read_header(folder)
    chain = hashlib.sha256((folder / HEADER).read_bytes()).hexdigest()
    clients = list(header["clients"])
    entries: list[RoundEntry] = []
    is_closed = False
    for number, line in enumerate(_manifest_lines(folder)):
        where = f"{folder / MANIFEST}, line {number + 1}"
        chain = _next_link(chain, line, where)
        if is_closed:
            raise LedgerError(f"{where}: stands after the line that closes the ledger")
        if line["kind"] == "closed":
            is_closed = True
            continue
        entries.append(_entry(line, len(entries), where))
        clients += line["joined"]
    return Ledger(
        folder, tuple(clients), header["aggregation"], header["settings"], tuple(entries), chain, is_closed
    )


def read_header(folder: Path) -> dict[str, Any]:
    """What `federation.json` says, if this fedworth can read it."""
    if not (folder / HEADER).is_file():
        raise LedgerError(f"{folder}: no {HEADER} in it, so this is not a ledger")
    header = read_json(folder / HEADER)
    if not isinstance(header, dict) or header.get("format") != FORMAT:
        found = header.get("format") if isinstance(header, dict) else type(header).__name__
        raise LedgerError(f"{folder / HEADER}: format {found}, expected {FORMAT}; use a fitting fedworth")
    return header


def link(previous: str, line: Mapping[str, Any]) -> str:
    """The chain after `line`: it changes if the line, its place, or anything before it does."""
    text = json.dumps({k: v for k, v in line.items() if k != "chain"}, sort_keys=True, ensure_ascii=False)
    return hashlib.sha256((previous + text).encode()).hexdigest()


def file_sha256(path: Path) -> str:
    """The sha256 of a file, read through a memory map so that its pages are read from disk only once."""
    try:
        with path.open("rb") as file:
            if path.stat().st_size == 0:
                return hashlib.sha256(b"").hexdigest()
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as view:
                return hashlib.sha256(view).hexdigest()
    except FileNotFoundError:
        raise LedgerError(f"{path}: missing, though the manifest lists it; restore it from a copy") from None


def check_alike(model: Model, like: Model, where: str) -> None:
    """Refuse a model whose tensors are not those of `like`, or not finite."""
    if set(model) != set(like):
        odd = sorted(set(model) ^ set(like))
        raise ModelError(f"{where}: tensors {odd} are missing or extra; expected {sorted(like)}")
    for name, tensor in model.items():
        if tensor.shape != like[name].shape:
            found, expected = tuple(tensor.shape), tuple(like[name].shape)
            raise ModelError(f"{where}: tensor {name!r} has shape {found}, expected {expected}")
    check_finite(model, where)


def check_finite(model: Model, where: str) -> None:
    """Refuse a model with a NaN or an infinity in it."""
    for name, tensor in model.items():
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            n_bad = int((~torch.isfinite(tensor)).sum())
            raise ModelError(f"{where}: tensor {name!r} has {n_bad} values that are NaN or infinite")


def _checked_tensors(path: Path, sha256: str) -> dict[tuple[str, int], Model]:
    """The tensors of a file whose bytes are as recorded, by owner and name."""
    found = file_sha256(path)
    if found != sha256:
        raise LedgerError(f"{path}: sha256 {found}, expected {sha256}; the file was changed or damaged")
    models: dict[tuple[str, int], Model] = {}
    try:
        with safe_open(path, framework="pt") as file:
            for key in sorted(file.keys()):
                kind, _, rest = key.partition("/")
                index, name = (-1, rest) if kind == "global" else _client_key(rest)
                models.setdefault((kind, index), {})[name] = file.get_tensor(key)
    except (SafetensorError, ValueError) as error:
        raise LedgerError(f"{path}: not readable as safetensors ({error})") from error
    return models


def _client_key(rest: str) -> tuple[int, str]:
    index, _, name = rest.partition("/")
    return int(index), name


def _manifest_lines(folder: Path) -> list[dict[str, Any]]:
    path = folder / MANIFEST
    if not path.is_file():
        raise LedgerError(f"{path}: missing; without it no round can be trusted")
    lines = path.read_bytes().split(b"\n")
    lines.pop()  # a line that was never finished belongs to a round that was never committed
    try:
        return [json.loads(line) for line in lines]
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise LedgerError(f"{path}: not readable as JSON lines ({error})") from error


def _next_link(chain: str, line: Any, where: str) -> str:
    if not isinstance(line, dict) or line.get("kind") not in ("round", "closed"):
        raise LedgerError(f"{where}: neither a round nor the closing line")
    expected = link(chain, line)
    if line.get("chain") != expected:
        raise LedgerError(
            f"{where}: chain {line.get('chain')}, expected {expected}; it or a line above was edited"
        )
    return expected


def _entry(line: dict[str, Any], round_index: int, where: str) -> RoundEntry:
    if line.get("round_index") != round_index:
        raise LedgerError(f"{where}: round {line.get('round_index')}, expected round {round_index}")
    given = {key: value for key, value in line.items() if key not in ("kind", "chain")}
    fields: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in given.items()}
    try:
        return RoundEntry(**fields)
    except TypeError as error:
        raise LedgerError(f"{where}: not the fields of a round ({error})") from error
