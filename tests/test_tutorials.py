"""The tutorials and how-to pages do what they say: every block is run, in order, as a reader would run it."""

import contextlib
import io
import re
import shlex
from pathlib import Path

import pytest
from sybil import Sybil
from sybil.evaluators.python import PythonEvaluator
from sybil.parsers.markdown.lexers import RawFencedCodeBlockLexer

from fedworth.cli.main import main

DOCS = Path(__file__).parent.parent / "docs"
RUN = [*sorted((DOCS / "tutorials").glob("*.md")), *(DOCS / "howto" / f"{n}.md" for n in ("own-loop", "import"))]
RUN += [DOCS / "howto" / "own-utilities.md", DOCS / "howto" / "own-method.md", DOCS / "howto" / "adapters-with-peft.md"]
ELSEWHERE = [DOCS / "howto" / f"{name}.md" for name in ("flower", "nvflare", "trackers")]
"""Pages whose Python needs a framework that is not installed beside the tests."""

INFO = re.compile(r"(?P<language>\w+)(?: title=\"(?P<title>[^\"]+)\")?$\n", re.MULTILINE)


def blocks_of(document):
    """The parser for Sybil: every fenced block that names its language."""
    for region in RawFencedCodeBlockLexer(INFO)(document):
        region.parsed = region.lexemes["source"]
        region.evaluator = evaluate
        yield region


def evaluate(example):
    """Run Python, run commands, write a file that has a title, compare a text with what was printed just before."""
    language, title = example.region.lexemes["language"], example.region.lexemes["title"]
    if title is not None:
        Path(title).parent.mkdir(parents=True, exist_ok=True)
        Path(title).write_text(str(example.parsed))
    elif language == "python":
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            PythonEvaluator()(example)
        example.namespace["_printed"] = printed.getvalue()
    elif language == "bash":
        for line in str(example.parsed).splitlines():
            program, *words = shlex.split(line)
            assert program == "fedworth", line
            assert main(words) == 0, line
    elif language == "text" and "_printed" in example.namespace:
        assert str(example.parsed) == example.namespace["_printed"]


@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing. is deprecated")  # PEFT asks transformers for it
@pytest.mark.parametrize("path", RUN, ids=lambda path: path.stem)
def test_every_block_of_a_page_runs(path, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)  # a page's own files can be imported, as where Python was started
    monkeypatch.setattr("sys.dont_write_bytecode", True)
    document = Sybil(parsers=[blocks_of], path=str(path.parent), pattern=path.name).parse(path)
    examples = list(document.examples())
    assert len(examples) >= 2
    for example in examples:
        example.evaluate()
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize("path", ELSEWHERE, ids=lambda path: path.stem)
def test_the_pages_on_frameworks_are_python_and_name_commands_that_there_are(path):
    languages = re.findall(r"^```(\w+)(?: title=\"\w+\.py\")?\n(.*?)^```$", path.read_text(), re.DOTALL | re.MULTILINE)
    assert {"python", "bash"} == {language for language, _ in languages}
    for language, code in languages:
        if language == "python":
            compile(code, path.name, "exec")
        for line in code.splitlines() if language == "bash" else ():
            assert shlex.split(line)[0].endswith(("fedworth", "pip", "python"))
