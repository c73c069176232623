"""KaTeX, which sets the formulae: fetched by npm when the site is built, held against its sha512, never committed."""

import base64
import hashlib
import shutil
import subprocess
import tarfile
from pathlib import Path

VERSION = "0.19.1"
SHA512 = "jG8uKntjSEcm2EpQOh0XturpPuuC9r3Sq5HLHdsFdWZT27E672SF19QEi+of0/YeOy15lDgRhKvr5614uRrEfA=="
KEPT = ("package/dist/katex.min.js", "package/dist/katex.min.css", "package/LICENSE")
FONTS = "package/dist/fonts/"


def put_katex(folder: Path, archives: Path) -> None:
    """Put script, style and fonts into `folder`; the archive is kept in `archives`, and fetched if it is not there."""
    archive = archives / f"katex-{VERSION}.tgz"
    if not archive.is_file():
        _fetch(archives)
    found = base64.b64encode(hashlib.sha512(archive.read_bytes()).digest()).decode()
    if found != SHA512:
        raise SystemExit(f"{archive}: its sha512 is {found}, expected {SHA512}; delete it and build again")
    with tarfile.open(archive) as tar:
        for member in tar.getmembers():
            is_font = member.name.startswith(FONTS) and member.name.endswith(".woff2")
            file = tar.extractfile(member) if member.name in KEPT or is_font else None
            if file is not None:
                place = folder / ("fonts" if is_font else "") / Path(member.name).name
                place.parent.mkdir(parents=True, exist_ok=True)
                place.write_bytes(file.read())


def _fetch(archives: Path) -> None:
    if shutil.which("npm") is None:
        raise SystemExit(
            f"KaTeX is fetched by npm, and there is none: install npm, or put katex-{VERSION}.tgz into {archives}"
        )
    archives.mkdir(parents=True, exist_ok=True)
    subprocess.run(["npm", "pack", "--silent", f"katex@{VERSION}"], cwd=archives, check=True, stdout=subprocess.DEVNULL)
