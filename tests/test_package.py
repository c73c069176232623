"""What a user gets with the wheel: a description that stands alone, the pages, and the Pythons that it names."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parent.parent
CONFIG = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT = CONFIG["project"]


def test_the_description_has_no_link_that_leads_nowhere_once_it_is_installed():
    text = (ROOT / PROJECT["readme"]).read_text()
    links = re.findall(r"\]\(([^)]+)\)", text)
    assert [link for link in links if not link.startswith("https://")] == []
    assert "fedworth --help" in text


def test_the_description_begins_as_the_readme_does():
    described, readme = ((ROOT / name).read_text() for name in (PROJECT["readme"], "README.md"))
    assert described.split("\n\n")[:2] == readme.split("\n\n")[:2]


def test_every_page_and_every_picture_on_it_is_installed():
    placed = CONFIG["tool"]["setuptools"]["data-files"]
    found = {path for patterns in placed.values() for pattern in patterns for path in ROOT.glob(pattern)}
    assert set((ROOT / "docs").rglob("*.md")) <= found
    for folder, patterns in placed.items():
        inside = folder.removeprefix("share/doc/fedworth").strip("/")
        assert all(path.parent == ROOT / "docs" / inside for pattern in patterns for path in ROOT.glob(pattern))
    for page in (ROOT / "docs").glob("*.md"):
        for picture in re.findall(r"!\[[^]]*\]\(([^)]+)\)", page.read_text()):
            assert ROOT / "docs" / picture in found, page


def test_another_system_gets_one_clear_error_and_the_pages_say_so():
    """A program that believes it runs on Windows."""
    code = "import os, importlib, typing; os.name = 'nt'; import fedworth"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ran.stderr.strip().splitlines()[-1].startswith("ImportError: fedworth does not run on Windows")
    assert [kind for kind in PROJECT["classifiers"] if kind.startswith("Operating")] == [
        "Operating System :: POSIX :: Linux"
    ]
    for page in ("README.md", "PACKAGE.md", "docs/index.md"):
        assert "Windows is not" in (ROOT / page).read_text().replace("\n", " ")


def test_the_pythons_that_are_named_are_those_that_wheels_are_tried_on():
    from tools.wheels import VERSIONS

    named = [kind.rpartition(" ")[2] for kind in PROJECT["classifiers"] if "Python :: 3" in kind]
    assert named == list(VERSIONS)
    assert PROJECT["requires-python"] == f">={VERSIONS[0]}"
