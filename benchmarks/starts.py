"""How long fedworth takes before it works, in CPU seconds: prints a Markdown table.

    python benchmarks/starts.py

Each row is the processor time of a process of its own, the least of a few. *Cold* has an empty folder for machine code,
as after the first installation on a machine; *warm* has what the run before left there. A bar that is missed is named
at the end, and the exit code is 1.
"""

import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

from bars import Bars

COMMAND = (sys.executable, "-c", "from fedworth.cli.main import entry; entry()")
DEMO = ("run", "--seed", "25", "--copy", "9=0")
WATCHED = ("simulate", "--clients", "8", "--copy", "none", "--rounds", "4", "--no-truth")


def seconds(*arguments: str, cache: Path) -> float:
    """The processor time of one command."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(cache)}
    subprocess.run([*COMMAND, *arguments], env=environment, capture_output=True, check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    """All rows, one after the other."""
    bars, rows = Bars(), []
    with tempfile.TemporaryDirectory() as name:
        folder, cache = Path(name), Path(name) / "machine code"
        for options in (("--help",), ("--version",), ("run", "--oracle", "fsat", "--out", "x")):
            least = min(seconds(*options, cache=cache) for _ in range(5))
            rows.append((f"`fedworth {' '.join(options)}`", least, 0.15))
        places = [folder / f"machine code {k}" for k in range(4)] + [cache]  # each empty at first
        cold = min(seconds(*DEMO, "--out", str(folder / f"cold {k}"), cache=c) for k, c in enumerate(places))
        rows.append(("the demonstration, cold", cold, 12.0))
        warm = min(seconds(*DEMO, "--out", str(folder / f"warm {k}"), cache=cache) for k in range(5))
        rows.append(("the demonstration, warm", warm, 4.0))
        seconds(*WATCHED, "--out", str(folder / "ledger"), cache=cache)
        watch = ("watch", str(folder / "ledger"), "--once")
        seconds(*watch, "--out", str(folder / "first"), cache=cache)
        first = min(seconds(*watch, "--out", str(folder / f"watched {k}"), cache=cache) for k in range(3))
        rows.append(("the first table of `fedworth watch`, 8 clients, warm", first, 4.0))
    print("| what | CPU s | asked for |\n| --- | ---: | ---: |")
    for what, found, most in rows:
        bars.at_most(f"{what}, CPU seconds", found, most)
        print(f"| {what} | {found:.2f} | {most:g} |", flush=True)
    bars.close()


if __name__ == "__main__":
    main()
