"""The manifest beside the numbers: by study, the commit, the command, what was run of each setup, and its settings."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedworth.storage import read_json, write_json

NAME = "manifest.json"
LEFT_OUT = "Not run here"
"""How the sentence begins that names what a study left out of its scale."""


@dataclass(frozen=True, slots=True)
class Account:
    """What a study took: the command, its scale, its trials and their seconds, and the commits they were run at."""

    command: str
    scale: str
    n_trials: int
    cpu_seconds: float
    new_cpu_seconds: float  # of those trials that no earlier study has run
    extents: tuple[str, ...]
    commits: tuple[str, ...] = ()
    settings: Mapping[str, Any] | None = None

    def sentence(self) -> str:
        """What was run, for people."""
        minutes = f"{self.cpu_seconds / 60:.1f} min of processor time"
        return f"Scale `{self.scale}`: {self.n_trials} trials, {minutes}. {' '.join(self.extents)}"

    def document(self) -> dict[str, Any]:
        """The same as JSON."""
        return {
            "command": self.command,
            "scale": self.scale,
            "commits": list(self.commits),
            "n_trials": self.n_trials,
            "cpu_seconds": round(self.cpu_seconds, 1),
            "new_cpu_seconds": round(self.new_cpu_seconds, 1),
            "extents": list(self.extents),
            "settings": dict(self.settings or {}),
        }


def write_account(figures: Path, study: str, account: Account) -> None:
    """Enter a study in the manifest."""
    path = figures / NAME
    known = read_json(path) if path.is_file() else {}
    write_json(path, {**known, study: account.document()})


def accounts_in(figures: Path) -> dict[str, Account]:
    """The manifest, by study."""
    path = figures / NAME
    found: dict[str, dict[str, Any]] = read_json(path) if path.is_file() else {}
    return {
        study: Account(
            entry["command"], entry["scale"], entry["n_trials"],
            entry["cpu_seconds"], entry.get("new_cpu_seconds", entry["cpu_seconds"]),
            tuple(entry["extents"]), tuple(entry["commits"]), entry["settings"],
        )
        for study, entry in found.items()
    }  # fmt: skip
