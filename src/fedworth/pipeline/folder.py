"""The folder of a run or a watch, which belongs to one set of settings.

`settings.json` in it holds all that decides the outcome. Whoever comes with other settings is refused, so that the
artefacts in a folder never mix two of them.
"""

from pathlib import Path
from typing import Any

from fedworth.errors import ArtefactError
from fedworth.storage import PARTIAL, json_bytes, make_folder, read_json, write_json

SETTINGS = "settings.json"


def claim(folder: Path, document: dict[str, Any], *, may_resume: bool, otherwise: str) -> None:
    """Take the folder for these settings, or refuse it. `otherwise` is said of a folder of other settings."""
    path = folder / SETTINGS
    if not _is_used(folder):
        make_folder(folder)
        write_json(path, document)
    elif not may_resume:
        raise ArtefactError(f"{folder}: exists already; resume it with --resume, or name another folder")
    elif not path.is_file() or json_bytes(read_json(path)) != json_bytes(document):
        raise ArtefactError(f"{folder}: {otherwise}")


def _is_used(folder: Path) -> bool:
    """Whether anything lies in the folder but what a killed run left half written."""
    return folder.exists() and any(not found.name.endswith(PARTIAL) for found in folder.iterdir())
