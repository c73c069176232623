"""A browser for tests: Debian's Chromium, driven by Playwright, which downloads none.

`FEDWORTH_CHROMIUM` names another one. Without any, the tests are skipped, and say so; `FEDWORTH_BROWSER=require` makes
that a failure.
"""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome")
MISSING = "no Chromium: apt-get install chromium, or set FEDWORTH_CHROMIUM"


@dataclass
class Opened:
    """A page in the browser, what it said on its console, and what it asked the network for."""

    page: Any
    said: list[str] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)


@contextmanager
def chromium() -> Iterator[Any]:
    """The browser, once; skips, or fails where it is required."""
    found = os.environ.get("FEDWORTH_CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)
    if found is None:
        if os.environ.get("FEDWORTH_BROWSER") == "require":
            pytest.fail(MISSING)
        pytest.skip(MISSING)
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])  # tests may run as root
        yield browser
        browser.close()


def opened(browser: Any, folder: Path, html: str, **options: Any) -> Opened:
    """A file with this HTML, opened in a context of its own."""
    path = folder / "page.html"
    path.write_text(html)
    shown = Opened(browser.new_context(**options).new_page())
    shown.page.on("console", lambda message: shown.said.append(message.text))
    shown.page.on("pageerror", lambda error: shown.said.append(str(error)))
    shown.page.on("request", lambda request: shown.asked.append(request.url))
    shown.page.goto(path.as_uri())
    return shown
