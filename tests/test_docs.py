"""The documents name functions that there are."""

import importlib
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
DOCUMENTS = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
EXTRAS = ("fedworth.flower", "fedworth.nvflare")  # not installed beside the others; tests/test_public.py reads them
ENTRY_POINTS = "fedworth.methods"  # a group of entry points, no module
NAMED = [
    (path, name)
    for path in DOCUMENTS
    for name in sorted(set(re.findall(r"`(fedworth(?:\.\w+)+)", path.read_text())))
    if not name.startswith(EXTRAS) and name != ENTRY_POINTS
]
TABLES = re.compile(r"function \(in `(fedworth(?:\.\w+)+)`\)(.*?)(?=\n\n)", flags=re.DOTALL)


def resolve(name):
    """The module, or the thing in a module, that a dotted name stands for."""
    parts = name.split(".")
    for n_modules in range(len(parts), 0, -1):
        try:
            found = importlib.import_module(".".join(parts[:n_modules]))
        except ModuleNotFoundError as error:
            if not ".".join(parts).startswith(str(error.name)):
                raise
            continue
        for part in parts[n_modules:]:
            found = getattr(found, part)
        return found
    raise AssertionError(f"{name}: no such module")


def test_the_documents_name_functions():
    assert len(NAMED) > 20


@pytest.mark.parametrize(("path", "name"), NAMED, ids=[f"{path.name}-{name}" for path, name in NAMED])
def test_every_name_in_the_documents_can_be_imported(path, name):
    assert resolve(name) is not None, path


def test_the_functions_in_tables_are_in_the_module_that_heads_them():
    tables = TABLES.findall((ROOT / "docs" / "theory.md").read_text())
    assert len(tables) == 2
    for module, rows in tables:
        for row in rows.splitlines()[2:]:
            for name in re.findall(r"`(\w+)`", row.split("|")[-2]):
                assert callable(resolve(f"{module}.{name}"))


def test_the_python_on_the_reports_page_runs(tmp_path, monkeypatch, capsys):
    (block,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "report.md").read_text(), flags=re.DOTALL)
    monkeypatch.chdir(tmp_path)
    exec(compile(block, "report.md", "exec"), {})  # the reader's own lines, as they stand
    assert "comfedsv" in capsys.readouterr().out
    assert (tmp_path / "values" / "report.html").is_file()


def test_the_python_on_the_page_about_vertical_federations_runs(tmp_path, monkeypatch, capsys):
    (block,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "vertical.md").read_text(), flags=re.DOTALL)
    monkeypatch.chdir(tmp_path)
    exec(compile(block, "vertical.md", "exec"), {})
    assert "bank" in capsys.readouterr().out
    assert (tmp_path / "my.report" / "report.html").is_file()
