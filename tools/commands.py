"""docs/commands.md: every command with its arguments and options, as the parsers have them.

    python -m tools.commands > docs/commands.md

A test holds the page to what the parsers say.
"""

import argparse
from collections.abc import Iterator

from fedworth.cli.main import parser

INTRODUCTION = """# Commands

`fedworth COMMAND --help` says the same in the terminal. Every command takes `--json`; errors end with
[a code of their own](exit-codes.md). This page is written by `python -m tools.commands`."""


def reference() -> str:
    """The whole page."""
    parts = [INTRODUCTION, *(part for command in _leaves(parser()) for part in _section(command))]
    return "\n\n".join(parts) + "\n"


def _leaves(place: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """The commands that do something, in the order of the help."""
    below = [action for action in place._actions if isinstance(action, argparse._SubParsersAction)]
    if not below:
        yield place
    for action in below:
        for command in action.choices.values():
            yield from _leaves(command)


def _section(command: argparse.ArgumentParser) -> Iterator[str]:
    yield f"## {command.prog}"
    yield command.description or ""
    yield "\n".join(f"    {line.strip()}" for line in (command.epilog or "").removeprefix("example:\n").splitlines())
    actions = [action for action in command._actions if action.dest not in ("help", "json")]
    rows = [
        f"| `{_named(action)}`{' (needed)' if action.required else ''} | {_meaning(action)} |" for action in actions
    ]
    yield "\n".join(["| argument or option | meaning |", "| --- | --- |", *rows])


def _named(action: argparse.Action) -> str:
    """How an argument is written, with a stand-in for its value."""
    takes = str(action.metavar or action.dest.upper())
    if isinstance(action.metavar, tuple):
        takes = " ".join(action.metavar)
    text = " ".join([*action.option_strings[-1:], *([] if action.nargs == 0 else [takes])])
    return text.replace("|", "\\|")


def _meaning(action: argparse.Action) -> str:
    return (action.help or "").replace("%%", "%").replace("|", "\\|")


if __name__ == "__main__":
    print(reference(), end="")
