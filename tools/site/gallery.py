"""The gallery: the commands on docs/gallery.md, run; the pages that they write are copied into the site."""

import contextlib
import io
import os
import re
import shlex
import shutil
from pathlib import Path

from fedworth.cli.main import main

BLOCK = re.compile(r"^```bash\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def commands(page: str) -> list[list[str]]:
    """The commands of a page, split into words."""
    lines = [line for block in BLOCK.findall(page) for line in block.splitlines()]
    return [shlex.split(line) for line in lines]


def put_gallery(page: str, folder: Path, workshop: Path) -> None:
    """Run the page's commands in `workshop`, and copy every HTML file that they leave into `folder`."""
    shutil.rmtree(workshop, ignore_errors=True)
    workshop.mkdir(parents=True)
    for program, *words in commands(page):
        if program != "fedworth":
            raise SystemExit(f"docs/gallery.md: found {program!r}, expected commands of fedworth alone")
        with contextlib.chdir(workshop), contextlib.redirect_stdout(io.StringIO()):
            code = main(words)
        if code:
            raise SystemExit(f"docs/gallery.md: {shlex.join([program, *words])} ended with {code}")
    for path in sorted((workshop / "gallery").rglob("*.html")):
        place = folder / path.relative_to(workshop)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(path.read_bytes())  # not copied: reports are readable by their owner alone
        os.chmod(place, 0o644)
