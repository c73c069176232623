"""The header and the manifest of a ledger.

`federation.json` is the header: the clients, how the server averages, and settings. `manifest.jsonl` has one JSON
line per round. Lines are only ever appended, and each holds a hash over everything before it:

    chain_0 = sha256(federation.json),  chain_{n+1} = sha256(chain_n + line n without its chain)

A line is of one of three kinds: `round` (a recorded round), `missing` (a round that could not be recorded, and why)
or `closed` (the model after the last round). The chain covers the bytes of a line, so every edit is found, even one
that leaves the same JSON. A last line without a newline, or with a zero byte in it, is what a power cut leaves of an
unfinished line; readers ignore it.
"""

import hashlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from fedworth.errors import LedgerError, UsageError
from fedworth.names import Aggregation
from fedworth.storage import MAX_JSON_BYTES, read_bytes

FORMAT = 1
HEADER, MANIFEST, FINAL = "federation.json", "manifest.jsonl", "final.safetensors"
LONGEST_NAME = 200  # characters
MAX_MANIFEST_BYTES = 2**32

Position = Annotated[int, msgspec.Meta(ge=0)]
Weight = Annotated[int, msgspec.Meta(ge=0, le=2**53)] | Annotated[float, msgspec.Meta(ge=0, le=2**53)]


class RoundEntry(msgspec.Struct, frozen=True, tag_field="kind", tag="round", forbid_unknown_fields=True):
    """One round as the manifest describes it; clients are positions in the ledger's list of clients.

    `round_index` counts the recorded rounds. `number` is the federation's own count, which may start at 1 and have
    gaps. Every client that was asked either answered (its model is in the file), failed (with a reason), was
    quarantined (its answer cannot be averaged, with a reason) or stayed silent. Participants are the clients whose
    models the server averaged. `apart` are absent clients whose models a simulation kept as the ground truth. `nodes`
    tells from which node each answer came, if the framework knows. `contested` are clients whose name a second node
    claimed.
    """

    round_index: Position
    number: Position
    file: str
    sha256: str
    apart_file: str | None = None
    apart_sha256: str | None = None
    joined: tuple[str, ...] = ()
    asked: tuple[Position, ...] = ()
    answered: tuple[Position, ...] = ()
    participants: tuple[Position, ...] = ()
    sample_counts: tuple[Weight, ...] = ()
    failed: tuple[Position, ...] = ()
    failure_reasons: tuple[str, ...] = ()
    quarantined: tuple[Position, ...] = ()
    quarantine_reasons: tuple[str, ...] = ()
    apart: tuple[Position, ...] = ()
    apart_sample_counts: tuple[Weight, ...] = ()
    notes: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()
    contested: tuple[Position, ...] = ()

    @property
    def silent(self) -> tuple[int, ...]:
        """Clients that were asked, and neither answered nor failed."""
        heard = {*self.answered, *self.failed, *self.quarantined}
        return tuple(k for k in self.asked if k not in heard)

    def __post_init__(self) -> None:
        """Refuse an entry whose fields contradict each other."""
        asked, answered, apart = set(self.asked), set(self.answered), set(self.apart)
        reported = self.answered + self.failed + self.quarantined
        if not answered.issuperset(self.participants):
            raise self._error(f"participants {self.participants}, expected only clients that answered {self.answered}")
        if len(set(reported)) != len(reported) or not asked.issuperset(reported):
            raise self._error(
                f"answered {self.answered}, failed {self.failed}, quarantined {self.quarantined}; "
                f"expected each of the asked clients {self.asked} at most once"
            )
        if not apart.isdisjoint(answered) or len(apart) != len(self.apart):
            raise self._error(f"models of {self.apart} kept apart; expected different clients that did not answer")
        if len(self.sample_counts) != len(answered) or len(self.apart_sample_counts) != len(apart):
            raise self._error(f"sample counts {self.sample_counts}, expected one for each of {self.answered}")
        if len(self.failed) != len(self.failure_reasons) or len(self.quarantined) != len(self.quarantine_reasons):
            raise self._error("expected a reason for each client that failed or was quarantined")
        if len(self.nodes) not in (0, len(answered)) or not asked.issuperset(self.contested):
            raise self._error(f"nodes {self.nodes}, contested {self.contested}; expected a node for each answer")

    def _error(self, found: str) -> LedgerError:
        return LedgerError(f"round {self.number}: {found}")


class MissingRound(msgspec.Struct, frozen=True, tag_field="kind", tag="missing", forbid_unknown_fields=True):
    """A round that the federation trained and the ledger does not have."""

    number: Position
    reason: str


class ClosedLine(msgspec.Struct, frozen=True, tag_field="kind", tag="closed", forbid_unknown_fields=True):
    """The end of a ledger, and its final model."""

    file: str
    sha256: str


Line = RoundEntry | MissingRound | ClosedLine
_DECODER: msgspec.json.Decoder[Line] = msgspec.json.Decoder(Line)


def is_ledger(folder: Path) -> bool:
    """Whether there is a ledger's header in `folder`."""
    try:
        return (folder / HEADER).is_file()
    except OSError as error:
        raise LedgerError(f"{folder / HEADER}: cannot be read ({error.strerror})") from error


class Header(msgspec.Struct, frozen=True):
    """The file `federation.json`."""

    format: Literal[1]
    clients: list[str]
    aggregation: Aggregation
    settings: dict[str, Any]


def read_header(folder: Path) -> tuple[Header, str]:
    """The checked header of a ledger, and its hash, with which the chain starts."""
    path = folder / HEADER
    if not is_ledger(folder):
        problem = (
            f"has no {HEADER}, so it is not a ledger" if folder.is_dir() else "no such folder, so it is not a ledger"
        )
        raise LedgerError(f"{folder}: {problem}")
    try:
        data = read_bytes(path, MAX_JSON_BYTES)
        header = msgspec.convert(json.loads(data), Header)  # msgspec's own parser takes no lone surrogates
    except OSError as error:
        raise LedgerError(f"{path}: cannot be read ({error.strerror})") from error
    except (ValueError, RecursionError) as error:
        found = f"not the header of a ledger of format {FORMAT} ({str(error)[:120]})"
        raise LedgerError(f"{path}: {found}; restore it, or install the fedworth that wrote it") from None
    check_names(header.clients, str(path))
    return header, hashlib.sha256(data).hexdigest()


def check_names(names: list[Any], where: str) -> None:
    """Refuse client names that are empty, no text, not printable, too long or repeated."""
    for name in names:
        if not isinstance(name, str) or not name.strip() or not name.isprintable() or len(name) > LONGEST_NAME:
            expected = f"printable text of at most {LONGEST_NAME} characters"
            raise LedgerError(f"{where}: client name {str(name)[:40]!r}, expected {expected}")
    if len(set(names)) != len(names):
        raise LedgerError(f"{where}: client names are not all different")


def line_bytes(line: Line, chain: str) -> tuple[bytes, str]:
    """The bytes of a line that follows `chain`, and the chain after it."""
    document = msgspec.to_builtins(line)
    for name in ("nodes", "contested"):  # ledgers from before these fields existed have the same bytes
        if not document.get(name, True):
            del document[name]
    body = msgspec.json.format(msgspec.json.encode(document), indent=0)
    following = hashlib.sha256(chain.encode() + body).hexdigest()
    return body[:-1] + f', "chain": "{following}"}}\n'.encode(), following


def read_manifest(folder: Path) -> bytes:
    """The finished lines of a manifest as they are on disk."""
    path = folder / MANIFEST
    try:
        content = read_bytes(path, MAX_MANIFEST_BYTES)
    except FileNotFoundError:
        raise LedgerError(f"{path}: missing; restore it from a copy, without it no round can be trusted") from None
    except OSError as error:
        raise LedgerError(f"{path}: cannot be read ({error.strerror})") from error
    finished = content[: content.rfind(b"\n") + 1]
    last = finished[:-1].rfind(b"\n") + 1
    return finished[:last] if b"\0" in finished[last:] else finished


def read_lines(folder: Path, chain: str) -> Iterator[tuple[Line, str]]:
    """The finished lines of a manifest, each with the chain after it; the first line that was changed is an error."""
    n_rounds, is_closed = 0, False
    for number, raw in enumerate(read_manifest(folder).split(b"\n")[:-1]):
        try:
            if is_closed:
                raise LedgerError("comes after the line that closes the ledger")
            line, chain = _read_line(raw, chain)
            _check_files(line, n_rounds)
        except LedgerError as error:
            where = f"{folder / MANIFEST}, line {number + 1} (after {n_rounds} good rounds)"
            raise LedgerError(f"{where}: {error}") from None
        n_rounds += isinstance(line, RoundEntry)
        is_closed = isinstance(line, ClosedLine)
        yield line, chain


def _read_line(raw: bytes, chain: str) -> tuple[Line, str]:
    """One line and the chain after it; the hash is compared before anything is parsed."""
    body, _, end = raw.rpartition(b', "chain": "')
    body += b"}"
    following = hashlib.sha256(chain.encode() + body).hexdigest()
    if end != f'{following}"}}'.encode():
        raise LedgerError("its chain does not fit: this line or something before it was changed")
    try:
        return _DECODER.decode(body), following
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise LedgerError(f"not a line of a manifest ({str(error)[:120]})") from None


def _check_files(line: Line, n_rounds: int) -> None:
    """Refuse a round out of order, and a line that names another round's file."""
    if isinstance(line, RoundEntry):
        stem = f"{n_rounds:06d}.safetensors"
        found = (line.round_index, line.file, line.apart_file)
        if found not in ((n_rounds, f"rounds/{stem}", None), (n_rounds, f"rounds/{stem}", f"apart/{stem}")):
            raise LedgerError(f"round and files {found}, expected the files of round {n_rounds}")
    elif isinstance(line, ClosedLine) and line.file != FINAL:
        raise LedgerError(f"final model in {line.file!r}, expected {FINAL!r}")


class LedgerHead(msgspec.Struct, frozen=True):
    """The chain of a ledger after a number of rounds: one hash that stands for every byte recorded so far.

    The chain alone cannot show that the last rounds were removed, or that the ledger was rewritten. A head that was
    kept elsewhere can: a ledger that has grown has had it, a ledger that was rolled back or rewritten has not.
    """

    chain: str
    n_rounds: int


def heads(folder: Path) -> list[LedgerHead]:
    """Every head that the ledger at `folder` has had, from the one without rounds to the present one."""
    _, chain = read_header(folder)
    passed = [LedgerHead(chain, 0)]
    for line, following in read_lines(folder, chain):
        passed.append(LedgerHead(following, passed[-1].n_rounds + isinstance(line, RoundEntry)))
    return passed


def parse_head(text: str) -> str:
    """A head that a user typed: 64 hexadecimal digits in either case."""
    chain = text.strip().lower()
    if not re.fullmatch(r"[0-9a-f]{64}", chain):
        raise UsageError(f"head {text[:80]!r}: expected the 64 hexadecimal digits that fedworth verify prints")
    return chain


def find_head(folder: Path, chain: str) -> LedgerHead:
    """The head with this chain; an error if the ledger never had it."""
    passed = heads(folder)
    for head in passed:
        if head.chain == chain:
            return head
    now = f"its {passed[-1].n_rounds} rounds end in {passed[-1].chain}"
    raise LedgerError(
        f"{folder}: never had the head {chain}; {now}. Rounds were removed from its end, or it is not the ledger "
        "that the head was taken from; restore it from a copy"
    )
