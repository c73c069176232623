"""The four pages in the documents are what `fedworth check` prints of those federations, and verdicts fit the truth."""

import re
from pathlib import Path

import pytest

from tools.check_pages import CASES, HEAD, section

PAGE = (Path(__file__).parents[3] / "docs" / "checks.md").read_text()


def words(text: str) -> str:
    """The text with every number masked: the last digits differ from one processor to another."""
    return re.sub(r"[-+]?\d[\d.,]*(e-\d+)?", "#", text)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.title)
def test_the_page_is_what_the_command_prints(case):
    assert words(section(case)) in words(PAGE)


def test_the_verdicts_are_what_the_truth_says():
    assert PAGE.startswith(HEAD)
    sound, lying, alike, unheard = PAGE.split("\n## ")[1:]
    for part in (sound, unheard):
        assert "The values are sound: everything that was tried holds." in part
        assert float(re.findall(r"true ones is (\S+),", part)[0]) >= 0.9
    assert "Ask about 0 before you use them" in lying
    assert "Client '0' sent an update of up to" in lying
    assert "Trust the rough order only" in alike
    assert 0.3 <= float(re.findall(r"error (\S+) of the spread", alike)[0]) <= 1  # as its own uncertainty says
    assert "heard round: not tried" in unheard
