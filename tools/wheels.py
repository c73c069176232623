"""The wheel, tried as a user gets it: installed into a fresh environment of each Python, and used there without make.

    python -m tools.wheels                                  every Python from 3.11 to 3.14 on this machine's PATH
    python -m tools.wheels /opt/python3.13/bin/python …     these
    python -m tools.wheels --environments FOLDER            keeps the environments there, for the next time

pip takes whatever the index has: torch alone may be gigabytes. What was not found is said, and is no error.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
VERSIONS = ("3.11", "3.12", "3.13", "3.14")
EVERY_NAME = "import fedworth; [getattr(fedworth, name) for name in fedworth.__all__]; print(fedworth.__version__)"
COMMANDS = (
    ("run", "--clients", "5", "--copy", "4=0", "--participants", "2", "--rounds", "4", "--out", "runs/demo"),
    ("report", "runs/demo", "--title", "Five clients", "--noun", "hospital"),
    ("statement", "runs/demo", "--all"),
    ("rewards", "runs/demo", "--pool", "1000"),
    ("verify", "runs/demo"),
    ("--help",),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pythons", nargs="*", help="interpreters to try (default: those on the PATH)")
    parser.add_argument("--environments", type=Path, metavar="FOLDER", help="where environments are kept")
    args = parser.parse_args()
    pythons = args.pythons or list(filter(None, map(found, VERSIONS)))
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        wheel = build(place / "wheel")
        for python in pythons:
            try_out(python, wheel, args.environments or place, place / "work")
    if not args.pythons and len(pythons) < len(VERSIONS):
        print(f"not on the PATH: {', '.join(name for name in VERSIONS if not found(name))}")


def found(version: str) -> str | None:
    """The interpreter of this version, if there is one that starts: a shim may have nothing behind it."""
    python = shutil.which(f"python{version}")
    if python is None or subprocess.run([python, "--version"], check=False, capture_output=True).returncode:
        return None
    return python


def build(folder: Path) -> Path:
    """The wheel of this tree, of what git has and nothing else."""
    source = folder / "source"
    source.mkdir(parents=True)
    archive = subprocess.run(["git", "archive", "HEAD"], cwd=ROOT, check=True, capture_output=True).stdout
    subprocess.run(["tar", "-x", "-C", str(source)], input=archive, check=True)
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(folder), str(source)]
    subprocess.run(command, check=True)
    (wheel,) = folder.glob("*.whl")
    return wheel


def try_out(python: str, wheel: Path, environments: Path, work: Path) -> None:
    """Install the wheel for one Python, and use it in an empty folder; an error ends everything."""
    version = _said([python, "-c", "import sys; print(*sys.version_info[:2], sep='.')"])
    environment = environments / f"python{version}"
    if not environment.is_dir():
        subprocess.run([python, "-m", "venv", str(environment)], check=True)
    binaries = environment / "bin"
    pip = [str(binaries / "pip"), "install", "--quiet"]
    subprocess.run([*pip, str(wheel)], check=True)
    subprocess.run(
        [*pip, "--force-reinstall", "--no-deps", str(wheel)], check=True
    )  # a kept environment has an old one
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir()
    for words in COMMANDS:
        _said([str(binaries / "fedworth"), *words], work)
    names = _said([str(binaries / "python"), "-W", "error", "-c", EVERY_NAME], work)
    print(f"Python {version}: fedworth {names} is installed from the wheel, and {len(COMMANDS)} commands ran")


def _said(command: list[str], folder: Path | None = None) -> str:
    """What a command prints; nothing of this tree is on its path."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run(command, cwd=folder, env=environment, check=False, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {done.returncode}: {done.stderr.strip()}")
    return done.stdout.strip()


if __name__ == "__main__":
    main()
