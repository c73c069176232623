"""What a built site must not do: ask another host for anything, link to nothing, or leave a formula as text.

The bytes are always looked at. Where there is a Chromium, every page is also opened in it, in light and dark, wide and
narrow: no request leaves the site, nothing is said on the console, no page is wider than the window.
"""

import functools
import os
import re
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

OUTSIDE = re.compile(
    r"""<(?:script|img|iframe|source|audio|video)[^>]*\ssrc=["']?(?:https?:)?//[^"'>\s]*"""
    r"""|<link(?=[^>]*rel=["']?(?:stylesheet|preconnect|preload|dns-prefetch|icon))[^>]*href=["']?(?:https?:)?//[^"'>\s]*"""
    r"""|@import\s+(?:url\()?["']?(?:https?:)?//[^"')\s]*|url\(\s*["']?(?:https?:)?//[^"')\s]*""",
    re.IGNORECASE,
)
NAMES = ("chromium", "chromium-browser", "google-chrome")
WINDOWS = (
    {"viewport": {"width": 1280, "height": 900}, "color_scheme": "light"},
    {"viewport": {"width": 390, "height": 844}, "color_scheme": "dark"},
)


def check(site: Path) -> None:
    """Say what is wrong with the site, and end with an error if anything is."""
    pages = sorted(site.rglob("*.html"))
    wrong = [f"{path}: {found}" for path in pages + sorted(site.rglob("*.css")) for found in outside(path.read_text())]
    wrong += [f"{path}: no file {link!r}" for path in pages for link in broken(path)]
    wrong += in_browser(site, pages)
    for line in wrong:
        print(line)
    if wrong:
        raise SystemExit(f"{site}: {len(wrong)} things are wrong")
    print(f"{site}: {len(pages)} pages, no request to another host, no link to a missing file")


def outside(text: str) -> list[str]:
    """What a page or a style would fetch from another host."""
    return OUTSIDE.findall(text)


def broken(path: Path) -> Iterator[str]:
    """Links of a page to files of the site that are not there; 404.html is served for any address."""
    for link in re.findall(r"""\s(?:href|src)=["']?([^"'\s>]+)""", path.read_text()):
        address = link.partition("#")[0].partition("?")[0]
        if not address or re.match(r"[a-z]+:|//", address) or path.name == "404.html":
            continue
        if not (path.parent / address).exists():
            yield link


def in_browser(site: Path, pages: list[Path]) -> list[str]:
    """What Chromium sees go wrong; without one, a line says so."""
    found = chromium()
    if found is None:
        print("no Chromium: the site was not opened in a browser; apt-get install chromium, or set FEDWORTH_CHROMIUM")
        return []
    from playwright.sync_api import sync_playwright

    with served(site) as address, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])
        wrong = [
            line
            for window in WINDOWS
            for path in pages
            for line in _opened(browser, address, str(path.relative_to(site)), window)
        ]
        browser.close()
    return wrong


def chromium() -> str | None:
    """The browser of this machine, or the one that FEDWORTH_CHROMIUM names."""
    return os.environ.get("FEDWORTH_CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)


def _opened(browser: Any, address: str, path: str, window: dict[str, Any]) -> list[str]:
    """What is wrong with one page in one window."""
    context = browser.new_context(**window)
    page = context.new_page()
    wrong: list[str] = []
    page.on("console", lambda message: wrong.append(f"{path}: console: {message.text}"))
    page.on("pageerror", lambda error: wrong.append(f"{path}: error: {error}"))
    page.on(
        "request", lambda asked: wrong.append(f"{path}: asks {asked.url}") if _is_outside(asked.url, address) else 0
    )
    page.goto(f"{address}/{path}", wait_until="load")
    if page.evaluate("document.documentElement.scrollWidth > innerWidth"):
        wrong.append(f"{path}: wider than {window['viewport']['width']} pixels")
    n_unset = page.locator(".arithmatex:not(:has(.katex))").count() + page.locator(".katex-error").count()
    if n_unset:
        wrong.append(f"{path}: {n_unset} formulae are not set")
    context.close()
    return wrong


def _is_outside(url: str, address: str) -> bool:
    return not url.startswith((address, "data:", "blob:"))


@contextmanager
def served(site: Path) -> Iterator[str]:
    """The site's address on this machine, while it is served."""
    handler = functools.partial(_Quiet, directory=str(site))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing of requests."""
