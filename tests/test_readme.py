"""The README says what really happens."""

import re
import shlex
from pathlib import Path

import pytest

from fedworth.cli.main import main
from tests.support.reader import lay_out

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


def test_the_demo_prints_what_its_page_and_the_readme_show(tmp_path, capsys, monkeypatch):
    command = re.search(r"\$\(BIN\)/fedworth (run .*)", (ROOT / "Makefile").read_text())
    assert command is not None
    monkeypatch.chdir(tmp_path)
    assert main(shlex.split(command.group(1))) == 0
    printed = capsys.readouterr().out.strip()
    assert printed == (ROOT / "docs" / "demo.md").read_text().split("```")[1].strip()
    assert printed.startswith(README.split("## What you get\n\n```\n")[1].split("```")[0].strip())


def test_the_ten_lines_of_python_run(tmp_path, capsys, monkeypatch):
    (block,) = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
    monkeypatch.chdir(tmp_path)
    exec(compile(block, "README.md", "exec"), {})  # the reader's own lines, as they stand
    assert "comfedsv" in capsys.readouterr().out


def test_every_command_of_the_readme_runs(tmp_path, monkeypatch, capsys):
    lay_out(tmp_path)
    monkeypatch.chdir(tmp_path)
    lines = re.findall(r"^    (fedworth .*)$|`(fedworth value .*)`", README, flags=re.MULTILINE)
    commands = [shlex.split(first or second, comments=True) for first, second in lines]
    assert len(commands) >= 2
    for _, *words in commands:
        assert main(words) == 0, words
    opened = re.findall(r"^    xdg-open (\S+)$", README, flags=re.MULTILINE)
    assert opened
    assert all((tmp_path / path).is_file() for path in opened)
    assert "Traceback" not in capsys.readouterr().err


def test_the_map_names_the_folders_that_there_are():
    package = ROOT / "src" / "fedworth"
    folders = {path.name for path in package.iterdir() if path.is_dir() and (path / "__init__.py").exists()}
    drawn = README.split("## Map")[1]
    for folder in folders:
        assert f"{folder}/" in drawn


@pytest.mark.parametrize("path", re.findall(r"\]\(([\w./-]+)\)", README))
def test_every_file_that_the_readme_names_exists(path):
    assert (ROOT / path).exists()
