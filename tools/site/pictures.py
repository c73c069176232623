"""Pictures of the page and of a statement for README and docs: seeded runs, looked at by Chromium, in few colours.

Numbers on them are those of the demonstration. When it changes,
make them anew: `python -m tools.site pictures docs/figures`.
"""

import contextlib
import io
import tempfile
from pathlib import Path
from typing import Any

from PIL import Image
from playwright.sync_api import sync_playwright

from fedworth.cli.main import main
from tools.site.check import chromium

N_COLOURS = 128
"""Enough for flat colours and letters, and a third of the bytes."""


def put_pictures(folder: Path) -> None:
    """Write page.png, page-dark.png and statement.png into `folder`."""
    found = chromium()
    if found is None:
        raise SystemExit("no Chromium: apt-get install chromium, or set FEDWORTH_CHROMIUM")
    with tempfile.TemporaryDirectory() as place, contextlib.redirect_stdout(io.StringIO()):
        run = str(Path(place) / "demo")
        for words in (
            ["run", "--seed", "25", "--copy", "9=0", "--out", run],
            ["report", run, "--title", "Scanned digits, seed 25"],
            ["statement", run, "--client", "5", "--title", "Scanned digits, seed 25"],
        ):
            if main(words):
                raise SystemExit(f"fedworth {' '.join(words)} failed")
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])
            report, (statement,) = Path(run, "report.html"), Path(run, "statements").iterdir()
            _picture(browser, report, folder / "page.png", (1280, 1010), "light")
            _picture(browser, report, folder / "page-dark.png", (1280, 1440), "dark", "#story")
            _picture(browser, statement, folder / "statement.png", (390, 1000), "light")
            browser.close()


def _picture(browser: Any, page: Path, out: Path, size: tuple[int, int], scheme: str, part: str = "") -> None:
    """What is seen of a page in a window of this size, or one part of it whole."""
    context = browser.new_context(viewport={"width": size[0], "height": size[1]}, color_scheme=scheme)
    opened = context.new_page()
    opened.goto(page.as_uri())
    seen = (opened.locator(part) if part else opened).screenshot()
    context.close()
    picture = Image.open(io.BytesIO(seen)).convert("RGB")
    picture.quantize(N_COLOURS, method=Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE).save(out, optimize=True)
