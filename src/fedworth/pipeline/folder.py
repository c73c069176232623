"""The folder of a run, a watch or a report, which belongs to one set of settings.

    settings.json  all that decides the outcome of a run, its simulation too
    valuing.json   the task and the settings that the numbers in the folder belong to

Whoever comes with other settings is refused, so that the artefacts in a folder never mix two of them.
"""

from pathlib import Path
from typing import Any

from fedworth.errors import ArtefactError
from fedworth.oracle.cache import architecture
from fedworth.pipeline.stages import ValuingSettings
from fedworth.storage import PARTIAL, json_bytes, make_folder, read_json, write_json
from fedworth.task.task import Task

SETTINGS, VALUING = "settings.json", "valuing.json"
MADE = ("truth.npz", "utilities.npz", "completion.npz", "factors.npz", "report.json")


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


def claim_for(folder: Path, settings: ValuingSettings, task: Task) -> None:
    """Take the folder for values of this task by these settings, or refuse it."""
    document = {**settings.document(), "test_sha256": task.fingerprint, "module_sha256": architecture(task)}
    path = folder / VALUING
    if not any((folder / name).exists() for name in (*MADE, VALUING)):
        make_folder(folder)
        write_json(path, document)
    elif not path.is_file() or json_bytes(read_json(path)) != json_bytes(document):
        raise ArtefactError(f"{folder}: made with another task or other settings before; name another folder (--out)")


def _is_used(folder: Path) -> bool:
    """Whether anything lies in the folder but what a killed run left half written."""
    return folder.exists() and any(not found.name.endswith(PARTIAL) for found in folder.iterdir())
