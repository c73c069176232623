"""The page of commands is what the parsers say."""

from pathlib import Path

from fedworth.coalitions import MOST_ENUMERATED
from fedworth.pipeline.checking.check import MOST_CLIENTS
from tools.commands import reference

PAGE = Path(__file__).parents[2] / "docs" / "commands.md"


def test_the_page_of_commands_is_what_the_parsers_say():
    assert PAGE.read_text() == reference(), "write it anew: python -m tools.commands > docs/commands.md"


def test_numbers_in_the_help_are_those_in_use():
    assert f"Try on a federation of up to {MOST_CLIENTS} clients" in reference()
    assert f"all coalitions of rounds with up to {MOST_ENUMERATED} participants" in reference()
