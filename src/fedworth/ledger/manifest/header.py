"""`federation.json`, the first file of a ledger: its clients, how it averages, how model and task are made."""

import hashlib
from pathlib import Path
from typing import Any

from fedworth.errors import ArtefactError, LedgerError
from fedworth.names import CHOICES
from fedworth.storage import MOST_JSON, read_bytes, read_json

FORMAT = 1
HEADER = "federation.json"
LONGEST_NAME = 200


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
