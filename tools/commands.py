"""docs/commands.md: every command with its arguments and options, from the dataclasses that the commands are.

    python -m tools.commands > docs/commands.md

A test holds the page to what the commands say.
"""

from collections.abc import Iterator

from fedworth.cli.main import COMMANDS, command_class
from fedworth.cli.options import Option, example_of, options_of, summary_of

INTRODUCTION = """# Commands

`fedworth COMMAND --help` says the same in the terminal. Every command takes `--json`; each kind of error has
[its own exit code](exit-codes.md). This page is written by `python -m tools.commands`."""


def page() -> str:
    """The whole page."""
    parts = [INTRODUCTION, *(part for name in COMMANDS for part in _section(name))]
    return "\n\n".join(parts) + "\n"


def _section(name: str) -> Iterator[str]:
    kind = command_class(name)
    yield f"## fedworth {name}"
    yield summary_of(kind)
    yield f"    {example_of(kind)}"
    lines = [f"| `{_cell(_written(option))}` | {_cell(option.meaning())} |" for option in options_of(kind)]
    yield "\n".join(["| argument or option | meaning |", "| --- | --- |", *lines])


def _written(option: Option) -> str:
    """An option as it is written on the command line."""
    written = option.name.upper() if option.is_positional else f"{option.flag} {option.metavar}".strip()
    written = f"{option.name.upper()} or {written}" if option.is_argument else written
    return written + " (required)" * option.is_required_option


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    print(page(), end="")
