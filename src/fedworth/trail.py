"""The trail of a number: which ledger, task, utilities and completion it came from, each by its hash.

    ledger ──► utilities ──► completion ──► valuation ──► report

Every artefact after the ledger carries a trail. `fedworth verify REPORT --ledger LEDGER` recomputes it, and says where
it breaks. Numbers that somebody brought, or that an older fedworth wrote, have none.
"""

import hashlib
import json
from dataclasses import asdict, dataclass, fields, is_dataclass
from importlib.metadata import version
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedworth.errors import ArtefactError

SOFTWARE = f"fedworth {version('fedworth')}"
UNHASHED = ("trail", "notes")


@dataclass(frozen=True, slots=True)
class Trail:
    """Where numbers come from; utilities and completion are None where they have no part in it."""

    head: str  # of the ledger, when it was measured
    n_rounds: int  # that it had then
    task: str | None  # the task's fingerprint
    software: str = SOFTWARE
    utilities: str | None = None
    completion: str | None = None

    def document(self) -> dict[str, Any]:
        """The trail as JSON."""
        return asdict(self)


def trail_from(document: Any) -> Trail | None:
    """The trail that `document()` gave; None if there was none."""
    if document is None:
        return None
    try:
        trail = Trail(**document)
    except TypeError as error:
        raise ArtefactError(f"not a trail: {error}") from None
    hashes = (trail.task, trail.utilities, trail.completion)
    if not (isinstance(trail.head, str) and isinstance(trail.software, str) and isinstance(trail.n_rounds, int)):
        raise ArtefactError(f"not a trail: {str(document)[:200]}")
    if not all(found is None or isinstance(found, str) for found in hashes):
        raise ArtefactError(f"not a trail: {str(document)[:200]}")
    return trail


def trail_array(trail: Trail | None) -> dict[str, NDArray[np.str_]]:
    """A trail as an array for an .npz file; nothing if there is none."""
    return {} if trail is None else {"trail": np.array(json.dumps(trail.document()))}


def trail_in(arrays: dict[str, NDArray[Any]]) -> Trail | None:
    """The trail among the arrays of an .npz file; None if there is none."""
    if "trail" not in arrays:
        return None
    try:
        return trail_from(json.loads(str(arrays["trail"])))
    except ValueError as error:
        raise ArtefactError(f"not a trail: {error}") from None


def fingerprint(artefact: Any) -> str:
    """The sha256 of an artefact's numbers, whatever file they stand in; its trail and its notes are left out."""
    digest = hashlib.sha256()
    _update(digest, artefact)
    return digest.hexdigest()


def _update(digest: Any, value: Any) -> None:
    match value:
        case np.ndarray():
            digest.update(f"{value.dtype.str} {value.shape} ".encode() + np.ascontiguousarray(value).tobytes())
        case np.generic():
            _update(digest, value.item())
        case tuple() | list():
            digest.update(f"{len(value)} ".encode())
            for item in value:
                _update(digest, item)
        case _ if is_dataclass(value):
            for name in sorted({field.name for field in fields(value)} - {*UNHASHED}):
                digest.update(f"\n{name} ".encode())
                _update(digest, getattr(value, name))
        case _:
            digest.update(f"{value!r} ".encode())
