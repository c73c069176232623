"""The manifest: one JSON line a round, appended, each holding a chain over all before it.

    chain_0 = sha256(federation.json),  chain_{n+1} = sha256(chain_n + line n without its chain)

Kinds of line: `round` (a recorded round), `missing` (a round that could not be recorded, and why), `closed` (the model
after the last round). The chain is over the line's bytes, so no edit goes unseen, not even one that JSON forgives.
A last line without its newline, or with a zero byte in it, was never finished, and is not there: a power cut may leave
such a line, and JSON has no zero bytes.
"""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fedworth.errors import LedgerError
from fedworth.ledger.manifest.lines import KINDS, OPTIONAL, ClosedLine, Line, RoundEntry
from fedworth.ledger.manifest.parsing import parsed_line
from fedworth.ledger.manifest.quick import QuickReader
from fedworth.storage import read_bytes

MANIFEST, FINAL = "manifest.jsonl", "final.safetensors"
MOST_MANIFEST = 2**32  # bytes


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
    n_rounds, is_closed, quick = 0, False, QuickReader()
    for number, raw in enumerate(read_manifest(folder).split(b"\n")[:-1]):
        try:
            if is_closed:
                raise LedgerError("stands after the line that closes the ledger")
            line: Line = quick.read(raw) or parsed_line(raw)
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


def _json(document: dict[str, Any]) -> bytes:
    return json.dumps(document, ensure_ascii=False).encode(errors="surrogatepass")


def _check_place(line: Line, n_rounds: int) -> None:
    """Refuse a round out of order, and a file that is not the round's own."""
    if isinstance(line, RoundEntry):
        stem = f"{n_rounds:06d}.safetensors"
        is_apart = line.apart_file is None or line.apart_file == f"apart/{stem}"
        if line.round_index != n_rounds or line.file != f"rounds/{stem}" or not is_apart:
            files = (line.file, line.apart_file, line.round_index)
            raise LedgerError(f"{files}, expected the files of round {n_rounds}")
    elif isinstance(line, ClosedLine) and line.file != FINAL:
        raise LedgerError(f"final model in {line.file!r}, expected {FINAL!r}")
