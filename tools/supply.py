"""Where fedworth's packages come from: pins with hashes, and a bill of materials.

    python tools/supply.py lock constraints.txt locks/main.txt     the sha256 of every pinned package, but torch
    python tools/supply.py sbom locks/main.txt sbom.json           what is installed, as CycloneDX 1.6

A lock is of one platform (this one's wheels): `pip install --require-hashes --no-deps -r locks/main.txt`. torch has no
hash, since which of its wheels is installed depends on the machine (CPU, CUDA, a local build). The same environment and
lock give the same bytes: no clock, no random number.
"""

import argparse
import json
import re
import subprocess
import sys
import tempfile
from importlib.metadata import Distribution, distributions, version
from pathlib import Path
from typing import Any

UNLOCKED = ("torch",)
PIN = re.compile(r"^([A-Za-z0-9._-]+)==([^\s\\]+)", re.MULTILINE)
LOCKED = re.compile(r"^([A-Za-z0-9._-]+)==([^\s\\]+) \\\n    --hash=sha256:([0-9a-f]{64})$", re.MULTILINE)
NOTE = "# Made by `make lock`: wheels for {platform}. torch is not here: its wheel depends on the machine.\n"


def name_of(name: str) -> str:
    """A package's name as indexes spell it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def pins(text: str) -> dict[str, str]:
    """The packages that a constraints file pins, and their versions."""
    return {name_of(name): found for name, found in PIN.findall(text)}


def hashes(text: str) -> dict[str, str]:
    """The sha256 of each package of a lock."""
    return {name_of(name): sha256 for name, _, sha256 in LOCKED.findall(text)}


def lock(constraints: Path, out: Path) -> None:
    """Ask pip what it would install for every pin, and write down the sha256 of it."""
    wanted = {name: found for name, found in pins(constraints.read_text()).items() if name not in UNLOCKED}
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        command = [sys.executable, "-m", "pip", "install", "--dry-run", "--ignore-installed", "--no-deps", "--quiet"]
        packages = [f"{name}=={found}" for name, found in wanted.items()]
        subprocess.run([*command, "--report", str(report), *packages], check=True)
        installs = json.loads(report.read_text())["install"]
    found = {name_of(each["metadata"]["name"]): each["download_info"]["archive_info"]["hashes"] for each in installs}
    missing = sorted(wanted.keys() - found.keys())
    if missing:
        raise SystemExit(f"{constraints}: pip would not install {', '.join(missing)}")
    lines = [f"{name}=={wanted[name]} \\\n    --hash=sha256:{found[name]['sha256']}\n" for name in sorted(wanted)]
    out.parent.mkdir(exist_ok=True)
    platform = f"CPython {sys.version_info.major}.{sys.version_info.minor} on {sys.platform}"
    out.write_text(NOTE.format(platform=platform) + "".join(lines))


def component(found: Distribution, sha256s: dict[str, str]) -> dict[str, Any]:
    """What a bill of materials says of one package."""
    name = name_of(found.metadata["Name"])
    purl = f"pkg:pypi/{name}@{found.version}"
    said: dict[str, Any] = {"type": "library", "bom-ref": purl, "name": name, "version": found.version, "purl": purl}
    licence = str(found.metadata.json.get("license_expression") or found.metadata.json.get("license", ""))
    if licence and len(licence) < 60 and "\n" not in licence:
        said["licenses"] = [{"license": {"name": licence}}]
    if name in sha256s:
        said["hashes"] = [{"alg": "SHA-256", "content": sha256s[name]}]
    return said


def bill(sha256s: dict[str, str]) -> dict[str, Any]:
    """The bill of materials of the environment that this runs in."""
    found = {name_of(each.metadata["Name"]): each for each in distributions()}
    own = f"pkg:pypi/fedworth@{version('fedworth')}"
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "component": {"type": "application", "bom-ref": own, "name": "fedworth", "version": version("fedworth")}
        },
        "components": [component(found[name], sha256s) for name in sorted(found.keys() - {"fedworth"})],
    }


def sbom(locked: Path, out: Path) -> None:
    """Write the bill of materials."""
    out.write_text(json.dumps(bill(hashes(locked.read_text())), indent=2, ensure_ascii=False) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("lock", "sbom"))
    parser.add_argument("source", type=Path, help="lock: a constraints file; sbom: a lock")
    parser.add_argument("out", type=Path)
    args = parser.parse_args()
    (lock if args.what == "lock" else sbom)(args.source, args.out)


if __name__ == "__main__":
    main()
