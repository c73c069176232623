"""Which commit the code is at, so that rows of different states are not taken for those of one."""

import subprocess
from functools import cache
from pathlib import Path

UNKNOWN = "unknown"


@cache
def commit_of_source() -> str:
    """The commit that this code is at, with a mark where it was changed since; "unknown" outside a repository."""
    asked = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        return subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return UNKNOWN
