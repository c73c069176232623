"""The page of commands is what the parsers say."""

from pathlib import Path

from tools.commands import reference

PAGE = Path(__file__).parents[2] / "docs" / "commands.md"


def test_the_page_of_commands_is_what_the_parsers_say():
    assert PAGE.read_text() == reference(), "write it anew: python -m tools.commands > docs/commands.md"
