"""The manifest: one JSON line a round, appended, each holding a chain over all before it.

    chain_0 = sha256(federation.json),  chain_{n+1} = sha256(chain_n + line n without its chain)

Kinds of line: `round` (a recorded round), `missing` (a round that could not be recorded, and why), `closed` (the model
after the last round). The chain is over the line's bytes, so no edit goes unseen, not even one that JSON forgives.
A last line without its newline, or with a zero byte in it, was never finished, and is not there: a power cut may leave
such a line, and JSON has no zero bytes.

`round_index` counts the recorded rounds. `number` is the federation's own: it may start at 1 and have gaps.
"""

import hashlib
import json
import math
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, get_type_hints

from fedworth.errors import ArtefactError, LedgerError
from fedworth.names import CHOICES
from fedworth.storage import MOST_JSON, read_bytes, read_json

FORMAT = 1
HEADER, MANIFEST, FINAL = "federation.json", "manifest.jsonl", "final.safetensors"
LONGEST_NAME = 200
MOST_SAMPLES = 2**53
MOST_MANIFEST = 2**32  # bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundEntry:
    """What the manifest says of one round; clients by their position in the ledger's list.

    Whoever was asked either answered (its model is in the file), failed (and said so), was quarantined (its answer
    cannot be averaged, and why), or stayed silent. Participants are those whose models were averaged. `nodes` says from
    which node each answer came, where the framework knows; `contested` are the clients whose name a second node
    claimed. Both are left out of a line where they are empty, so that lines from before there were any read the same.
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
    nodes: tuple[str, ...] = ()
    contested: tuple[int, ...] = ()

    @property
    def silent(self) -> tuple[int, ...]:
        """Who was asked, and neither answered nor failed."""
        heard = {*self.answered, *self.failed, *self.quarantined}
        return tuple(k for k in self.asked if k not in heard)

    def __post_init__(self) -> None:
        where = f"round {self.round_index}"
        if not set(self.participants).issubset(self.answered):
            raise LedgerError(f"{where}: participants {self.participants} not all among {self.answered}")
        fates = self.answered + self.failed + self.quarantined
        if len(set(fates)) != len(fates) or not set(fates).issubset(self.asked):
            raise LedgerError(
                f"{where}: answered {self.answered}, failed {self.failed}, quarantined {self.quarantined}; "
                f"expected each of the asked {self.asked} at most once"
            )
        if not set(self.apart).isdisjoint(self.answered) or len(set(self.apart)) != len(self.apart):
            raise LedgerError(
                f"{where}: clients {self.apart} kept apart, yet some of them answered, or stand there twice"
            )
        for clients, said in (
            (self.answered, self.sample_counts),
            (self.failed, self.failure_reasons),
            (self.quarantined, self.quarantine_reasons),
            (self.apart, self.apart_sample_counts),
        ):
            if len(clients) != len(said):
                raise LedgerError(f"{where}: {len(said)} counts or reasons for clients {clients}")
        if len(self.nodes) not in (0, len(self.answered)) or not set(self.contested) <= set(self.asked):
            raise LedgerError(f"{where}: {len(self.nodes)} nodes, contested {self.contested}; expected those answered")


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
OPTIONAL = {"nodes", "contested"}
KINDS: dict[str, type[Line]] = {"round": RoundEntry, "missing": MissingRound, "closed": ClosedLine}


def _is_position(value: Any) -> bool:
    return type(value) is int and value >= 0


def _is_text(value: Any) -> bool:
    return type(value) is str


def _is_list_of(types: set[type], most: float) -> Callable[[Any], bool]:
    """Whether a value is a list of these types, numbers from 0 to `most`; without a loop in Python: lines are many."""
    numbers = types != {str}
    return lambda value: (
        type(value) is list
        and (
            not value
            or (types.issuperset(map(type, value)) and (not numbers or (min(value) >= 0 and max(value) <= most)))
        )
    )


Check = tuple[Callable[[Any], bool], str]
CHECKED: dict[Any, Check] = {
    int: (_is_position, "a whole number from 0"),
    str: (_is_text, "text"),
    str | None: (lambda value: value is None or _is_text(value), "text or null"),
    tuple[int, ...]: (_is_list_of({int}, math.inf), "a list of whole numbers from 0"),
    tuple[str, ...]: (_is_list_of({str}, 0), "a list of texts"),
    tuple[float, ...]: (_is_list_of({int, float}, MOST_SAMPLES), "a list of numbers from 0 to 2^53"),
}
CHECKS: dict[str, dict[str, Check]] = {
    kind: {name: CHECKED[hint] for name, hint in get_type_hints(type_).items()} for kind, type_ in KINDS.items()
}


def line_bytes(line: Line, chain: str) -> tuple[bytes, str]:
    """A line as it is written after `chain`, and the chain after it."""
    kind = next(name for name, type_ in KINDS.items() if isinstance(line, type_))
    said = {name: value for name, value in asdict(line).items() if value or name not in OPTIONAL}
    document = {"kind": kind, **said}
    following = hashlib.sha256(chain.encode() + _json(document)).hexdigest()
    return _json({**document, "chain": following}) + b"\n", following


def read_manifest(folder: Path) -> bytes:
    """The finished lines of a manifest, as they are on disk."""
    path = folder / MANIFEST
    try:
        content = read_bytes(path, MOST_MANIFEST)
    except FileNotFoundError:
        raise LedgerError(f"{path}: missing; without it no round can be trusted") from None
    except OSError as error:
        raise LedgerError(f"{path}: cannot be read ({error.strerror})") from error
    finished = content[: content.rfind(b"\n") + 1]
    last = finished[:-1].rfind(b"\n") + 1
    return finished[:last] if b"\0" in finished[last:] else finished


def read_lines(folder: Path, chain: str) -> Iterator[tuple[Line, str]]:
    """The finished lines of a manifest, each with the chain after it; stops at the first that is not as written."""
    n_rounds, is_closed = 0, False
    for number, raw in enumerate(read_manifest(folder).split(b"\n")[:-1]):
        try:
            if is_closed:
                raise LedgerError("stands after the line that closes the ledger")
            line = _parsed(raw)
            chain = _following(raw, chain)
            _check_place(line, n_rounds)
        except LedgerError as error:
            where = f"{folder / MANIFEST}, line {number + 1} (after {n_rounds} good rounds)"
            raise LedgerError(f"{where}: {error}") from None
        n_rounds += isinstance(line, RoundEntry)
        is_closed = isinstance(line, ClosedLine)
        yield line, chain


def _following(raw: bytes, chain: str) -> str:
    """The chain after a line, if the line says the same."""
    body, _, said = raw.rpartition(b', "chain": "')
    following = hashlib.sha256(chain.encode() + body + b"}").hexdigest()
    if said != f'{following}"}}'.encode():
        raise LedgerError("its chain does not fit; it or something before it was edited")
    return following


def is_ledger(folder: Path) -> bool:
    """Whether there is a header at `folder`; an error if nobody may look."""
    try:
        return (folder / HEADER).is_file()
    except OSError as error:
        raise LedgerError(f"{folder / HEADER}: cannot be read ({error.strerror})") from error


def read_header(folder: Path) -> tuple[dict[str, Any], str]:
    """What `federation.json` says, if this fedworth can read it, and the chain after it."""
    path = folder / HEADER
    if not is_ledger(folder):
        raise LedgerError(f"{folder}: no {HEADER} in it, so this is not a ledger")
    try:
        header, chain = read_json(path), hashlib.sha256(read_bytes(path, MOST_JSON)).hexdigest()
    except ArtefactError as error:
        raise LedgerError(str(error)) from error
    except OSError as error:
        raise LedgerError(f"{path}: cannot be read ({error.strerror})") from error
    if not isinstance(header, dict) or header.get("format") != FORMAT:
        found = header.get("format") if isinstance(header, dict) else type(header).__name__
        raise LedgerError(f"{path}: format {str(found)[:40]}, expected {FORMAT}; use a fitting fedworth")
    clients = header.get("clients")
    if not isinstance(clients, list) or not isinstance(header.get("settings"), dict):
        raise LedgerError(f"{path}: expected a list of clients, and settings")
    check_names(clients, str(path))
    if header.get("aggregation") not in CHOICES["aggregation"]:
        raise LedgerError(
            f"{path}: aggregation {header.get('aggregation')!r}, expected one of {CHOICES['aggregation']}"
        )
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


def _parsed(raw: bytes) -> Line:
    try:
        document = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise LedgerError(f"not readable as JSON ({str(error)[:80]})") from error
    kind = document.pop("kind", None) if isinstance(document, dict) else None
    if not isinstance(kind, str) or kind not in KINDS:
        raise LedgerError("neither a round, a missing round nor the closing line")
    document.pop("chain", None)
    if not CHECKS[kind].keys() - OPTIONAL <= document.keys() <= CHECKS[kind].keys():
        raise LedgerError(f"not the fields of a line of kind {kind!r}")
    for key, value in document.items():
        is_right, expected = CHECKS[kind][key]
        if not is_right(value):
            raise LedgerError(f"{key}: found {type(value).__name__} {str(value)[:40]!r}, expected {expected}")
        if type(value) is list:
            document[key] = tuple(value)
    return KINDS[kind](**document)


def _check_place(line: Line, n_rounds: int) -> None:
    """Refuse a round out of order, and a file that is not the round's own."""
    if isinstance(line, RoundEntry):
        stem = f"{n_rounds:06d}.safetensors"
        files = (line.file, line.apart_file, line.round_index)
        if files not in ((f"rounds/{stem}", None, n_rounds), (f"rounds/{stem}", f"apart/{stem}", n_rounds)):
            raise LedgerError(f"{files}, expected the files of round {n_rounds}")
    elif isinstance(line, ClosedLine) and line.file != FINAL:
        raise LedgerError(f"final model in {line.file!r}, expected {FINAL!r}")
