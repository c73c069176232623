"""Who else can write where a ledger is: whoever can might put files of his own into its place.

A ledger's own folder is made for its owner only. One that everybody can write is refused; one that a group can write,
that belongs to somebody else, or that stands in a folder where everybody can rename it, is said.
"""

import logging
import os
import stat
from pathlib import Path

from fedworth.errors import LedgerError

log = logging.getLogger("fedworth")


def refuse_exposed(folder: Path) -> None:
    """Refuse to record where everybody can write, and say what else is open."""
    if folder.stat().st_mode & stat.S_IWOTH:
        raise LedgerError(f"{folder}: everybody can write into this folder; close it with chmod go-w, then record")
    for text in exposures(folder):
        log.warning("fedworth: %s", text)


def exposures(folder: Path) -> tuple[str, ...]:
    """What a keeper of this ledger should know about who else can change it."""
    own, parent = folder.stat(), folder.resolve().parent.stat()
    said = []
    if own.st_mode & (stat.S_IWOTH | stat.S_IWGRP):
        said.append(f"{folder}: others can write into the ledger (mode {stat.S_IMODE(own.st_mode):o}); chmod go-w")
    if own.st_uid not in (os.geteuid(), 0):
        said.append(f"{folder}: the ledger's folder belongs to another user, number {own.st_uid}")
    if parent.st_mode & stat.S_IWOTH and not parent.st_mode & stat.S_ISVTX:
        said.append(f"{folder}: everybody can rename or replace the ledger, since its parent folder is open to all")
    return tuple(said)
