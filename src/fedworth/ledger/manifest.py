"""The manifest: one JSON line a round, appended, each holding a chain over all before it.

    chain_0 = sha256(federation.json),  chain_{n+1} = sha256(chain_n + line n without its chain)

Kinds of line: `round` (a recorded round), `missing` (a round that could not be recorded, and why), `closed` (the model
after the last round). A line is believed only if it is, byte for byte, what fedworth writes for what it says: so no
edit goes unseen, not even one that JSON forgives. A last line without its newline was never finished, and is not there.

`round_index` counts the recorded rounds. `number` is the federation's own: it may start at 1 and have gaps.
"""

import hashlib
import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, get_type_hints

from fedworth.errors import ArtefactError, LedgerError
from fedworth.storage import read_json

FORMAT = 1
HEADER, MANIFEST, FINAL = "federation.json", "manifest.jsonl", "final.safetensors"
AGGREGATIONS = ("uniform", "samples")
LONGEST_NAME = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundEntry:
    """What the manifest says of one round; clients by their position in the ledger's list.

    Whoever was asked either answered (its model is in the file), failed (and said so), was quarantined (its answer was
    refused, and why), or stayed silent. Participants are those whose models were averaged.
    """

    round_index: int
    number: int
    file: str
    sha256: str
    apart_file: str | None = None
    apart_sha256: str | None = None
    joined: tuple[str, ...] = ()
    asked: tuple[int, ...] = ()
    answered: tuple[int, ...] = ()
    participants: tuple[int, ...] = ()
    sample_counts: tuple[float, ...] = ()
    failed: tuple[int, ...] = ()
    failure_reasons: tuple[str, ...] = ()
    quarantined: tuple[int, ...] = ()
    quarantine_reasons: tuple[str, ...] = ()
    apart: tuple[int, ...] = ()
    apart_sample_counts: tuple[float, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def silent(self) -> tuple[int, ...]:
        """Who was asked, and neither answered nor failed."""
        heard = {*self.answered, *self.failed, *self.quarantined}
        return tuple(k for k in self.asked if k not in heard)

    def __post_init__(self) -> None:
        where = f"round {self.round_index}"
        if not set(self.participants) <= set(self.answered):
            raise LedgerError(f"{where}: participants {self.participants} not all among {self.answered}")
        fates = [*self.answered, *self.failed, *self.quarantined]
        if len(set(fates)) != len(fates) or not set(fates) <= set(self.asked):
            raise LedgerError(
                f"{where}: answered {self.answered}, failed {self.failed}, quarantined {self.quarantined}; "
                f"expected each of the asked {self.asked} at most once"
            )
        if set(self.apart) & set(self.answered):
            raise LedgerError(f"{where}: clients {self.apart} kept apart, yet some of them answered")
        for clients, said in (
            (self.answered, self.sample_counts),
            (self.failed, self.failure_reasons),
            (self.quarantined, self.quarantine_reasons),
            (self.apart, self.apart_sample_counts),
        ):
            if len(clients) != len(said) or len(set(clients)) != len(clients):
                raise LedgerError(f"{where}: {len(said)} counts or reasons for clients {clients}")


@dataclass(frozen=True, slots=True)
class MissingRound:
    """A round that the federation trained and the ledger does not have."""

    number: int
    reason: str


@dataclass(frozen=True, slots=True)
class ClosedLine:
    """The end of a ledger: where the final model is."""

    file: str
    sha256: str


Line = RoundEntry | MissingRound | ClosedLine
KINDS: dict[str, type[Line]] = {"round": RoundEntry, "missing": MissingRound, "closed": ClosedLine}


def line_bytes(line: Line, chain: str) -> tuple[bytes, str]:
    """A line as it is written after `chain`, and the chain after it."""
    kind = next(name for name, type_ in KINDS.items() if isinstance(line, type_))
    document = {"kind": kind, **asdict(line)}
    following = hashlib.sha256(chain.encode() + _json(document)).hexdigest()
    return _json({**document, "chain": following}) + b"\n", following


def read_lines(folder: Path, chain: str) -> Iterator[tuple[Line, str]]:
    """The finished lines of a manifest, each with the chain after it; stops at the first that is not as written."""
    path = folder / MANIFEST
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise LedgerError(f"{path}: missing; without it no round can be trusted") from None
    except OSError as error:
        raise LedgerError(f"{path}: cannot be read ({error.strerror})") from error
    n_rounds, is_closed = 0, False
    for number, raw in enumerate(content.split(b"\n")[:-1]):
        where = f"{path}, line {number + 1} (after {n_rounds} good rounds)"
        if is_closed:
            raise LedgerError(f"{where}: stands after the line that closes the ledger")
        line = _parsed(raw, where)
        expected, chain = line_bytes(line, chain)
        if raw + b"\n" != expected:
            raise LedgerError(f"{where}: its chain does not fit; it or something before it was edited")
        _check_place(line, n_rounds, where)
        n_rounds += isinstance(line, RoundEntry)
        is_closed = isinstance(line, ClosedLine)
        yield line, chain


def write_line(descriptor: int, data: bytes, offset: int) -> None:
    """Put a line at the end of an open manifest: all of it on the device, or nothing of it."""
    try:
        if os.pwrite(descriptor, data, offset) != len(data):
            raise OSError("the device is full")
        os.fsync(descriptor)
    except BaseException:  # an interrupt as well: whoever gives the round up removes its file
        os.ftruncate(descriptor, offset)
        raise


def read_header(folder: Path) -> tuple[dict[str, Any], str]:
    """What `federation.json` says, if this fedworth can read it, and the chain after it."""
    path = folder / HEADER
    if not path.is_file():
        raise LedgerError(f"{folder}: no {HEADER} in it, so this is not a ledger")
    try:
        header, chain = read_json(path), hashlib.sha256(path.read_bytes()).hexdigest()
    except (ArtefactError, OSError, RecursionError) as error:
        raise LedgerError(f"{path}: cannot be read ({error})") from error
    if not isinstance(header, dict) or header.get("format") != FORMAT:
        found = header.get("format") if isinstance(header, dict) else type(header).__name__
        raise LedgerError(f"{path}: format {str(found)[:40]}, expected {FORMAT}; use a fitting fedworth")
    clients = header.get("clients")
    if not isinstance(clients, list) or not isinstance(header.get("settings"), dict):
        raise LedgerError(f"{path}: expected a list of clients, and settings")
    check_names(clients, str(path))
    if header.get("aggregation") not in AGGREGATIONS:
        raise LedgerError(f"{path}: aggregation {header.get('aggregation')!r}, expected one of {AGGREGATIONS}")
    return header, chain


def check_names(names: list[Any], where: str) -> None:
    """Refuse client names that are empty, not text, not printable, too long, or there twice."""
    for name in names:
        if not isinstance(name, str) or not name.strip() or not name.isprintable() or len(name) > LONGEST_NAME:
            expected = f"printable text of at most {LONGEST_NAME} characters"
            raise LedgerError(f"{where}: client name {str(name)[:40]!r}, expected {expected}")
    if len(set(names)) != len(names):
        raise LedgerError(f"{where}: client names are not all different")


def _json(document: dict[str, Any]) -> bytes:
    return json.dumps(document, ensure_ascii=False).encode(errors="surrogatepass")


def _parsed(raw: bytes, where: str) -> Line:
    try:
        document = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise LedgerError(f"{where}: not readable as JSON ({str(error)[:80]})") from error
    kind = document.get("kind") if isinstance(document, dict) else None
    if not isinstance(kind, str) or kind not in KINDS:
        raise LedgerError(f"{where}: neither a round, a missing round nor the closing line")
    type_ = KINDS[kind]
    given = {key: value for key, value in document.items() if key not in ("kind", "chain")}
    if set(given) != {field.name for field in fields(type_)}:
        raise LedgerError(f"{where}: not the fields of a line of kind {kind!r}")
    hints = get_type_hints(type_)
    return type_(**{key: _checked(value, hints[key], f"{where}, {key}") for key, value in given.items()})


def _checked(value: Any, hint: Any, where: str) -> Any:
    """A JSON value as the type that the field has, or an error."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    match value:
        case str() if hint in (str, str | None):
            return value
        case None if hint == str | None:
            return None
        case int() if hint is int and is_number and value >= 0:
            return value
        case int() | float() if hint is float and is_number and 0 <= value < float("inf"):
            return value
        case list() if str(hint).startswith("tuple"):
            return tuple(_checked(item, hint.__args__[0], where) for item in value)
    raise LedgerError(f"{where}: found {type(value).__name__} {str(value)[:40]!r}, expected {hint}")


def _check_place(line: Line, n_rounds: int, where: str) -> None:
    """Refuse a round out of order, and a file that is not the round's own."""
    if isinstance(line, RoundEntry):
        stem = f"{n_rounds:06d}.safetensors"
        files = (line.file, line.apart_file, line.round_index)
        if files not in ((f"rounds/{stem}", None, n_rounds), (f"rounds/{stem}", f"apart/{stem}", n_rounds)):
            raise LedgerError(f"{where}: {files}, expected the files of round {n_rounds}")
    elif isinstance(line, ClosedLine) and line.file != FINAL:
        raise LedgerError(f"{where}: final model in {line.file!r}, expected {FINAL!r}")
