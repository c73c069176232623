"""Every row of what works and what is refused, in docs/live-federations.md, names tests that there are."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "live-federations.md").read_text()
SECTION = PAGE.partition("## What works, and what is refused")[2].partition("\n## ")[0]
ROWS = [
    line for line in SECTION.splitlines() if line.startswith("|") and "| ---" not in line and "| tests |" not in line
]
REFUSED = re.compile(r"(?:refused when valued|missing|quarantined|an error|refused)[^*|]*: \*([^*…(]{20,})")


def names_in(path: Path) -> set[str]:
    return {node.name for node in ast.parse(path.read_text()).body if isinstance(node, ast.FunctionDef)}


def test_there_are_rows_for_every_framework():
    assert len(ROWS) > 35
    assert {"Flower, Message API", "Flower, old API", "NVFlare", "any loop"} <= {
        row.split("|")[1].strip() for row in ROWS
    }


@pytest.mark.parametrize("row", ROWS, ids=[row[:60] for row in ROWS])
def test_a_row_names_tests_that_there_are(row):
    named = re.findall(r"`([\w/]+\.py)::(\w+)`", row.split("|")[-2])
    assert named
    for file, test in named:
        path = ROOT / file if file.startswith("tests/") else ROOT / "tests" / "recording" / file
        assert test in names_in(path), f"{file}::{test}"


def test_refusals_are_quoted_as_the_code_says_them():
    """Up to the first thing that is filled in; strings that the code breaks in two are put together again."""
    sources = "\n".join(path.read_text() for path in (ROOT / "src").rglob("*.py"))
    said = re.sub(r'"\s*f?"', "", sources)
    quoted = [found.strip().rstrip(";:,") for found in REFUSED.findall(SECTION)]
    assert len(quoted) > 8
    assert [text for text in quoted if re.split(r"'|\d| FedAvg| weighted mean", text)[0].strip() not in said] == []
